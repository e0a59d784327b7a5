"""What becomes of a flagged row when its cell was run again, by what came out on both sides."""

from types import SimpleNamespace

import pytest
from made_pairs import compared, rows_of
from made_sweeps import DEFAULT, EAGER, FAST, MIB, SLOW, environment, steps

from effbench.analysis.confirm import (
    Rerun,
    check_machine,
    duet_budget_s,
    flagged_of,
    judge_again,
    may_be_slower,
    trial_seconds,
)
from effbench.analysis.matching import load
from effbench.analysis.verdicts import ONE_TIME, Change, Verdict
from effbench.core.cell import Status, Trial
from effbench.core.errors import UsageError
from effbench.core.meeting import ALONE, DUET
from effbench.run.duets import Duets
from effbench.stats.intervals import LogEstimate
from effbench.stats.significance import RatioTest
from effbench.store import Store

CRASHED = {"status": "crashed", "reason": "signal 11"}
MARKED = {**FAST, "disturbance": "throttled"}
ONE_MARKED = {**SLOW, "disturbance": [None] * 4 + ["throttled"]}
HERE = environment(flags={"interpreter": "here"})
THERE = environment(flags={"interpreter": "/venvs/old/bin/python"})


def duets_with(facts):
    """Duets of EAGER, of which each trial records these facts."""
    trials = [
        Trial(
            EAGER.key,
            number,
            Status.OK,
            extra={DUET: facts},
        )
        for number in range(3)
    ]
    return {EAGER.key: Duets(trials, trials)}


IN_TURN = duets_with({"leads": True})
#: Figures of a check with an ambiguous row.
NOISY = {"before": {"latency_ms": steps(1.0, 0.1)}, "after": {"latency_ms": steps(1.05, 0.1)}}


def again(made, news, olds, before=FAST, after=SLOW, duets=None):
    """The rows of a check whose cells looked slower, after they were run again; `olds`: on the
    baseline's side."""
    first, second = (made.sweep(dict.fromkeys(news, figures)) for figures in (before, after))
    rerun_id = made.sweep(news, env=HERE)
    made.sweep(olds, env=THERE, into=rerun_id)
    found = compared(made, first, second)
    with Store.open(made.path) as store:
        side = load(store, store.find_sweep(rerun_id))
        old, new = (store.history(rerun_id, env.id) for env in (THERE, HERE))
    flagged = flagged_of(found)
    assert flagged
    rerun = Rerun(
        side.within([THERE.id]),
        side.within([HERE.id]),
        duets or {key: Duets(old[key], new[key]) for key in old},
    )
    judge_again(found, flagged, rerun)
    return found, flagged


TESTED = RatioTest(1.0, LogEstimate(0.0, None, 0))


@pytest.mark.parametrize(
    ("metric", "verdict", "ratio", "test", "is_one"),
    [
        ("latency_ms", "slower", 1.1, TESTED, True),
        ("latency_ms", "ambiguous", 1.03, TESTED, True),
        ("latency_ms", "ambiguous", 1.01, TESTED, False),
        ("compile_cold_s", "ambiguous", 2.0, None, True),
        ("compile_cold_s", "ambiguous", 1.1, None, False),
        ("status", "ambiguous", None, None, False),
    ],
)
def test_which_rows_are_run_again(metric, verdict, ratio, test, is_one):
    change = Change(
        "a",
        "a",
        metric,
        Verdict(verdict),
        ratio=ratio,
        test=test,
        limit=0.02 if test else 0.5,
    )
    assert may_be_slower(change) is is_one


@pytest.mark.parametrize(
    ("new", "old", "verdict", "said"),
    [
        (SLOW, FAST, "slower", "confirmed: 1.100 (1.100–1.100) (old and new alternating, 5 pairs)"),
        (FAST, FAST, "ambiguous", "not confirmed: 1.000"),
        (CRASHED, FAST, "broken", "run again: crashed: signal 11"),
        # both fail: nothing was learnt, and the gate stays shut
        (CRASHED, CRASHED, "slower", "failed when run again (before crashed: signal 11; now crash"),
        (FAST, CRASHED, "slower", "failed when run again (before crashed: signal 11; now ok)"),
        # a disturbed machine tells nothing either
        (MARKED, FAST, "slower", "host disturbed now: throttled, when run again"),
        (FAST, MARKED, "slower", "host disturbed before: throttled, when run again"),
        (ONE_MARKED, FAST, "slower", "confirmed nor refuted: 1.100 (1.100–1.100), but only 4"),
        ({"latency_ms": None}, FAST, "slower", "nor refuted: no figure when run again"),
    ],
)
def test_what_becomes_of_a_flagged_row(made, new, old, verdict, said):
    _, (row,) = again(made, {EAGER: new}, {EAGER: old})
    assert row.metric == "latency_ms"
    assert row.verdict == verdict
    assert said in row.reason
    assert row.gates is (verdict != "ambiguous")
    assert row.ratio == pytest.approx(1.1), "the figures stay those of the sweep"


def compiled(size, cold=3):
    """The figures of a cell that compiled in the first `cold` of five rounds, for so many seconds
    and in as many times 10 MiB."""
    warm = 5 - cold
    return {
        **FAST,
        "compilation": [*range(cold), *range(warm)],
        "compile_cache": ["cold"] * cold + ["warm"] * warm,
        "compile_s": [float(size)] * cold + [0.5] * warm,
        "peak_reserved_bytes": size * 10 * MIB,
    }


