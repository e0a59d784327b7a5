"""Remarks on what effbench did to measure a row."""

import pytest
from made_sweeps import a_cell

from effbench.core.labels import label_rows
from effbench.render.remarks import remarks_on
from effbench.render.tables import rows_of
from effbench.store import Store


def remarks_of(path):
    with Store.open(path) as store:
        sweep = store.find_sweep("last")
        return remarks_on(store, sweep, label_rows(rows_of(store, sweep)))


GRADIENTS = {"grad_mode": "no_grad", "grad_mode_reason": "inference mode: output differs\nfrom no"}


@pytest.mark.parametrize(
    ("cells", "remark"),
    [
        (
            {a_cell(mode): {"extra": GRADIENTS} for mode in ("eager", "default")},
            "mlp: another grad_mode for all modes: inference mode: output differs from no",
        ),
        (
            {a_cell(phase="training"): {"extra": {"dropout_off": ["Dropout.p=0.1"]}}},
            'mlp · phase=training: dropout off in training: ["Dropout.p=0.1"]',
        ),
        (
            {a_cell("aot-inductor"): {"extra": {"facts": {"weights_differ": "compiled anew"}}}},
            "mlp: weights differ between processes: compiled anew",
        ),
        # the newest trial with facts counts
        (
            {a_cell(): {"extra": [{"grad_mode_reason": "old"}, GRADIENTS, {}, {}, {}]}},
            "mlp: another grad_mode for all modes: inference mode: output differs from no",
        ),
    ],
)
def test_a_row_is_named_once_for_all_its_modes(cells, remark, made):
    made.sweep(cells)
    assert remarks_of(made.path) == [remark]


@pytest.mark.parametrize(
    ("overrides", "remarks"),
    [
        (
            ["model=mlp bs=1 mode=eager", "model=mlp bs=1 mode=default mode.dynamic=unbacked"],
            ["settings: mode.dynamic=unbacked"],
        ),
        (["+env.A=1 threads=2 bs=1", "+env.A=1 threads=2 bs=8"], ["settings: +env.A=1, threads=2"]),
        # columns show these
        (["numerics.tf32=true bs=1", "numerics.tf32=false bs=1"], []),
        # how it is measured, not what
        (["protocol=quick protocol.rounds=3 timeout_s=9 --config-dir=conf"], []),
        (
            [" ".join(f"numerics.x{number}=1" for number in range(10))],
            [
                "settings: "
                + ", ".join(f"numerics.x{number}=1" for number in range(8))
                + " and 2 more"
            ],
        ),
    ],
)
def test_settings_with_one_value_are_listed(overrides, remarks, made):
    cells = [a_cell(bs=number) for number in range(1, len(overrides) + 1)]
    words = {cell.key: text.split() for cell, text in zip(cells, overrides, strict=True)}
    made.sweep(cells, cell_overrides=words)
    assert remarks_of(made.path) == remarks
