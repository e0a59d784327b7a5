from dataclasses import replace

import pytest
from made_pairs import compared, compared_parts, rows_of
from made_sweeps import A100, EAGER, FAST, GRAPH, SLOW, a_cell, environment, steps

import effbench
from effbench.analysis.compare import find
from effbench.analysis.limits import STATUS
from effbench.cli.check import baseline_of
from effbench.core.errors import NothingFoundError, UsageError
from effbench.store import Store


def verdicts(found, metric="latency_ms"):
    cells = found.before.cells
    return {cells[one.key].mode_name: one.verdict for one in rows_of(found, metric)}


def test_a_line_for_each_mode(made):
    other = a_cell(bs=64)
    failed = {"status": "error"}
    before = made.sweep({EAGER: FAST, other: FAST, GRAPH: failed})
    after = made.sweep({EAGER: SLOW, other: {"latency_ms": steps(1.1**3, 0.001)}, GRAPH: failed})
    lines = {(line.mode, line.metric): line for line in compared(made, before, after).modes}
    # no cuda-graph has figures on both sides
    assert set(lines) == {("eager", "latency_ms"), ("eager", "period_ms")}
    line = lines["eager", "latency_ms"]
    assert line.ratio == pytest.approx(1.1**2)  # geometric mean of 1.1 and 1.1³
    assert line.low < line.ratio < line.high
    assert (line.cells, line.of) == (2, 2)


def test_the_python_api_compares_parts_in_turns(made):
    sweep = made.sweep([EAGER, a_cell(bs=64)])
    frame = effbench.compare(
        sweep,
        db=str(made.path),
        by="bs",
        values=(8, 64),
    )
    assert len(frame)
    assert frame.attrs["in_turns"]
    with pytest.raises(UsageError, match="takes two sweeps"):
        effbench.compare(
            sweep,
            sweep,
            db=str(made.path),
            values=("a", "b"),
        )


def test_after_an_update_in_mid_sweep_the_new_environment_counts(made):
    """Its trials come last, although a resumed sweep keeps the old ones."""
    old = environment(torch_version="2.12.0")
    before = made.sweep({EAGER: FAST}, env=old)
    after = made.sweep(
        {EAGER: FAST},
        env=old,
        rounds=2,
        host={"environments": {old.id: {}}},
    )
    with Store.open(made.path, mode="write") as store:
        store.note_environments(after, {environment().id: {}})
    made.sweep({EAGER: SLOW}, into=after)
    assert verdicts(compared(made, before, after)) == {"eager": "slower"}


def test_of_two_gpus_one_is_chosen(made):
    sweeps = []
    for figures in (FAST, SLOW):
        sweeps.append(made.sweep({EAGER: FAST}))
        made.sweep({EAGER: figures}, env=A100, into=sweeps[-1])
    with pytest.raises(UsageError, match="choose one with --on"):
        compared(made, *sweeps)
    for on, verdict in (("a100", "slower"), ("H200", "same")):
        assert verdicts(compared(made, *sweeps, on=on)) == {"eager": verdict}


def test_a_sweep_that_did_not_end_is_noted_although_every_cell_has_trials(made):
    half = a_cell(dtype="float16")
    whole = made.sweep([EAGER, half])
    part = made.sweep([EAGER, half], state="interrupted", rounds=2)
    note = f"{part} is interrupted, not completed: only its measured cells are compared"
    assert compared(made, whole, part).notes == compared_parts(made, part, "dtype").notes == [note]


def test_two_interpreters_in_turns(made):
    drift = [1.0, 1.2, 1.4, 1.6, 1.8]
    slower = [value * 1.05 for value in drift]
    sweep = None
    for torch, values in (("2.11.0", drift), ("2.13.0", slower)):
        env = environment(flags={"interpreter": f"/venvs/{torch}/python"}, torch_version=torch)
        sweep = made.sweep({EAGER: {"latency_ms": values}}, env=env, into=sweep)
    found = compared_parts(made, sweep, "python")
    assert verdicts(found) == {"eager": "slower"}
    assert found.differences[0] == "torch_version 2.11.0 → 2.13.0"
    assert verdicts(compared_parts(made, sweep, "torch_version")) == {"eager": "slower"}


