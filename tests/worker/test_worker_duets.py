"""Two real processes that hand each other a token: what both record, and what becomes of one whose
partner is lost."""

import itertools
import math
import multiprocessing
import os
import threading
import time
from pathlib import Path

import pytest
import torch

from effbench.core.disturbances import Disturbance, DisturbanceKind
from effbench.core.meeting import Partner, PartnerLostError, connect, listen
from effbench.measure.duet import (
    SETTLE_S,
    DuetResult,
    DuetStep,
    figure_of_member,
    settle,
)
from effbench.measure.host import HostFacts, HostWatch, RunQueue
from effbench.measure.pairs import BatchPair as Pair
from effbench.measure.pairs import Pairs
from effbench.measure.timing import Rules, Timer

RULES = Rules(
    budget_s=0.2,
    min_time_s=0.02,
    min_samples=5,
    max_samples=1000,
    warmup_s=0.0,
)
CPU = torch.device("cpu")
INPUTS = [((), {})]


def step_of(seconds, calls=None):
    """A step that sleeps, and notes when it is called."""

    def call():
        if calls is not None:
            calls.append(time.monotonic())
        time.sleep(seconds)

    return DuetStep(Timer(call, INPUTS, CPU, RULES), seconds * 1e3, has_period=False)


def play_follower(folder, what, answers):
    """The process of the other member. `what`: what it does in its third batch, if anything."""
    partner = Partner(connect(Path(folder)), 10.0)
    calls = []
    step = step_of(0.004, calls)
    batch = step.latency.batch

    def third():
        if len(step.latency.batches) == 2 and what == "die":
            os._exit(9)
        if len(step.latency.batches) == 2 and what == "hang":
            time.sleep(60)
        return batch()

    step.latency.batch = third
    step.follow(partner, RunQueue(all_threads=False))
    answers.put(calls)
    partner.send("end")


@pytest.fixture
def member(tmp_path):
    """Starts the other member, and returns the connection to it and what it answers at the end."""
    context = multiprocessing.get_context("fork")
    started, partners = [], []

    def start(what=None, answer_s=10.0):
        listener = listen(tmp_path)
        answers = context.Queue()
        process = context.Process(
            target=play_follower, args=(str(tmp_path), what, answers), daemon=True
        )
        process.start()
        started.append(process)
        connection, _ = listener.accept()
        listener.close()
        partners.append(Partner(connection, answer_s))
        return partners[-1], answers

    yield start
    for partner in partners:
        partner.close()
    for process in started:
        process.kill()
        process.join()


def test_they_take_turns(member):
    partner, answers = member()
    calls = []
    host = HostWatch(None, 1000.0, moves=False, all_threads=True)
    with host.watching():
        pairs = step_of(0.002, calls).lead(partner, host)["latency"]
    partner.ask("end")
    theirs = answers.get(timeout=10)
    everything = sorted([(at, 0.002) for at in calls] + [(at, 0.004) for at in theirs])
    gaps = [
        (after - before, seconds)
        for (before, seconds), (after, _) in itertools.pairwise(everything)
    ]
    assert all(gap >= seconds for gap, seconds in gaps), (
        "no call begins before the last one has ended"
    )
    assert len(pairs.undisturbed) >= 5
    assert not pairs.disturbed
    assert [pair.number for pair in pairs.undisturbed] == [*range(len(pairs.undisturbed))]
    figure = pairs.figure(RULES).median.value
    assert 1.6 < figure < 2.4, "4 ms and 2 ms"


def test_the_token_waits_until_the_other_threads_sleep():
    until = time.perf_counter() + 0.02

    def spin():
        while time.perf_counter() < until:
            pass
        time.sleep(0.2)

    thread = threading.Thread(target=spin)
    thread.start()
    settle()
    settled_s = time.perf_counter()
    thread.join()
    assert until <= settled_s < until + SETTLE_S


@pytest.mark.parametrize(
    ("what", "answer_s", "reason"),
    [
        ("die", 10.0, "the other member of the duet ended"),
        ("hang", 0.3, "did not answer for 0.3 s"),
    ],
)
def test_a_partner_that_is_lost_ends_the_duet(member, what, answer_s, reason):
    partner, _ = member(what, answer_s)
    with pytest.raises(PartnerLostError, match=reason):
        step_of(0.002).lead(partner, None)


PAIRS = Pairs(
    [Pair(1.0, 2.0, 0), Pair(3.0, 5.0, 1), Pair(2.0, 4.1, 2), Pair(1.0, 2.2, 4)],
    [Pair(9.0, 9.0, 3)],
)


def test_both_members_have_the_same_ratio():
    own, other = (figure_of_member(PAIRS, RULES, leads) for leads in (True, False))
    leader, follower = own.figure.median, other.figure.median
    ratio, mean_ms = leader.value / follower.value, leader.value * follower.value
    assert ratio == pytest.approx(1 / PAIRS.figure(RULES).median.value)
    roots = sorted(math.sqrt(pair.own_ms * pair.reference_ms) for pair in PAIRS.undisturbed)
    assert math.sqrt(mean_ms) == pytest.approx((roots[1] + roots[2]) / 2)
    assert leader.low <= leader.value <= leader.high
    assert own.figure.timing.samples_ms == [2.0, 5.0, 4.1, 2.2]


def test_a_result_survives_the_way_to_the_partner():
    slowed = Disturbance(DisturbanceKind.CLOCKS, "clocks reduced (hw_slowdown)")
    result = DuetResult({"latency": PAIRS}, HostFacts(0.1, None, 0.5), slowed)
    assert DuetResult.from_json(result.to_json()) == result
