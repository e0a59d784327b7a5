"""Notes on what effbench did to measure a row."""

from made_sweeps import Made, a_cell

from effbench.labels import label_rows
from effbench.report.notes import notes
from effbench.report.tables import rows_of
from effbench.store import Store


def notes_of(path):
    with Store.open(path) as store:
        sweep = store.find_sweep("last")
        return notes(store, sweep, label_rows(rows_of(store, sweep)))


def test_a_row_is_named_once_for_all_its_modes(tmp_path):
    reason = {
        "grad_mode": "no_grad",
        "grad_mode_reason": "inference mode: output differs\nfrom no_grad",
    }
    made = Made(tmp_path / "a.db")
    made.sweep(
        {
            a_cell("eager", "jac"): {"extra": reason},
            a_cell("default", "jac"): {"extra": reason},
            a_cell("eager", "mlp"): {"extra": {"grad_mode": "inference"}},
            a_cell("eager", "net", phase="training"): {
                "extra": {"dropout_off": ["Dropout.p=0.1 (4 modules)"]}
            },
            # of older versions
            a_cell("default", "net", phase="training"): {"extra": {"dropout_off": 4}},
            a_cell("aot-inductor", "mlp"): {
                "extra": {"facts": {"weights_differ": "compiled anew"}}
            },
        }
    )
    found = sorted(notes_of(made.path))
    by_grad_mode, weights, dropout = found
    row = "jac · phase=inference"
    assert (
        by_grad_mode
        == f"{row}: all modes run with grad_mode=no_grad (inference mode: output differs from"
        " no_grad)"
    )
    assert dropout.startswith(
        "net · phase=training: dropout off in training: Dropout.p=0.1 (4 modules)"
    )
    assert weights == "mlp · phase=inference: weights differ between processes: compiled anew"


def test_the_newest_trial_with_facts_counts_and_others_need_none(tmp_path):
    made = Made(tmp_path / "a.db")
    made.sweep(
        {
            a_cell(): {
                "extra": [{"grad_mode_reason": "old"}, {"grad_mode_reason": "new"}, {}, {}, {}]
            },
            a_cell("default"): {},
        }
    )
    (note,) = notes_of(made.path)
    assert "(new)" in note
