"""Orders of a leader that a follower, here another thread, obeys."""

import threading
import time

import pytest
import torch

from effbench.core.message import RankRequest
from effbench.measure.led_step import (
    CAPACITY,
    FollowedOrders,
    LedInputs,
    LedStep,
    OrderKind,
    Orders,
)
from effbench.models.inputs import KeptInputs

INPUTS = [((torch.full((2,), float(number)),), {}) for number in range(3)]


class Pair:
    """A leader, and a follower that notes its calls and obeys in a thread."""

    def __init__(self, folder, inputs=INPUTS, kept=(), look=lambda: None):
        leader, follower = (RankRequest(rank, 2, str(folder)) for rank in (0, 1))
        self.orders = Orders(leader, look)
        self.orders.use(INPUTS)
        self.kept = KeptInputs(kept)
        cpu = torch.device("cpu")
        self.follower = FollowedOrders(follower, look, cpu, inputs, self.kept)
        self.calls = []
        for kind in (OrderKind.OWN, OrderKind.BASELINE):
            self.follower.steps[kind] = self.note(kind)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.obey)

    def note(self, kind):
        return lambda x: self.calls.append((kind, x[0].item()))

    def obey(self):
        while not self.stop.is_set():
            self.follower.obey_all()

    def led(self, step=lambda x: x, kind=OrderKind.OWN):
        return LedStep(step, kind, self.orders)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *exception):
        self.stop.set()
        self.thread.join()


def test_a_follower_makes_the_same_calls_with_its_own_inputs(tmp_path):
    others = [((torch.full((2,), 10.0 + number),), {}) for number in range(3)]
    with Pair(tmp_path, others) as pair:
        own, baseline = pair.led(), pair.led(kind=OrderKind.BASELINE)
        for step, number in ((own, 0), (own, 2), (baseline, 1), (own, 1)):
            step(*INPUTS[number][0])
        own.sample(0.0)
    kinds = [OrderKind.OWN, OrderKind.OWN, OrderKind.BASELINE, OrderKind.OWN]
    assert pair.calls == list(zip(kinds, [10.0, 12.0, 11.0, 11.0], strict=True))


def test_the_leader_waits_for_a_follower_that_is_far_behind(tmp_path):
    """Its memory holds fewer orders than these."""
    calls = 3 * CAPACITY
    with Pair(tmp_path) as pair:
        step = pair.led()
        for number in range(calls):
            step(*INPUTS[number % 3][0])
        step.sample(0.0)
    assert [value for _, value in pair.calls] == [float(number % 3) for number in range(calls)]


@pytest.mark.parametrize(("delay_s", "least_ms"), [(0.05, 50.0), (0.0, 0.0)])
def test_a_sample_lasts_until_the_slowest_rank_is_done(tmp_path, delay_s, least_ms):
    pair = Pair(tmp_path)
    pair.follower.steps[OrderKind.OWN] = lambda x: time.sleep(delay_s)
    with pair:
        step = pair.led()
        step(*INPUTS[0][0])
        latency_ms = step.sample(1.0)
    assert latency_ms >= 1.0 + 0.9 * least_ms
    assert latency_ms.spread_ms >= 0.9 * least_ms


def test_a_rank_that_is_done_before_the_leader_does_not_count(tmp_path):
    with Pair(tmp_path) as pair:
        step = pair.led(lambda x: time.sleep(0.1))
        step(*INPUTS[0][0])
        latency_ms = step.sample(100.0)
    assert latency_ms == 100.0
    assert latency_ms.spread_ms > 50.0


def test_all_ranks_restore_their_inputs(tmp_path):
    others = [((torch.zeros(2),), {}) for _ in range(3)]
    with Pair(tmp_path, others, kept=[others[1][0][0]]) as pair:
        others[1][0][0].fill_(5.0)
        own = KeptInputs([])
        LedInputs(own, pair.orders).restore(INPUTS[1])
        step = pair.led()
        step(*INPUTS[0][0])
        step.sample(0.0)
    assert not others[1][0][0].any()


def raise_timeout():
    raise TimeoutError


def test_nobody_waits_for_a_follower_that_is_gone(tmp_path):
    step = Pair(tmp_path, look=raise_timeout).led()
    step(*INPUTS[0][0])
    with pytest.raises(TimeoutError):
        step.sample(0.0)
