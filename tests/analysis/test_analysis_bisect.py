"""Which settings or commits cause a difference, by invented probes."""

import math
from itertools import combinations

import pytest

from effbench.analysis.bisect import Difference, Probe, minimal_set, suspects
from effbench.core.cell import Status, Trial
from effbench.stats.intervals import LogEstimate
from effbench.stats.significance import RatioTest

SETTINGS = tuple("abcdefg")


@pytest.mark.parametrize("cause", [*combinations("adg", 1), *combinations("adg", 2), tuple("adg")])
def test_settings_that_are_needed_together_are_found(cause):
    assert minimal_set(SETTINGS, lambda names: set(cause) <= set(names)) == cause


def test_without_a_smaller_set_all_settings_are_the_cause():
    assert minimal_set(SETTINGS, lambda names: names == SETTINGS) == SETTINGS


def test_of_two_causes_one_is_enough():
    assert minimal_set(SETTINGS, lambda names: bool({"b", "f"} & {*names})) in [("b",), ("f",)]


def test_effects_that_add_up_are_found_until_they_are_enough():
    parts = {"a": 0.5, "c": 0.35, "f": 0.1}
    found = minimal_set(SETTINGS, lambda names: sum(parts.get(name, 0) for name in names) >= 0.8)
    assert found == ("a", "c")


def test_undecided_probes_explain_nothing_and_are_not_repeated():
    probed = []

    def explains(names):
        probed.append(names)
        if "e" in names and len(names) < 3:
            return None
        return {"a", "e"} <= set(names)

    found = minimal_set(SETTINGS, explains)
    assert len(found) == 3
    assert {"a", "e"} < set(found)
    assert len(probed) == len(set(probed))


COMMITS = tuple(f"c{number}" for number in range(9))


@pytest.mark.parametrize("bad", range(9))
def test_the_commit_is_found_in_few_probes(bad):
    probed = []

    def explains(names):
        probed.extend(names)
        return COMMITS.index(names[0]) >= bad

    assert suspects(COMMITS, explains) == (COMMITS[bad],)
    assert len(probed) <= 4


@pytest.mark.parametrize(("undecided", "found"), [(1, ("c4",)), (2, ("c4", "c5"))])
def test_an_undecided_commit_is_repeated_once_then_skipped(undecided, found):
    probed = []

    def explains(names):
        probed.extend(names)
        if names == ("c4",) and probed.count("c4") <= undecided:
            return None
        return COMMITS.index(names[0]) >= (4 if undecided == 1 else 5)

    assert suspects(COMMITS, explains) == found


# --- differences ---


def ended(status=Status.OK):
    return Trial("a", 0, status, None if status is Status.OK else "why")


def timed(ratio, error=0.01, names=("a",)):
    return Probe(
        names, ended(), ended(), RatioTest.of(LogEstimate(math.log(ratio), error, 4), 0.01)
    )


def failed(status, before=Status.OK):
    return Probe(("a",), ended(before), ended(status))


def difference(whole, metric="latency_ms"):
    return Difference(metric, 0.8, whole)


@pytest.mark.parametrize(
    ("whole", "reason"),
    [
        (timed(1.25), None),
        (timed(0.8), None),
        (timed(1.02), "beyond the noise"),
        (timed(1.005, error=0.001), "beyond the noise"),
        (timed(1.25, error=None), "too few figures"),
        (failed(Status.OK), "too few figures"),
        (failed(Status.INCORRECT), None),
        (failed(Status.OK, before=Status.ERROR), None),
        (failed(Status.ERROR, before=Status.ERROR), "both error: why"),
    ],
)
def test_there_is_a_difference_beyond_the_noise_or_none(whole, reason):
    why = difference(whole).why_none
    assert why is None if reason is None else reason in why


@pytest.mark.parametrize(
    ("whole", "probe", "verdict"),
    [
        (timed(1.25), timed(1.24), True),
        (timed(0.8), timed(0.8), True),
        (timed(1.25), timed(1.0), False),
        (timed(1.25), timed(0.8), False),
        (timed(1.25), timed(1.19), None),
        (timed(1.25), failed(Status.OOM), None),
        (failed(Status.INCORRECT), failed(Status.INCORRECT), True),
        (failed(Status.INCORRECT), failed(Status.OK), False),
        (failed(Status.INCORRECT), failed(Status.TIMEOUT), None),
        (failed(Status.OK, before=Status.ERROR), failed(Status.OK, before=Status.ERROR), True),
    ],
)
def test_a_probe_explains_the_difference_or_not(whole, probe, verdict):
    assert difference(whole).explained_by(probe) is verdict


@pytest.mark.parametrize(
    ("found", "probe", "sentence"),
    [
        (
            difference(timed(0.8)),
            timed(0.81),
            "x makes it 1.23× faster; all 5 settings make it 1.25×",
        ),
        (
            difference(timed(1.25), "peak_reserved_bytes"),
            timed(1.2),
            "x makes peak reserved 1.20× larger; all 5 settings make it 1.25×",
        ),
        (
            difference(failed(Status.INCORRECT)),
            failed(Status.INCORRECT),
            "x makes it incorrect (why), without the others",
        ),
    ],
)
def test_the_sentence(found, probe, sentence):
    assert found.sentence("x", probe, "all 5 settings") == sentence
