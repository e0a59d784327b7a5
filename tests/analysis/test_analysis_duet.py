"""The sentence about two sides, and the figures below it."""

import pytest

from effbench.analysis.duet import DuetAnswer
from effbench.core.cell import Status, Trial
from effbench.core.meeting import ALONE, DUET
from effbench.run.duets import Duets

NOISE = (1.0, 1.7, 1.2, 0.9)


def trials(times, status=Status.OK, reason=None, extra=None, **more):
    """The trials of a side, one per duet."""
    extra = extra or {DUET: {"leads": True}}
    return [
        Trial(
            "a",
            n,
            status,
            reason,
            latency_ms=time,
            extra=extra,
            **more,
        )
        for n, time in enumerate(times)
    ]


def answer(ratios, first=None, **more):
    """Sides whose times vary together, so that only these ratios B ÷ A matter."""
    before = [NOISE[n % 4] for n in range(len(ratios))]
    after = [time * ratio for time, ratio in zip(before, ratios, strict=True)]
    duets = Duets(first or trials(before), trials(after, **more))
    return DuetAnswer("mlp", "mode=default", "mode=eager", duets)


@pytest.mark.parametrize(
    ("ratios", "sentence"),
    [
        ((1.31, 1.33, 1.29), "mode=default is 1.310× as fast as mode=eager (1.261–1.361; 3 duets)"),
        (
            (0.5, 0.501, 0.499),
            "mode=eager is 2.000× as fast as mode=default (1.990–2.010; 3 duets)",
        ),
        (
            (1.001, 1.0, 0.999, 1.002),
            "no difference beyond 1 % between mode=default and mode=eager: mode=eager takes"
            " ±0 % (−0.2 % to +0.3 %; 4 duets)",
        ),
        (
            (1.05, 0.95, 1.02),
            "no significant difference between mode=default and mode=eager: mode=eager takes"
            " +0.6 % (−11 % to +14 %; 3 duets)",
        ),
        (
            (1.3,),
            "mode=eager takes 1.300× the time of mode=default (1 duet; one has no interval)",
        ),
    ],
)
def test_the_sentence(ratios, sentence):
    assert answer(ratios).sentence == sentence


def test_disturbed_rounds_do_not_count_if_there_are_others():
    first = trials([1.0, 2.0, 1.5, 1.0])
    first[1].disturbance = "host busy"
    found = answer((1.3, 9.0, 1.31, 1.3), first=first)
    assert len(found.duets.counted) == 3
    assert not found.is_marked


def test_without_an_undisturbed_round_the_figures_are_marked():
    found = answer((1.3, 1.31, 1.3), disturbance="host busy")
    assert found.sentence.endswith("; the host was busy")
    assert found.is_marked
    assert not found.is_slower(0.1)


@pytest.mark.parametrize(
    ("fraction", "expected"),
    [
        (0.0, True),
        (0.05, True),
        (0.2, False),
    ],
)
def test_slower_by_more_than_a_fraction(fraction, expected):
    assert answer((1.1, 1.101, 1.099)).is_slower(fraction) is expected


def test_a_side_that_fails_is_named():
    found = answer((1.0,), status=Status.OOM, reason="CUDA out of memory")
    assert found.sentence == "mode=eager has no figures to compare: oom: CUDA out of memory"
    assert found.tests == {}


def test_rounds_that_were_not_timed_in_turn_are_reported():
    alone = {DUET: {"leads": False, ALONE: "the other member ended"}}
    assert answer((1.1, 1.1, 1.1), extra=alone).notes == [
        "some rounds were not timed in turn: the other member ended"
    ]


@pytest.mark.parametrize(
    ("ratios", "more", "difference_ms"),
    [
        ((1.31, 1.33, 1.29), {}, 0.393),
        ((0.5, 0.501, 0.499), {}, -0.634),
        ((1.001, 1.0, 0.999, 1.002), {}, None),
        ((1.05, 0.95, 1.02), {}, None),
        ((1.3,), {}, None),
        ((1.31, 1.33, 1.29), {"disturbance": "host busy"}, None),
        ((1.31, 1.33, 1.29), {"status": Status.ERROR}, None),
    ],
)
def test_only_a_significant_difference_of_latencies_is_to_be_explained(ratios, more, difference_ms):
    found = answer(ratios, **more).difference_ms
    assert found == (difference_ms and pytest.approx(difference_ms, abs=0.002))
