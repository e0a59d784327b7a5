"""Marked results in comparisons: their times are shown and have no verdict, whatever the figures
say."""

import json
from xml.etree import ElementTree

import pytest
from made_history import STEP, Made
from made_pairs import pair, side
from made_sweeps import DEFAULT, EAGER, FAST, GRAPH, SLOW, steps
from test_comparison_rerun import again

from effbench.comparison.compare import compare_sweeps
from effbench.comparison.limits import limits_of
from effbench.comparison.verdicts import counted, judge
from effbench.store import Store

BUSY = "host busy for 83 % of the timing"
FASTER = {"latency_ms": steps(0.5, 0.001)}


def marked(figures):
    return {**figures, "disturbance": BUSY}


@pytest.fixture
def checked(made, effbench):
    """Set the first sweep as `main`, run the second, check it."""

    def call(before, after, *options):
        first = made.sweep(before)
        assert effbench("baseline", "set", "main", first).code == 0
        made.sweep(after)
        return effbench("check", "--baseline", "main", *options)

    return call


@pytest.mark.parametrize("after", [FAST, SLOW])
@pytest.mark.parametrize("which", ["before", "now", "before and now"])
def test_no_time_of_a_marked_result_has_a_verdict(made, which, after):
    old = marked(FAST) if "before" in which else FAST
    new = marked(after) if "now" in which else after
    sweeps = [made.sweep({EAGER: old, DEFAULT: FAST}), made.sweep({EAGER: new, DEFAULT: FAST})]
    with Store.open(made.path) as store:
        found = compare_sweeps(store, *map(store.find_sweep, sweeps), limits_of({}))
    eager = [change for change in found.changes if change.about.mode == "eager"]
    times = {change.metric: change for change in eager if change.is_unjudged}
    assert {"latency_ms", "period_ms", "gpu_busy_ms", "energy_mj", "first_call_s"} <= set(times)
    row = times["latency_ms"]
    assert (row.verdict, row.p_value, row.low, row.gates) == ("ambiguous", None, None, False)
    assert row.reason == f"host disturbed {which}: {BUSY}"
    assert (row.marked_before, row.marked_after) == ("before" in which, "now" in which)
    assert row.ratio == pytest.approx(row.after / row.before), "the figures are there"
    assert (found.judged, set(found.unjudged)) == ({DEFAULT.key}, {EAGER.key})
    assert not any(line.mode == "eager" for line in found.modes), "no mean of marked figures"


def disturbed(**figures):
    result = side(**figures)
    object.__setattr__(result, "disturbance", BUSY)
    return result


def test_counts_and_memory_of_a_marked_result_are_judged():
    old, new = side(kernels=[3] * 5, latency_ms=[1.0]), disturbed(kernels=[9] * 5, latency_ms=[1.0])
    verdicts = {row.metric: str(row.verdict) for row in judge([pair(old, new)], limits_of({}))}
    assert verdicts == {"kernels": "slower", "latency_ms": "ambiguous"}


def test_a_marked_row_does_not_change_the_tests_of_others():
    odd = pair(side(latency_ms=steps(1, 0.02)), side(latency_ms=steps(1.075, 0.02)), "odd")
    quiet = steps(1, 0.02)
    others = [
        pair(side(latency_ms=quiet), disturbed(latency_ms=quiet), str(number))
        for number in range(99)
    ]
    rows = judge([odd, *others], limits_of({}))
    assert counted(rows) == "1 slower, 99 not judged"


STRICT = ("--set", "on_unjudged=fail")


@pytest.mark.parametrize(
    ("before", "after", "options", "code"),
    [
        ({EAGER: FAST}, {EAGER: marked(SLOW)}, (), 3),
        ({EAGER: marked(FAST)}, {EAGER: FAST}, (), 3),
        ({EAGER: FAST, DEFAULT: FAST}, {EAGER: marked(SLOW), DEFAULT: FAST}, (), 0),
        ({EAGER: FAST, DEFAULT: FAST}, {EAGER: marked(FAST), DEFAULT: SLOW}, (), 1),
        ({EAGER: FAST}, {EAGER: marked(FAST)}, STRICT, 1),
        ({EAGER: FAST}, {EAGER: FAST}, STRICT, 0),
        ({EAGER: FAST}, {EAGER: marked(FAST)}, ("--metric", "kernels"), 0),
        ({EAGER: FAST}, {EAGER: marked({**FAST, "kernels": 99})}, (), 1),
    ],
)
def test_exit_codes(checked, before, after, options, code):
    done = checked(before, after, *options)
    assert (done.code, done.err) == (code, "")
    assert ("nothing was checked against main" in done.out) is (code == 3)


