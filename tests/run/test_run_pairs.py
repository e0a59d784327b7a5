"""Cells under two interpreters: interleaved, kept together, resumed. With made-up parts."""

from collections import Counter, defaultdict

import pytest
from schedule_parts import (
    PROTOCOL,
    A,
    B,
    Server,
    cell_runs,
    gpus,
    groups,
    ok,
)

BOTH = (A, B)


def test_interpreters_of_a_cell_are_neighbours_in_alternating_order():
    left = groups(cell_runs(6, interpreters=BOTH), 4)
    assert all(one.cell == other.cell for one, other in (group.runs for group in left))
    # each order once in rounds 0 and 2, and in 1 and 3
    orders = {(group.round, *(run.interpreter for run in group.runs)) for group in left}
    assert orders == {(0, A, B), (1, B, A), (2, B, A), (3, A, B)}


@pytest.fixture
def pairs(make_pairs):
    """An executor that has run trials, which end as `answer(interpreter, request)` says."""

    def build(planned, answer=lambda interpreter, request: ok(request), **options):
        servers = {one: Server(lambda request, env, one=one: answer(one, request)) for one in BOTH}
        return make_pairs(planned, servers, **options)

    return build


@pytest.mark.parametrize(
    ("spread", "status_of_b", "rounds"),
    [(0.1, "ok", (8, 8)), (0.0, "ok", (5, 5)), (0.0, "error", (5, 1))],
)
def test_each_has_its_own_caches_and_rounds_end_early_for_both(pairs, spread, status_of_b, rounds):
    def answer(interpreter, request):
        if interpreter == A:
            return ok(request)
        return ok(request, status_of_b, latency_ms=1.0 + spread * request["round"])

    planned = groups(cell_runs(1, interpreters=BOTH), 8)
    made = pairs(planned, answer, protocol={**PROTOCOL, "enough_interval": 0.01})
    assert Counter(made.ran_in) == dict(zip(BOTH, rounds, strict=True))
    assert all("/e0/" in request["cache_dir"] for request in made.sent[A])
    assert all("/e1/" in request["cache_dir"] for request in made.sent[B])


def test_a_pair_stays_on_one_gpu(pairs):
    # the watcher asserts that a cell never runs twice at once
    made = pairs(groups(cell_runs(5, interpreters=BOTH), 6), slots=gpus(3))
    slots: dict[tuple, set[str]] = defaultdict(set)
    for slot, run, round in made.progress.order:
        slots[run.cell.key, round].add(slot)
    assert list(map(len, slots.values())) == [1] * 30
