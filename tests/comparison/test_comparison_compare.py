from dataclasses import replace

import pytest
from made_sweeps import A100, DEFAULT, EAGER, FAST, GRAPH, SLOW, a_cell, environment, steps

import effbench
from effbench.commands.check import baseline_of, verdict_line
from effbench.comparison.compare import (
    Compared,
    Selection,
    compare_parts,
    compare_sweeps,
    find,
)
from effbench.comparison.limits import STATUS, Limits, limits_of
from effbench.comparison.verdicts import Change, Verdict
from effbench.errors import NothingFoundError, UsageError
from effbench.store import Store


def compared(made, before, after, settings=None, **options):
    with Store.open(made.path) as store:
        sweeps = [store.find_sweep(one) for one in (before, after)]
        return compare_sweeps(store, *sweeps, limits_of(settings or {}), Selection(**options))


def halves(made, sweep, by, settings=None, **options):
    with Store.open(made.path) as store:
        return compare_parts(
            store, store.find_sweep(sweep), by, limits_of(settings or {}), **options
        )


def verdicts(found, metric="latency_ms"):
    return {one.about.mode: one.verdict for one in found.changes if one.metric == metric}


def test_a_line_for_each_mode(made):
    other, failed = a_cell(bs=64), {"status": "error"}
    before = made.sweep({EAGER: FAST, other: FAST, GRAPH: failed})
    after = made.sweep({EAGER: SLOW, other: {"latency_ms": steps(1.1**3, 0.001)}, GRAPH: failed})
    found = compared(made, before, after)
    assert not found.interleaved
    lines = {(line.mode, line.metric): line for line in found.modes}
    assert set(lines) == {
        ("eager", "latency_ms"),
        ("eager", "period_ms"),
    }, "no cuda-graph has figures on both sides"
    line = lines["eager", "latency_ms"]
    assert line.ratio == pytest.approx(1.1**2)  # geometric mean of 1.1 and 1.1³
    assert line.low < line.ratio < line.high
    assert (line.cells, line.of) == (2, 2)
    assert compared(made, before, after, {"metrics": ["kernels"]}).modes == []
    more = made.sweep([EAGER, GRAPH, a_cell("cuda-graph", bs=64)])
    assert {(one.mode, one.cells) for one in halves(made, more, "mode").modes} == {
        ("eager → cuda-graph", 1)
    }


def test_two_modes_are_compared_round_by_round(made):
    """The host slows down from round to round, and both modes with it."""
    drift = [1.0, 1.2, 1.4, 1.6, 1.8]
    more = {
        "latency_ms": [
            value * factor
            for value, factor in zip(drift, (0.9, 0.901, 0.9, 0.899, 0.9), strict=True)
        ]
    }
    sweep = made.sweep({EAGER: {}, DEFAULT: {"latency_ms": drift}, GRAPH: more})
    frame = effbench.compare(sweep, db=str(made.path), by="mode", values=("default", "cuda-graph"))
    row = frame[frame.metric == "latency_ms"].iloc[0]
    assert (row.verdict, frame.attrs["in_turns"]) == (
        "faster",
        True,
    ) and 0.89 < row.ci_low < 0.9 < row.ci_high < 0.91
    without_interval = effbench.compare(
        sweep, db=str(made.path), by="mode", values=("eager", "default"), metrics=["kernels"]
    )
    assert (without_interval.dtypes == frame.dtypes).all()
    sizes = made.sweep([EAGER, a_cell(bs=64)])
    assert not effbench.compare(sizes, db=str(made.path), by="bs", values=(8, 64)).empty, (
        "values may be numbers"
    )
    with pytest.raises(UsageError, match="takes two sweeps"):
        effbench.compare(sweep, sweep, db=str(made.path), values=("a", "b"))
    with pytest.raises(UsageError, match="has bs=8, 64; choose two of them"):
        effbench.compare(sizes, db=str(made.path), by="bs", values=(8, 8))
    # the unnamed sweep
    with pytest.raises(UsageError, match="given by its id, its name or 'last', not by None"):
        effbench.compare(None, sizes, db=str(made.path))


def test_the_noise_fence_comes_from_earlier_sweeps(made):
    """A cell that moves by 5 % from sweep to sweep is not called slower by another 8."""
    for number in range(8):
        made.sweep({EAGER: {"latency_ms": steps(1.05 ** (number % 2), 0.001)}, DEFAULT: FAST})
    before = made.sweep({EAGER: FAST, DEFAULT: FAST})
    after = made.sweep({cell: {"latency_ms": steps(1.08, 0.001)} for cell in (EAGER, DEFAULT)})
    found = compared(made, before, after)
    assert verdicts(found) == {"eager": "ambiguous", "default": "slower"}
    limits = {one.about.mode: one.limit for one in found.changes if one.metric == "latency_ms"}
    assert limits == {"eager": pytest.approx(1.05 ** (3 / 0.6745) - 1), "default": 0.02}


