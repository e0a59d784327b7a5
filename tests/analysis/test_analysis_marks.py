"""Marked results in comparisons: their times are shown and have no verdict, whatever the figures
say."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from made_history import STEP, Made
from made_pairs import compared, pair, side, timed
from made_sweeps import DEFAULT, EAGER, FAST, GRAPH, SLOW, environment, steps
from test_analysis_rerun import again
from whole_sweeps import info_of

from effbench.analysis.limits import limits_of
from effbench.analysis.verdicts import judge, tally
from effbench.core.cell import Cell

BUSY = "host busy for 83 % of the timing"


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


def test_no_time_of_a_marked_result_has_a_verdict(made):
    sweeps = [made.sweep({EAGER: eager, DEFAULT: FAST}) for eager in (FAST, marked(SLOW))]
    found = compared(made, *sweeps)
    unjudged = [change for change in found.changes if change.is_unjudged]
    times = {"latency_ms", "period_ms", "gpu_busy_ms", "energy_mj", "first_call_s"}
    assert times <= {change.metric for change in unjudged}
    assert {change.key for change in unjudged} == set(found.unjudged) == {EAGER.key}
    assert found.judged == {DEFAULT.key}
    assert {line.mode for line in found.modes} == {"default"}, "marked figures have no mean"


def disturbed(**figures):
    return side(disturbance=BUSY, **figures)


@pytest.mark.parametrize("which", ["before", "now", "before and now"])
def test_the_figures_of_a_marked_result_are_shown_with_the_reason(which):
    before, after = (disturbed if when in which else side for when in ("before", "now"))
    cell = pair(before(latency_ms=[1.0] * 5), after(latency_ms=[1.1] * 5))
    (change,) = judge([cell], limits_of({}))
    assert change.verdict == "ambiguous"
    assert change.p_value is change.low is None
    assert not change.gates
    assert change.reason == f"host disturbed {which}: {BUSY}"
    assert change.marked_before == ("before" in which)
    assert change.marked_after == ("now" in which)
    assert change.ratio == pytest.approx(1.1)


def test_counts_and_memory_of_a_marked_result_are_judged():
    old = side(kernels=[3] * 5, latency_ms=[1.0])
    new = disturbed(kernels=[9] * 5, latency_ms=[1.0])
    verdicts = {row.metric: row.verdict for row in judge([pair(old, new)], limits_of({}))}
    assert verdicts == {"kernels": "slower", "latency_ms": "ambiguous"}


def test_a_marked_row_does_not_change_the_tests_of_others():
    quiet = steps(1, 0.02)
    odd = timed(quiet, steps(1.075, 0.02), "odd")
    others = [
        pair(side(latency_ms=quiet), disturbed(latency_ms=quiet), str(number))
        for number in range(99)
    ]
    rows = judge([odd, *others], limits_of({}))
    assert tally(rows) == "1 slower, 99 not judged"


STRICT = ("--set", "on_unjudged=fail")


@pytest.mark.parametrize(
    ("before", "after", "options", "code"),
    [
        ({EAGER: FAST}, {EAGER: marked(SLOW)}, (), 3),
        ({EAGER: FAST, DEFAULT: FAST}, {EAGER: marked(SLOW), DEFAULT: FAST}, (), 0),
        ({EAGER: FAST}, {EAGER: marked(FAST)}, STRICT, 1),
        ({EAGER: FAST}, {EAGER: marked(FAST)}, ("--metric", "kernels"), 0),
        ({EAGER: FAST}, {EAGER: marked({**FAST, "kernels": 99})}, (), 1),
    ],
)
def test_exit_codes(checked, before, after, options, code):
    done = checked(before, after, *options)
    assert done.code == code
    assert done.err == ""
    assert ("nothing was checked against main" in done.out) is (code == 3)


@pytest.fixture
def two_marked(checked):
    """Check a sweep with two marked cells of three, in a format."""
    before = {EAGER: FAST, DEFAULT: FAST, GRAPH: FAST}
    after = {EAGER: FAST, DEFAULT: marked(SLOW), GRAPH: marked(FAST)}
    return lambda *options: checked(before, after, *options)


def test_the_output_lists_marked_cells(two_marked):
    text = " ".join(two_marked("--set", "floor=3%").out.split())
    for said in ("not judged: host disturbed in 2 of 3 cells: ", "~ not judged", "~1.10 ms"):
        assert said in text


def cell_of(target):
    mode = {"name": "eager", "_target_": "effbench.modes.eager.Eager"}
    return Cell(
        {"name": "net", "module": {"_target_": target}}, 8, mode, "float32", "inference", "cpu"
    )


def recorded(**changed):
    """What a sweep records of its interpreter, at a commit."""
    facts = {
        "python": sys.executable,
        "folder": str(Path.cwd()),
        "given": [],
        "git_revision": "1" * 40,
        "git_description": "v1",
    }
    return {"environments": {environment().id: facts | changed}}


@pytest.fixture
def marked_check(made, effbench):
    """Check a marked cell of a target with its unmarked baseline; the baseline's record differs in
    these facts."""

    def call(target, *options, **changed):
        cell = cell_of(target)
        made.sweep({cell: FAST}, host=recorded(**changed))
        assert effbench("baseline", "set", "main").code == 0
        made.sweep({cell: marked(SLOW)}, host=recorded(git_revision="2" * 40))
        return effbench("check", "--baseline", "main", *options)

    return call


def test_a_check_tells_how_to_measure_marked_cells_again(made, marked_check):
    done = marked_check("my_pkg.Net", "--set", "floor=3%")
    command = f"check --baseline main --sweep {info_of(made.path).id} --confirm --set floor=3%"
    assert f"measure them again: effbench {command}\n" in done.out


@pytest.mark.parametrize(
    ("target", "changed", "why"),
    [
        (
            "my_pkg.Net",
            {"git_revision": None, "git_description": None},
            "has no Git commit, so its code is unknown; commit it",
        ),
        ("my_pkg.Net", {"git_description": "v1-dirty"}, "with uncommitted changes (v1-dirty)"),
        ("my_pkg.Net", {"git_revision": "2" * 40}, "the baseline would run the same code here"),
        ("torch.nn.Linear", {}, "the baseline would run the same code here"),
        ("my_pkg.Net", {"python": "/nowhere/python"}, "/nowhere/python does not exist here"),
    ],
)
def test_a_check_does_not_suggest_a_confirmation_that_would_be_refused(
    marked_check, target, changed, why
):
    done = marked_check(target, "--format", "json", **changed)
    assert json.loads(done.out)["measure_again"] is None
    text = marked_check(target, **changed).out
    assert "run the sweep again when the machine is quiet (--confirm cannot measure them: " in text
    assert why in text
    assert "effbench check" not in text


def test_a_marked_baseline_has_to_be_measured_again_too(checked):
    done = checked({EAGER: marked(FAST)}, {EAGER: SLOW})
    assert "run both sweeps again when the machine is quiet (" in done.out


def test_json_lists_marked_cells(two_marked):
    answer = json.loads(two_marked("--format", "json").out)
    assert answer["passed"] is True
    assert [row["reason"] for row in answer["unjudged"]] == [f"host disturbed now: {BUSY}"] * 2


def test_csv_leaves_marked_cells_to_the_errors(two_marked):
    done = two_marked("--format", "csv")
    assert "not judged: host disturbed in 2 of 3 cells" in done.err
    assert "not judged" not in done.out


def test_junit_fails_marked_cells_if_they_are_to_fail(two_marked):
    root = ElementTree.fromstring(two_marked("--format", "junit", *STRICT).out)
    assert {failure.get("type") for failure in root.iter("failure")} == {"not judged"}


MEASURED = "measured again: 1.100 (1.100–1.100) (old and new alternating, 5 pairs)"


@pytest.mark.parametrize(
    ("new", "old", "verdict", "said"),
    [
        (SLOW, FAST, "slower", MEASURED),
        (FAST, FAST, "same", "measured again: 1.000 (1.000–1.000)"),
        ({"latency_ms": [0.5] * 5}, FAST, "faster", "measured again: 0.500"),
        (marked(SLOW), FAST, "ambiguous", f"host disturbed now: {BUSY}, when run again"),
    ],
)
def test_a_re_run_judges_marked_rows(made, new, old, verdict, said):
    judged, rows = again(
        made,
        {EAGER: new},
        {EAGER: old},
        after=marked(SLOW),
    )
    row = next(row for row in rows if row.metric == "latency_ms")
    assert row.verdict == verdict
    assert row.gates == (verdict == "slower")
    assert said in row.reason
    assert bool(judged.unjudged) is row.is_unjudged is (verdict == "ambiguous")
    # the figures stay those of the sweep
    assert row.ratio == pytest.approx(1.1)
    assert row.marked_after


def test_marked_results_make_no_change_point():
    made = Made()
    for value in STEP:
        made.sweep().result(latency_ms=value, marked=value > 1.05)
    found = made.judge("latency_ms")
    assert found.changes == []
    assert sum(point.is_marked for point in found.points) == 15


@pytest.mark.parametrize(("why", "changes"), [(None, 1), ("of eager: host busy", 0)])
def test_marked_speedups_make_no_change_point(why, changes):
    """They have marks of their own: the baseline may be marked, or pairs may not be."""
    made = Made()
    for value in STEP:
        disturbance = why if value > 1.05 else None
        made.sweep().result(speedup=value, speedup_disturbance=disturbance, marked=why is None)
    assert len(made.judge("speedup").changes) == changes
