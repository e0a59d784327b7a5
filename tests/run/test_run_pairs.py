"""Cells under two interpreters: interleaved, kept together, resumed. With made-up parts."""

from collections import Counter, defaultdict

import pytest
from schedule_parts import (
    PROTOCOL,
    A,
    B,
    Server,
    cell_runs,
    cells,
    gpus,
    key_of,
    ok,
    pool_of,
    trials,
)

from effbench.run.interpreters import HERE

BOTH = (A, B)


def test_interpreters_of_a_cell_are_neighbours_in_alternating_order():
    left = trials(cell_runs(6, interpreters=BOTH), 4)
    for number in range(4):
        of_round = [trial.run for trial in left if trial.round == number]
        pairs = list(zip(of_round[::2], of_round[1::2], strict=True))
        assert all(one.cell == other.cell for one, other in pairs)
        # each order once in rounds 0 and 2, and in 1 and 3
        expected = BOTH if number in (0, 3) else BOTH[::-1]
        assert {(one.interpreter, other.interpreter) for one, other in pairs} == {expected}
    alone = trials(cell_runs(6, interpreters=(HERE,)), 4)
    assert [trial.run.cell for trial in alone] == [trial.run.cell for trial in left[::2]]


@pytest.fixture
def pairs(make):
    """A schedule of two interpreters that has run: trials end as `answer(interpreter, request)`
    says."""

    def build(planned, answer=lambda interpreter, request: ok(request), **options):
        servers = {one: Server(lambda request, env, one=one: answer(one, request)) for one in BOTH}
        pools = {one: pool_of(servers[one], one) for one in BOTH}
        made = make(planned, pools=pools, **options)
        made.ran_in = [{"e0": A, "e1": B}[key] for key in made.sweep.store.environments]
        made.sent = {one: servers[one].sent for one in BOTH}
        return made

    return build


def test_each_interpreter_has_its_own_caches_and_fails_alone(pairs):
    bad = cells(2)[0].key

    def answer(interpreter, request):
        return ok(request, "error" if interpreter == B and key_of(request) == bad else "ok")

    made = pairs(trials(cell_runs(2, interpreters=BOTH), 3), answer)
    keys = [record.cell_key == bad for record in made.recorded]
    counts = Counter(zip(keys, made.ran_in, strict=True))
    assert counts == {(True, A): 3, (True, B): 1, (False, A): 3, (False, B): 3}
    folders = [{request["cache_dir"].split("/")[-3] for request in made.sent[one]} for one in BOTH]
    assert folders == [{"e0"}, {"e1"}]


@pytest.mark.parametrize(
    ("spread", "status_of_b", "rounds"),
    [(0.1, "ok", (8, 8)), (0.0, "ok", (5, 5)), (0.0, "error", (5, 1))],
)
def test_rounds_end_early_for_both_at_once(pairs, spread, status_of_b, rounds):
    def answer(interpreter, request):
        if interpreter == A:
            return ok(request)
        return ok(request, status_of_b, latency_ms=1.0 + spread * request["round"])

    planned = trials(cell_runs(1, interpreters=BOTH), 8)
    made = pairs(planned, answer, protocol={**PROTOCOL, "enough_interval": 0.01})
    assert Counter(made.ran_in) == dict(zip(BOTH, rounds, strict=True))


def test_a_pair_stays_on_one_gpu(pairs):
    # the watcher asserts that a cell never runs twice at once
    made = pairs(trials(cell_runs(5, interpreters=BOTH), 6), slots=gpus(3))
    slots: dict[tuple, set[str]] = defaultdict(set)
    for slot, trial in made.progress.order:
        slots[trial.run.cell.key, trial.round].add(slot)
    assert list(map(len, slots.values())) == [1] * 30