@pytest.mark.parametrize(
    ("metric", "new", "old", "cold", "verdict", "said"),
    [
        ("compile_cold_s", 10, 10, 3, "ambiguous", "not confirmed: 1.000"),
        ("compile_cold_s", 10, 4, 3, "slower", "confirmed: 2.500 (old and new alternating)"),
        # one compilation each raises no alarm, but runs again
        ("compile_cold_s", 10, 4, 1, "slower", f"{ONE_TIME}; confirmed: 2.500 (old and new"),
        ("compile_cold_s", 4, 4, 1, "same", f"{ONE_TIME}; not confirmed: 1.000"),
        ("peak_reserved_cold_bytes", 10, 4, 1, "slower", "; confirmed: 2.500"),
    ],
)
def test_what_becomes_of_compilations(made, metric, new, old, cold, verdict, said):
    """There are fewer than pairs of times must be."""
    before, after = compiled(4, cold), compiled(10, cold)
    sides = {DEFAULT: compiled(new)}, {DEFAULT: compiled(old)}
    found, _ = again(
        made,
        *sides,
        before=before,
        after=after,
    )
    (row,) = rows_of(found, metric)
    assert (row.verdict, said in row.reason) == (verdict, True), row.reason


OURS, THEIRS = (
    {"compilation": [0, 1, 2, 0, 1], "kernel_fingerprint": [f"{name}-tuned" for name in names]}
    for names in ("abcab", "xyzxy")
)


@pytest.mark.parametrize(
    ("new", "old", "verdict", "said"),
    [
        (SLOW, FAST, "slower", "confirmed: 1.100 (1.100–1.100) (old and new alternating"),
        (FAST, FAST, "same", "not confirmed: 1.000 (1.000–1.000)"),
        (
            {"latency_ms": steps(1.021, 0.002)},
            FAST,
            "ambiguous",
            "5 pairs); not significantly beyond 2.0 %",
        ),
        (SLOW, CRASHED, "ambiguous", "neither confirmed nor refuted: failed when run again"),
        ({**SLOW, **THEIRS}, {**FAST, **OURS}, "ambiguous", "the compiler chose other kernels"),
    ],
)
def test_what_becomes_of_an_ambiguous_row(made, new, old, verdict, said):
    """One that noise hides among the trials of the first look."""
    _, (row,) = again(made, {EAGER: new}, {EAGER: old}, **NOISY)
    assert row.metric == "latency_ms"
    assert row.verdict == verdict
    assert said in row.reason


def test_duets_need_fewer_pairs(made):
    new, old = ({"latency_ms": [*steps(time, 0.001)[:3], None, None]} for time in (1.1, 1.0))
    _, (row,) = again(
        made,
        {EAGER: new},
        {EAGER: old},
        duets=IN_TURN,
    )
    assert row.verdict == "slower"
    assert "old and new as duets, 3 duets" in row.reason


def test_duets_that_exclude_a_slowdown_are_enough(made):
    """A gate does not care whether the cell became faster."""
    rerun = {EAGER: {"latency_ms": steps(0.985, 0.01)}}
    _, (row,) = again(
        made,
        rerun,
        {EAGER: FAST},
        duets=IN_TURN,
        **NOISY,
    )
    assert row.verdict == "same"
    assert row.gates is False
    assert row.reason.endswith("(old and new as duets, 5 duets); no slowdown beyond 2.0 %")


def test_why_cells_did_not_run_as_duets_is_a_note(made):
    judged, _ = again(
        made,
        {EAGER: SLOW},
        {EAGER: FAST},
        duets=duets_with({ALONE: "no room"}),
    )
    assert "some rounds were not timed in turn: no room" in judged.notes


@pytest.mark.parametrize(
    ("latency_ms", "budget_s"), [(2.0, 1.0), (100.0, 3.0)], ids=["quick calls", "slow calls"]
)
def test_how_long_each_side_of_a_duet_is_timed(made, latency_ms, budget_s):
    sweeps = [made.sweep({EAGER: {"latency_ms": time}}) for time in (latency_ms / 2, latency_ms)]
    assert duet_budget_s(compared(made, *sweeps)) == pytest.approx(budget_s)


@pytest.mark.parametrize(
    ("which", "changed", "error"),
    [
        ("new", {"gpu_name": "NVIDIA A100"}, "this machine has NVIDIA A100, not NVIDIA H200"),
        ("new", {"torch_version": "2.99"}, "not that of the sweep .torch_version 2.13.0 → 2.99"),
        ("old", {"torch_version": "2.99"}, "baseline's interpreter has changed .torch_version 2.1"),
    ],
)
def test_another_machine_settles_nothing(made, which, changed, error):
    found = compared(made, made.sweep([EAGER]), made.sweep([EAGER]))
    pools = {}
    for side in ("old", "new"):
        machine = SimpleNamespace(environment=environment())
        pools[side] = SimpleNamespace(machine=machine)
    check_machine(found, pools, "old", "new")
    pools[which].machine.environment = environment(**changed)
    with pytest.raises(UsageError, match=error):
        check_machine(found, pools, "old", "new")


@pytest.mark.parametrize(("saved_s", "seconds"), [(0.0, 4.0), (2.5, 1.5), (3.5, 1.0)])
def test_a_trial_of_a_re_run_takes_as_long_as_those_of_the_sweep(made, saved_s, seconds):
    sweep = made.sweep({DEFAULT: {"wall_s": [6.0, 2.0]}, EAGER: {"wall_s": [60.0, 60.0]}}, rounds=2)
    with Store.open(made.path) as store:
        side = load(store, store.find_sweep(sweep))
    assert trial_seconds(side, [DEFAULT], saved_s) == pytest.approx(seconds)