def test_the_output_lists_marked_cells_and_how_to_measure_them_again(made, checked, effbench):
    three = {EAGER: FAST, DEFAULT: FAST, GRAPH: FAST}
    done = checked(
        three, {EAGER: FAST, DEFAULT: marked(SLOW), GRAPH: marked(FAST)}, "--floor", "3%"
    )
    text = " ".join(done.out.split())
    assert "not judged: host disturbed in 2 of 3 cells: " in text
    assert "~ not judged" in text and "~1.10 ms" in text
    command = done.out.split("measure them again: ")[1].splitlines()[0]
    with Store.open(made.path) as store:
        sweep = store.find_sweep("last").id
    assert command == f"effbench check --baseline main --sweep {sweep} --confirm --floor 3%"
    check = ("check", "--baseline", "main", "--format")
    whole = json.loads(effbench(*check, "json", "--floor", "3%").out)
    assert whole["measure_again"] == command and whole["passed"] is True
    assert [row["reason"] for row in whole["unjudged"]] == [f"host disturbed now: {BUSY}"] * 2
    csv = effbench(*check, "csv")
    assert "not judged: host disturbed in 2 of 3 cells" in csv.err and "not judged" not in csv.out
    root = ElementTree.fromstring(effbench(*check, "junit", *STRICT).out)
    assert {failure.get("type") for failure in root.iter("failure")} == {"not judged"}


MEASURED = "measured again: 1.100 (1.100–1.100) (old and new alternating, 5 pairs)"


@pytest.mark.parametrize(
    ("new", "old", "verdict", "said"),
    [
        (SLOW, FAST, "slower", MEASURED),
        (FAST, FAST, "same", "measured again: 1.000 (1.000–1.000)"),
        (FASTER, FAST, "faster", "measured again: 0.500"),
        (marked(SLOW), FAST, "ambiguous", f"host disturbed now: {BUSY}, when run again"),
        # the baseline's recorded figures are not marked
        (SLOW, None, "slower", "measured again: 1.100"),
        (FAST, None, "same", "measured again: 1.000"),
    ],
)
def test_a_re_run_judges_marked_rows(made, new, old, verdict, said):
    judged, rows = again(made, {EAGER: new}, old and {EAGER: old}, after=marked(SLOW))
    row = next(row for row in rows if row.metric == "latency_ms")
    assert (row.verdict, row.gates) == (verdict, verdict == "slower")
    assert said in row.reason
    assert bool(judged.unjudged) is row.is_unjudged is (verdict == "ambiguous")
    # the figures stay those of the sweep
    assert row.ratio == pytest.approx(1.1) and row.marked_after


def test_the_new_side_alone_does_not_judge_a_marked_baseline(made):
    judged, rows = again(made, {EAGER: SLOW}, None, before=marked(FAST))
    assert all(row.is_unjudged for row in rows if row.metric == "latency_ms") and judged.unjudged


def test_marked_results_make_no_change_point():
    made = Made()
    for value in STEP:
        made.sweep().result(latency_ms=value, kernels=3, marked=value > 1.05)
    found = made.judge("latency_ms", "kernels")
    assert found.changes == [] and found.marked_results == 15


@pytest.mark.parametrize(("why", "changes"), [(None, 1), ("of eager: host busy", 0)])
def test_marked_speedups_make_no_change_point(why, changes):
    """They have marks of their own: the baseline may be marked, or pairs may not be."""
    made = Made()
    for value in STEP:
        disturbance = why if value > 1.05 else None
        made.sweep().result(speedup=value, speedup_disturbance=disturbance, marked=why is None)
    assert len(made.judge("speedup").changes) == changes
