"""Two real processes that hand each other a token: what both record, and what becomes of one whose
partner is lost."""

import itertools
import math
import multiprocessing
import os
import statistics
import threading
import time
from contextlib import ExitStack

import pytest
import torch

from effbench.core.disturbances import Disturbance, DisturbanceKind
from effbench.core.meeting import Partner, PartnerLostError, connect, listen
from effbench.measure.duet import (
    SETTLE_S,
    DuetResult,
    DuetStep,
    figure_of_member,
    wait_for_sleeping_threads,
)
from effbench.measure.host import HostFacts, HostWatch, RunQueue
from effbench.measure.pairs import BatchPair as Pair
from effbench.measure.pairs import Pairs
from effbench.measure.rules import Rules
from effbench.measure.timing import Timer

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
    """The process of the other member. `what`: a function to call in its third batch, or None."""
    partner = Partner(connect(folder), 10.0)
    calls = []
    step = step_of(0.004, calls)
    batch = step.latency.batch

    def third():
        if what and len(step.latency.batches) == 2:
            what()
        return batch()

    step.latency.batch = third
    step.follow(partner, RunQueue(all_threads=False))
    answers.put(calls)
    partner.send("end")


@pytest.fixture
def member(tmp_path):
    """Starts the other member, and returns the connection to it and what it answers at the end."""
    context = multiprocessing.get_context("fork")
    with ExitStack() as at_end:

        def start(what=None, answer_s=10.0):
            listener = listen(tmp_path)
            answers = context.Queue()
            process = context.Process(target=play_follower, args=(tmp_path, what, answers))
            process.start()
            at_end.callback(process.join)
            at_end.callback(process.kill)
            connection, _ = listener.accept()
            listener.close()
            partner = Partner(connection, answer_s)
            at_end.callback(connection.close)
            return partner, answers

        yield start


def test_they_take_turns(member):
    partner, answers = member()
    calls = []
    host = HostWatch(None, 1000.0, moves=False, all_threads=True)
    with host.watching():
        pairs = step_of(0.002, calls).lead(partner, host)["latency"]
    partner.ask("end")
    theirs = answers.get(timeout=10)
    everything = sorted([(at, 0.002) for at in calls] + [(at, 0.004) for at in theirs])
    for (before, seconds), (after, _) in itertools.pairwise(everything):
        assert after - before >= seconds, "no call begins before the last one has ended"
    assert len(pairs.undisturbed) >= 5
    assert not pairs.disturbed
    assert 1.6 < pairs.figure(RULES).median.value < 2.4, "4 ms and 2 ms"


def test_the_token_waits_until_the_other_threads_sleep():
    until = time.perf_counter() + 0.02

    def spin():
        while time.perf_counter() < until:
            pass
        time.sleep(0.2)

    thread = threading.Thread(target=spin)
    thread.start()
    wait_for_sleeping_threads()
    settled_s = time.perf_counter()
    thread.join()
    assert until <= settled_s < until + SETTLE_S


@pytest.mark.parametrize(
    ("what", "answer_s", "reason"),
    [
        (lambda: os._exit(9), 10.0, "the other member of the duet ended"),
        (lambda: time.sleep(60), 0.3, "did not answer for 0.3 s"),
    ],
    ids=["dies", "hangs"],
)
def test_a_partner_that_is_lost_ends_the_duet(member, what, answer_s, reason):
    partner, _ = member(what, answer_s)
    with pytest.raises(PartnerLostError, match=reason):
        step_of(0.002).lead(partner, None)


PAIRS = Pairs(
    [Pair(1.0, 2.0), Pair(3.0, 5.0), Pair(2.0, 4.1), Pair(9.0, 9.0, True), Pair(1.0, 2.2)],
)


def test_both_members_have_the_same_ratio():
    own, other = (figure_of_member(PAIRS, RULES, leads, 1).figure for leads in (True, False))
    leader_ms, follower_ms = own.median.value, other.median.value
    assert follower_ms / leader_ms == pytest.approx(PAIRS.figure(RULES).median.value)
    means_ms = [math.sqrt(pair.own_ms * pair.other_ms) for pair in PAIRS.undisturbed]
    assert math.sqrt(leader_ms * follower_ms) == pytest.approx(statistics.median(means_ms))
    assert own.median.low <= leader_ms <= own.median.high
    assert own.timing.samples_ms == [2.0, 5.0, 4.1, 2.2]


def test_a_result_survives_the_way_to_the_partner():
    slowed = Disturbance(DisturbanceKind.CLOCKS, "clocks reduced (hw_slowdown)")
    result = DuetResult({"latency": PAIRS}, HostFacts(0.1, None, 0.5, 0.2, 0.1, True), slowed)
    assert DuetResult.from_json(result.to_json()) == result
