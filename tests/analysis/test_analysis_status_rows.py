"""The rows of cells that were not measured on one side, or whose status changed."""

import pytest
from made_sweeps import steps

from effbench.analysis.limits import limits_of
from effbench.analysis.screen import STATUS, Pair, Side, screen
from effbench.analysis.verdicts import Verdict

ABOUT = {"model": "mlp", "bs": 8, "mode": "eager", "dtype": "float32", "phase": "inference", "device": "cuda",
         "hardware": "H"}  # fmt: skip
GATING = (Verdict.SLOWER, Verdict.BROKEN, Verdict.MISSING)


def side(status, reason=None, **figures):
    return Side(status, reason, None, {name: dict(enumerate(values)) for name, values in figures.items()})


def pair(before, after, why=None):
    return Pair("a", "a", ABOUT, before, after, why)


@pytest.mark.parametrize(
    ("before", "after", "verdict", "reason"),
    [
        (side("ok"), side("error", "boom"), "broken", "error: boom (ok before)"),
        (side("ok"), side("oom"), "broken", "oom (ok before)"),
        (side("ok"), side("degraded", "skipped"), "broken", "degraded: skipped (ok before)"),
        (side("ok"), side("unsupported", "no"), "broken", "unsupported: no (ok before)"),
        (side("crashed", "signal 11"), side("ok"), "fixed", "ok now (before crashed: signal 11)"),
        (side("degraded", "skipped"), side("ok"), "fixed", "ok now (before degraded: skipped)"),
        (side("oom", "20 GiB"), side("oom", "21 GiB"), "same", "no figures on either side: oom: 21 GiB"),
        (side("error", "x"), side("crashed"), "same", "no figures on either side: crashed (before error: x)"),
        (side("crashed"), side("oom"), "same", "no figures on either side: oom (before crashed)"),
        (side("oom"), side("error", "x"), "broken", "error: x (before oom)"),
        (side("unsupported", "no"), side("crashed", "9"), "broken", "crashed: 9 (before unsupported: no)"),
        (side("degraded", "skipped"), side("error", "x"), "broken", "error: x (before degraded: skipped)"),
        (side("noisy", "throttled"), side("error", "x"), "broken", "error: x (before noisy: throttled)"),
        (side("noisy"), side("degraded", "skipped"), "broken", "degraded: skipped (before noisy)"),
        (side("error", "x"), side("degraded", "skipped"), "fixed", "degraded: skipped (before error: x)"),
        (side("error", "x"), side("noisy", "hot"), "fixed", "noisy: hot (before error: x)"),
        (side("ok"), side("noisy", "throttled"), "ambiguous", "now noisy: throttled"),
        (side("noisy", "hot"), side("noisy", "hotter"), "ambiguous", "before noisy: hot; now noisy: hotter"),
        (side("noisy", "throttled"), side("ok"), "ambiguous", "before noisy: throttled"),
        (side("ok"), None, "missing", None),
        (None, side("ok"), "new", None),
        (None, side("error", "boom"), "new", "error: boom"),
    ],
)
def test_a_cell_of_another_status_has_one_row(before, after, verdict, reason):
    (change,) = screen([pair(before, after)], limits_of({}))
    assert (change.metric, change.verdict, change.reason) == (STATUS, verdict, reason)
    assert change.gates is (change.verdict in GATING)


def test_degraded_on_both_sides_is_compared():
    cell = pair(side("degraded", latency_ms=steps(1, 0.001)), side("degraded", latency_ms=steps(1.1, 0.001)))
    assert [(one.metric, one.verdict) for one in screen([cell], limits_of({}))] == [("latency_ms", "slower")]


def test_nobody_misses_a_cell_that_gave_no_figures():
    for status, gates in (("ok", True), ("noisy", True), ("degraded", True), ("oom", False), ("error", False)):
        (change,) = screen([pair(side(status, "x"), None, why="not in the plan")], limits_of({}))
        assert (change.verdict, change.gates, change.ignored) == (Verdict.MISSING, gates, not gates)
        assert (f"it gave no figures before: {status}: x" in change.reason) is not gates


def test_missing_can_be_ignored():
    cell = pair(side("ok"), None, why="not in the plan")
    (change,) = screen([cell], limits_of({"on_missing": "ignore"}))
    assert (change.verdict, change.gates, change.ignored) == (Verdict.MISSING, False, True)
    (broken,) = screen([pair(side("ok"), side("oom"))], limits_of({"on_missing": "ignore"}))
    assert broken.gates