def test_the_fence_comes_from_sweeps_with_the_same_protocol(made):
    for number in range(8):
        latency = {"latency_ms": steps(1.05 ** (number % 2), 0.001)}
        made.sweep({EAGER: latency}, protocol={"name": "quick", "budget_s": 0.6, "rounds": 1})
    after = {EAGER: {"latency_ms": steps(1.08, 0.001)}}
    for protocol, verdict in (
        ({"name": "mine", "budget_s": 0.6, "rounds": 1}, "ambiguous"),
        ({"budget_s": 5.0, "rounds": 1}, "slower"),
    ):
        found = compared(
            made, made.sweep({EAGER: FAST}, protocol=protocol), made.sweep(after, protocol=protocol)
        )
        assert verdicts(found) == {"eager": verdict}, protocol


def test_after_an_update_in_mid_sweep_the_new_environment_counts(made):
    """Its trials come last, although a resumed sweep keeps the old ones."""
    old = environment(torch_version="2.12.0")
    before = made.sweep({EAGER: FAST}, env=old)
    after = made.sweep({EAGER: FAST}, env=old, rounds=2, host={"environments": {old.id: {}}})
    with Store.open(made.path, mode="write") as store:
        store.note_environments(after, {environment().id: {}})
    made.sweep({EAGER: SLOW}, into=after)
    assert verdicts(compared(made, before, after)) == {"eager": "slower"}


def test_of_one_host_the_fence_is_its_own(made):
    for number in range(16):
        latency = {"latency_ms": steps(1.05 ** (number % 2), 0.001)}
        made.sweep({EAGER: latency}, host={"hostname": "ab"[number % 2]})
    for hosts, verdict in (
        (("a", "b"), "ambiguous"),  # from host to host it moves
        (("c", "c"), "ambiguous"),  # too few of its own: all tell
        (("a", "a"), "slower"),  # host a itself never moved
    ):
        before = made.sweep({EAGER: FAST}, host={"hostname": hosts[0]})
        after = made.sweep({EAGER: {"latency_ms": steps(1.08, 0.001)}}, host={"hostname": hosts[1]})
        assert verdicts(compared(made, before, after)) == {"eager": verdict}, hosts
        made.delete_sweep(before)
        made.delete_sweep(after)


def test_of_two_gpus_one_is_chosen(made):
    sweeps = []
    for figures in (FAST, SLOW):
        sweeps.append(made.sweep({EAGER: FAST}))
        made.sweep({EAGER: figures}, env=A100, into=sweeps[-1])
    with pytest.raises(UsageError, match="choose one with --on"):
        compared(made, *sweeps)
    assert verdicts(compared(made, *sweeps, on="a100")) == {"eager": "slower"}
    assert verdicts(compared(made, *sweeps, on="H200")) == {"eager": "same"}


def test_a_sweep_that_did_not_end_is_noted_although_every_cell_has_trials(made):
    half = a_cell(dtype="float16")
    whole, part = (
        made.sweep([EAGER, half]),
        made.sweep([EAGER, half], state="interrupted", rounds=2),
    )
    note = f"{part} is interrupted, not completed: only its measured cells are compared"
    assert compared(made, whole, part).notes == halves(made, part, "dtype").notes == [note]


def test_two_interpreters_in_turns(made):
    drift = [1.0, 1.2, 1.4, 1.6, 1.8]
    old = environment(flags={"interpreter": "/venvs/old/bin/python"}, torch_version="2.11.0")
    new = environment(flags={"interpreter": "/venvs/new/bin/python"})
    sweep = made.sweep({EAGER: {"latency_ms": drift}}, env=old)
    slower = [
        value * factor
        for value, factor in zip(drift, (1.05, 1.051, 1.049, 1.05, 1.05), strict=True)
    ]
    made.sweep({EAGER: {"latency_ms": slower}}, env=new, into=sweep)
    found = halves(made, sweep, "python")
    assert (found.before.title, found.after.title) == ("python=old", "python=new")
    assert verdicts(found) == {"eager": "slower"}
    assert found.interleaved
    assert found.differences[0] == "torch_version 2.11.0 → 2.13.0"
    assert verdicts(halves(made, sweep, "torch_version", values=["2.13.0", "2.11.0"])) == {
        "eager": "faster"
    }
    with pytest.raises(UsageError, match="has python=old, new; choose two of them"):
        halves(made, sweep, "python", values=["old", "newer"])


def test_by_a_parameter(made):
    half, double = a_cell(dtype="float16"), a_cell(bs=16)
    sweep = made.sweep(
        {EAGER: FAST, half: SLOW, double: FAST, a_cell(dtype="float16", bs=16): FAST}
    )
    found = halves(made, sweep, "dtype")
    rows = {one.about.bs: one for one in found.changes if one.metric == "latency_ms"}
    assert {bs: one.verdict for bs, one in rows.items()} == {8: "slower", 16: "same"}
    assert (rows[8].key, rows[8].name) == (EAGER.key, "mlp bs=8 eager")
    assert (found.before.title, found.after.title) == ("dtype=bfloat16", "dtype=float16")
    # an exception holds where either side fits it
    for dtype, ignored in (("float16", True), ("bfloat16", True), ("float32", False)):
        rules = [{"dtype": dtype, "ignore": True, "reason": "rounding"}]
        found = halves(made, sweep, "dtype", settings={"exceptions": rules})
        assert found.changes[0].verdict == "slower"
        assert (found.changes[0].ignored, not found.notes) == (ignored, ignored)


