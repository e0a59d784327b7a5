"""Every status before against every status now."""

import itertools

import pytest

from effbench.analysis.statuses import CLASSES, gives_figures, is_guarded, is_worse, verdict_of_statuses
from effbench.cell import FAILURES, SEVERITY, Status

EVERY = list(itertools.product(Status, repeat=2))


def test_every_status_has_a_class():
    assert set(CLASSES) == set(Status)
    assert {status for status in Status if CLASSES[status] == max(CLASSES.values())} == FAILURES
    ranks = [CLASSES[status] for status in reversed(SEVERITY)]
    assert ranks == sorted(ranks)


@pytest.mark.parametrize(("before", "now"), EVERY)
def test_figures_that_are_gone_are_broken_and_those_that_came_are_fixed(before, now):
    verdict = verdict_of_statuses(before, now)
    if before.is_measured and not now.is_measured:
        assert verdict == "broken"
    if now.is_measured and not before.is_measured:
        assert verdict == "fixed"
    if before is now:
        expected = "ambiguous" if now is Status.NOISY else None if now.is_measured else "same"
        assert verdict == expected
    # what is broken one way round is never broken, nor the same, the other way round, where it gives figures
    if verdict == "broken" and before.is_measured:
        assert verdict_of_statuses(now, before) == "fixed"
    assert is_worse(before, now) is (verdict == "broken")


@pytest.mark.parametrize(
    ("before", "now", "verdict"),
    [
        ("ok", "degraded", "broken"),
        ("noisy", "degraded", "broken"),
        ("ok", "noisy", "ambiguous"),
        ("degraded", "ok", "fixed"),
        ("unsupported", "error", "broken"),  # an answer became a failure
        ("oom", "incorrect", "broken"),
        ("oom", "unsupported", "same"),
        ("error", "unsupported", "same"),  # better, and still nothing to use
        ("timeout", "incorrect", "same"),
        ("degraded", "degraded", None),
    ],
)
def test_by_hand(before, now, verdict):
    assert verdict_of_statuses(before, now) == verdict


def test_what_was_not_measured():
    for status in Status:
        assert verdict_of_statuses(None, status) == "new"
        assert verdict_of_statuses(status, None) == "missing"
        assert is_guarded(status, None) is gives_figures(status) is status.is_measured
        assert not is_worse(status, None)
    assert not gives_figures(None)
    with pytest.raises(ValueError, match="neither side"):
        verdict_of_statuses(None, None)
    with pytest.raises(ValueError, match="slow"):
        verdict_of_statuses("ok", "slow")