def test_by_a_parameter(made):
    cells = [a_cell(dtype=dtype, bs=bs) for bs in (8, 16) for dtype in ("bfloat16", "float16")]
    sweep = made.sweep(dict.fromkeys(cells, FAST) | {cells[1]: SLOW})
    found = compared_parts(made, sweep, "dtype")
    rows = {found.before.cells[row.key].bs: row for row in rows_of(found, "latency_ms")}
    assert {bs: row.verdict for bs, row in rows.items()} == {8: "slower", 16: "same"}
    assert rows[8].key == EAGER.key
    assert rows[8].name == "mlp bs=8 eager"
    assert (found.before.title, found.after.title) == ("dtype=bfloat16", "dtype=float16")


@pytest.mark.parametrize("by", ["model", "bs"])
def test_a_models_cache_follows_bs(made, by):
    def cached(name, bs):
        return replace(a_cell(bs=bs), model={"name": name, "module": {"max_batch": bs}})

    cells = {(name, bs): cached(name, bs) for name in "ab" for bs in (1, 8)}
    sweep = made.sweep({cell: SLOW if "b" in key else FAST for key, cell in cells.items()})
    found = compared_parts(made, sweep, by)
    assert rows_of(found, STATUS) == [], "all have partners"
    assert len(rows_of(found, "latency_ms")) == 2


@pytest.mark.parametrize(
    ("host_ms", "notes"),
    [
        (0.020, ["the host's speed differs: fixed work took 30 µs, and now 20 µs"]),
        (0.0305, []),
        (None, []),
    ],
)
def test_another_speed_of_the_host_is_a_note(made, host_ms, notes):
    sweeps = [made.sweep({EAGER: {"host_ms": host}}) for host in (0.030, host_ms)]
    found = compared(made, *sweeps)
    assert [text.partition(" µs (")[0] + " µs" for text in found.notes] == notes


# --- baselines ---


def test_a_reference_may_be_a_baseline(made):
    first = made.sweep([EAGER])
    second = made.sweep([EAGER], env=A100)
    with Store.open(made.path, mode="write") as store:
        store.set_baseline("main", first)
        assert find(store, "main").id == first
        assert find(store, "last").id == second
        store.set_baseline("main", second)
        assert find(store, "main", on="A100").id == second
        with pytest.raises(UsageError, match=r"'main' is set on .*; choose one with --on"):
            find(store, "main")


def swept(made, *names):
    sweep = None
    for name in names:
        sweep = made.sweep([EAGER], env=environment(gpu_name=f"NVIDIA {name}"), into=sweep)
    return sweep


def chosen(made, baseline, sweep, on=None, any_hardware=False):
    with Store.open(made.path, mode="write") as store:
        store.set_baseline("main", baseline)
        return baseline_of(
            store,
            "main",
            store.find_sweep(sweep),
            on,
            any_hardware,
        )


def test_a_baseline_on_several_gpus(made):
    both = swept(made, "L40S", "A100")
    sweep = swept(made, "L40S", "A100", "L4")
    assert chosen(made, both, sweep, on="a100").hardware == "NVIDIA A100"
    several = "is set on NVIDIA A100, NVIDIA L40S; choose one with --on"
    with pytest.raises(UsageError, match=several):
        chosen(made, both, sweep)
    # a name in full goes before a part
    with pytest.raises(NothingFoundError, match="not on NVIDIA L4; "):
        chosen(
            made,
            both,
            sweep,
            on="nvidia l4",
        )


def test_other_hardware_only_if_asked_for(made):
    baseline = swept(made, "A100")
    sweep = swept(made, "H200")
    with pytest.raises(NothingFoundError, match="is set on NVIDIA A100, not on NVIDIA H200"):
        chosen(made, baseline, sweep)
    assert chosen(made, baseline, sweep, any_hardware=True).hardware == "NVIDIA A100"