def test_by_models_whose_cache_follows_bs(made):
    def cached(name, bs, width=64):
        return replace(
            a_cell(bs=bs), model={"name": name, "module": {"width": width, "max_batch": bs}}
        )

    sweep = made.sweep(
        {cached(name, bs): of for name, of in (("a", FAST), ("b", SLOW)) for bs in (1, 8)}
    )
    rows = [one for one in halves(made, sweep, "model").changes if one.metric == "latency_ms"]
    assert {one.about.bs: one.verdict for one in rows} == {1: "slower", 8: "slower"}
    assert "status" not in {one.metric for one in halves(made, sweep, "bs").changes}, (
        "all cells have partners"
    )
    wide = made.sweep([cached("a", bs, width) for bs in (1, 8) for width in (64, 256)])
    found = halves(made, wide, "model")
    assert [side.title for side in (found.before, found.after)] == [
        "model=a (module.width=64)",
        "model=a (module.width=256)",
    ]


def test_a_reference_may_be_a_baseline(made):
    first, second = made.sweep([EAGER]), made.sweep([EAGER], env=A100)
    with Store.open(made.path, mode="write") as store:
        store.set_baseline("main", first)
        assert find(store, "main").id == first
        assert find(store, second).id == find(store, "last").id == second
        store.set_baseline("main", second)
        assert find(store, "main", on="h200").id == first
        store.set_baseline("old", first)
        # as a check chooses
        for other, chosen in ((first, first), (second, second), ("old", first)):
            assert find(store, "main", other=other).id == chosen
        for other in (None, "main"):
            with pytest.raises(
                UsageError, match=r"'main' is set on .*A100.*, .*H200; choose one with --on"
            ):
                find(store, "main", other=other)


def chosen(made, sweep, on=None, any_hardware=False):
    with Store.open(made.path) as store:
        return baseline_of(store, "main", store.find_sweep(sweep), on, any_hardware)


def set_main(made, sweep):
    with Store.open(made.path, mode="write") as store:
        store.set_baseline("main", sweep)


def test_a_sweep_on_several(made):
    def swept(*names):
        sweep = None
        for name in names:
            sweep = made.sweep([a_cell()], env=environment(gpu_name=f"NVIDIA {name}"), into=sweep)
        return sweep

    both, sweep = swept("L40S", "A100"), swept("L40S", "A100", "L4")
    set_main(made, both)
    with pytest.raises(
        UsageError, match="is set on NVIDIA A100, NVIDIA L40S; choose one with --on"
    ):
        chosen(made, sweep)
    assert chosen(made, sweep, on="a100").hardware == "NVIDIA A100"
    # a name in full goes before a part
    for on in ("NVIDIA L4", "nvidia l4", "L4"):
        with pytest.raises(NothingFoundError, match="not on NVIDIA L4; "):
            chosen(made, sweep, on=on)
    here = swept("L4")
    set_main(made, here)
    assert [chosen(made, sweep, on=on).sweep_id for on in ("NVIDIA L4", "l4", "l40")] == [
        here,
        here,
        both,
    ]
    with pytest.raises(
        NothingFoundError, match="the sweep ran on NVIDIA L4, not on NVIDIA A100; choose"
    ):
        chosen(made, here, on="A100")


def test_other_hardware_only_if_asked_for(made):
    set_main(made, made.sweep([a_cell()], env=environment(gpu_name="NVIDIA A100")))
    sweep = made.sweep([a_cell()])
    with pytest.raises(NothingFoundError, match="is set on NVIDIA A100, not on NVIDIA H200"):
        chosen(made, sweep)
    assert chosen(made, sweep, any_hardware=True).hardware == "NVIDIA A100"


def test_what_was_not_judged_is_said():
    def line(*changes):
        return verdict_line(Compared(None, None, "H", [], list(changes), [], Limits()), "main")

    same = Change("0123456789abcdef", "mlp", "latency_ms", Verdict.SAME, before=1.0, after=1.0)
    hazy, status = replace(same, verdict=Verdict.AMBIGUOUS), replace(same, metric=STATUS)
    assert "1 of 2 rows could not be judged" in line(same, hazy)
    assert line(hazy).endswith("1 of 1 rows could not be judged; no latency could be judged")
    assert line(replace(same, verdict=Verdict.BROKEN, ignored=True)).endswith("ignored: 1 broken")
    assert "1 of 2 cells have figures in both sweeps" in line(
        same, status, replace(hazy, key="a", before=None)
    )
