"""Which rounds `protocol.eliminate` ends, with made-up parts."""

from collections import Counter
from typing import ClassVar

import pytest
from schedule_parts import PROTOCOL, marked, ok, trials

from effbench.cell import Cell, Status, Trial
from effbench.stats.intervals import PRIOR_SD, TUNED, TUNED_SD
from effbench.sweeping.plan import CellRun
from effbench.sweeping.rounds import race_of


class TestElimination:
    """`protocol.eliminate` ends the rounds of modes that are slower, and all rounds once nothing is
    left to tell."""

    times: ClassVar = {"eager": 2.0, "best": 1.0, "near": 1.05, "partial": 0.5, "broken": 0.5}
    protocol: ClassVar = {**PROTOCOL, "eliminate": "latency_ms", "rounds": 3}

    def runs(self, *modes):
        parts = ({"name": mode} for mode in modes or self.times)
        return [
            CellRun(Cell({"name": "m"}, 1, part, "float32", "inference", "cuda")) for part in parts
        ]

    def answer(self, request, env):
        mode = request["cell"]["mode"]["name"]
        status = {"partial": "degraded", "broken": "incorrect"}.get(mode, "ok")
        return ok(request, status, latency_ms=self.times[mode] * (1 + request["round"] / 20))

    @pytest.mark.parametrize(
        ("near", "tolerance", "rounds"),
        [(1.05, 0.1, 2), (1.0, 0.1, 3), (1.3, 0.1, 1), (1.3, None, 2)],
    )
    def test_rounds_of_each_mode(self, make, monkeypatch, near, tolerance, rounds):
        monkeypatch.setitem(self.times, "near", near)
        made = make(
            trials(self.runs(), 3),
            self.answer,
            protocol={**self.protocol, "host_tolerance": tolerance},
        )
        names = {run.cell.key: run.cell.mode_name for run in self.runs()}
        counts = Counter(names[one.cell_key] for one in made.recorded)
        assert counts == {"best": rounds, "near": rounds, "eager": 1, "partial": 1, "broken": 1}
        assert sum(made.progress.changes) == len(made.recorded) - 15

    def test_a_mode_that_is_known_precisely_runs_on_while_others_are_compared_with_it(self, make):
        def answer(request, env):
            is_best = request["cell"]["mode"]["name"] == "best"
            return ok(request, latency_ms=1.0 if is_best else (0.92, 1.12)[request["round"] % 2])

        protocol = {**self.protocol, "enough_interval": 0.01, "rounds": 30, "host_tolerance": 0.1}
        made = make(trials(self.runs("best", "near"), 30), answer, protocol=protocol)
        assert len({record.round for record in made.recorded}) == len(made.recorded) / 2 < 25

    def test_a_marked_round_does_not_count_and_does_not_delay_the_end(self, make):
        def answer(request, env):
            mode, round = request["cell"]["mode"]["name"], request["round"]
            is_marked = mode == "best" and round == 0
            latency_ms = 9.0 if is_marked else self.times[mode] * (1 + round / 20)
            return marked(request, is_marked, latency_ms=latency_ms)

        protocol = {**self.protocol, "rounds": 5, "host_tolerance": 0.1}
        made = make(trials(self.runs("best", "near"), 5), answer, protocol=protocol)
        assert max(record.round for record in made.recorded) < 4

    def test_a_race_goes_on_with_later_rounds_once_the_sweep_has_stopped_waiting(self, make):
        def answer(request, env):
            mode, round = request["cell"]["mode"]["name"], request["round"]
            is_busy = round < 2
            fraction = 1.0 if is_busy else 0.0
            return marked(
                request, is_busy, latency_ms=self.times[mode], disturbed_fraction=fraction
            )

        protocol = {**self.protocol, "rounds": 10, "host_tolerance": 0.1}
        made = make(trials(self.runs("best", "eager"), 10), answer, protocol=protocol)
        assert len(made.recorded) < 10

    def test_compilations_vary_less_the_more_there_are(self):
        def error(**values):
            trial = [
                Trial("k", number, Status.OK, latency_ms=1.0, compilation=number, **values)
                for number in (0, 1)
            ]
            return (
                race_of({"a": trial}, {**self.protocol, "host_tolerance": None})
                .estimates["a"]
                .error
            )

        plain, compiled = error(), error(compile_s=1.0)
        tuned = error(compile_s=1.0, kernel_fingerprint=f"x{TUNED}")
        assert compiled**2 - plain**2 == pytest.approx(PRIOR_SD**2 / 2)
        assert tuned**2 - plain**2 == pytest.approx(TUNED_SD**2 / 2)

    def test_the_rest_after_an_interruption(self, make):
        # a whole round
        first = make(trials(self.runs(), 3), self.answer, protocol=self.protocol).recorded[:5]
        history = {
            run: [one for one in first if one.cell_key == run.cell.key] for run in self.runs()
        }
        made = make(
            trials(self.runs(), 3, history=history),
            self.answer,
            protocol=self.protocol,
            history=history,
        )
        assert [one.round for one in made.recorded] == [1, 1]
