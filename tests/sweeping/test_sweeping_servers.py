"""Fork servers of a sweep: replaced when dead, renewed each round, closed when nobody uses them. No process."""

from __future__ import annotations

import threading

import pytest

from effbench.errors import WorkerError
from effbench.sweep.pool import Servers


class Fake:
    def __init__(self, ready=True):
        self.dead = None
        self.ready = threading.Event()
        if ready:
            self.ready.set()
        self.closed = self.waited = self.equipped = False

    def wait_ready(self):
        if not self.ready.wait(5) or self.dead:
            raise WorkerError(self.dead or "never ready")
        self.waited = True

    def close(self):
        self.closed = True


class Prompt(Servers):
    """A coming server that can load has done so when `take` returns."""

    def take(self, round):
        server = super().take(round)
        if self.coming is not None and self.coming.ready.is_set() and not self.coming.dead:
            assert self.equipped.wait(20)
        return server


@pytest.fixture
def made():
    return []


@pytest.fixture
def slow():
    """Arguments of the servers made: with False in it they load until they are let."""
    return []


@pytest.fixture
def servers(made, slow):
    def make():
        made.append(Fake(*slow))
        return made[-1]

    def equip(server):
        assert server.waited
        server.equipped = True

    return lambda **options: Prompt(Fake(), equip, make, **options)


def test_one_server_serves_all_rounds_unless_asked_otherwise(servers, made):
    kept = servers(last_round=4)
    assert {id(kept.take(round)) for round in range(5)} == {id(kept.first)}
    assert made == []


def test_each_round_has_its_own_and_the_next_one_starts_early(servers, made):
    renewed = servers(renew=True, last_round=2)
    first = renewed.take(0)
    assert first is renewed.first
    assert len(made) == 1, "the next one loads meanwhile"
    renewed.give_back(first)
    second = renewed.take(1)
    assert second is made[0]
    assert second.equipped
    renewed.give_back(second)
    third = renewed.take(2)
    assert (third, len(made)) == (made[1], 2), "none is started after the last round"
    assert second.closed
    assert not renewed.first.closed, "its owner closes it"
    renewed.close()
    assert third.closed


def test_a_server_with_a_trial_of_the_round_before_lives_until_it_ends(servers, made):
    renewed = servers(renew=True, last_round=3)
    renewed.give_back(renewed.take(0))
    slow = renewed.take(1)
    renewed.take(2)
    assert not slow.closed
    renewed.give_back(slow)
    assert slow.closed


def test_a_straggler_of_an_earlier_round_takes_what_there_is(servers):
    renewed = servers(renew=True, last_round=3)
    renewed.take(0)
    now = renewed.take(1)
    assert renewed.take(0) is now


def test_a_round_does_not_wait_for_a_server_that_still_loads(servers, made, slow):
    slow.append(False)
    renewed = servers(renew=True, last_round=9)
    first = renewed.take(0)
    assert renewed.take(1) is first
    assert len(made) == 1
    made[0].ready.set()
    assert renewed.take(1) is first, "a round keeps its server"
    assert renewed.equipped.wait(20)
    assert renewed.take(2) is made[0]


def test_a_server_that_cannot_be_loaded_is_closed_and_the_old_one_goes_on(servers, made, slow):
    slow.append(False)
    renewed = servers(renew=True, last_round=9)
    first = renewed.take(0)
    made[0].dead = "no torch"
    made[0].ready.set()
    for _ in range(2000):
        if made[0].closed:
            break
        threading.Event().wait(0.01)
    assert made[0].closed
    assert renewed.take(1) is first


def test_a_dead_one_is_replaced(servers, made):
    kept = servers()
    kept.first.dead = "ended"
    assert kept.take(0) is made[0]
    made[0].dead = "ended"
    assert kept.take(0) is made[1]
    assert not made[1].closed


def test_closing_ends_the_one_that_was_coming(servers, made):
    renewed = servers(renew=True, last_round=1)
    renewed.take(0)
    renewed.close()
    assert made[0].closed
