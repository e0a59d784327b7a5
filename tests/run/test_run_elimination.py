"""Which rounds `protocol.eliminate` ends, with made-up parts."""

from collections import Counter

import pytest
from schedule_parts import PROTOCOL, marked, ok, trials

from effbench.core.cell import Cell, Status, Trial
from effbench.run.plan import CellRun
from effbench.run.rounds import race_of
from effbench.stats.intervals import PRIOR_SD, TUNED, TUNED_SD

TIMES = {"eager": 2.0, "best": 1.0, "near": 1.05, "partial": 0.5, "broken": 0.5}
STATUSES = {"partial": "degraded", "broken": "incorrect"}
ELIMINATE = {**PROTOCOL, "eliminate": "latency_ms", "rounds": 3, "host_tolerance": 0.1}


def runs(*modes):
    return [
        CellRun(Cell({"name": "m"}, 1, {"name": mode}, "float32", "inference", "cuda"))
        for mode in modes or TIMES
    ]


def mode_of(request):
    return request["cell"]["mode"]["name"]


def slower_each_round(request, env):
    mode = mode_of(request)
    latency_ms = TIMES[mode] * (1 + request["round"] / 20)
    return ok(request, STATUSES.get(mode, "ok"), latency_ms=latency_ms)


@pytest.mark.parametrize(
    ("near", "tolerance", "rounds"),
    [(1.05, 0.1, 2), (1.0, 0.1, 3), (1.3, 0.1, 1), (1.3, None, 2)],
)
def test_rounds_end_for_modes_that_are_slower_and_once_nothing_is_left_to_tell(
    make, monkeypatch, near, tolerance, rounds
):
    monkeypatch.setitem(TIMES, "near", near)
    protocol = {**ELIMINATE, "host_tolerance": tolerance}
    made = make(trials(runs(), 3), slower_each_round, protocol=protocol)
    names = {run.cell.key: run.cell.mode_name for run in runs()}
    counts = Counter(names[one.cell_key] for one in made.recorded)
    assert counts == {"best": rounds, "near": rounds, "eager": 1, "partial": 1, "broken": 1}


def test_a_mode_that_is_known_precisely_runs_on_while_others_are_compared_with_it(make):
    def answer(request, env):
        is_best = mode_of(request) == "best"
        return ok(request, latency_ms=1.0 if is_best else (0.92, 1.12)[request["round"] % 2])

    protocol = {**ELIMINATE, "enough_interval": 0.01, "rounds": 30}
    made = make(trials(runs("best", "near"), 30), answer, protocol=protocol)
    assert len({record.round for record in made.recorded}) == len(made.recorded) / 2 < 25


def test_a_marked_round_does_not_count_and_does_not_delay_the_end(make):
    def answer(request, env):
        mode, round = mode_of(request), request["round"]
        is_marked = mode == "best" and round == 0
        latency_ms = 9.0 if is_marked else TIMES[mode] * (1 + round / 20)
        return marked(request, is_marked, latency_ms=latency_ms)

    made = make(trials(runs("best", "near"), 5), answer, protocol={**ELIMINATE, "rounds": 5})
    assert max(record.round for record in made.recorded) < 4


def test_compilations_vary_less_the_more_there_are():
    def error(**values):
        trial = [
            Trial("k", number, Status.OK, latency_ms=1.0, compilation=number, **values)
            for number in (0, 1)
        ]
        return race_of({"a": trial}, {**ELIMINATE, "host_tolerance": None}).estimates["a"].error

    plain, compiled = error(), error(compile_s=1.0)
    tuned = error(compile_s=1.0, kernel_fingerprint=f"x{TUNED}")
    assert compiled**2 - plain**2 == pytest.approx(PRIOR_SD**2 / 2)
    assert tuned**2 - plain**2 == pytest.approx(TUNED_SD**2 / 2)
