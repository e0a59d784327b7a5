"""Two interpreters in one sweep, as its schedule sees them: halves in turns, retries, resuming."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from effbench.sweeping import planned
from effbench.sweeping import schedule as scheduling
from schedule_parts import PROTOCOL, Server, cells, gpus, ok, units

from effbench.cell import Cell, Status, Trial
from effbench.errors import ResumeError
from effbench.sweep.interpreters import HERE, Interpreter, Unit
from effbench.sweep.plan import Job, jobs_of, with_retries
from effbench.sweep.pool import Servers
from effbench.sweep.progress import unit_names
from effbench.sweep.schedule import Place

A, B = Interpreter("/venvs/a/bin/python"), Interpreter("/venvs/b/bin/python")
BOTH = (A, B)


class TestInterleaved:
    def test_neighbours_in_turns_of_order(self):
        jobs = jobs_of(units(6, interpreters=BOTH), 4, 0, {})
        for number in range(4):
            of_round = [job for job in jobs if job.round == number]
            pairs = list(zip(of_round[::2], of_round[1::2], strict=True))
            assert all(one.cell == other.cell for one, other in pairs)
            expected = BOTH if number % 2 == 0 else BOTH[::-1]
            assert {(one.interpreter, other.interpreter) for one, other in pairs} == {expected}

    def test_cells_come_in_the_order_that_they_have_under_one(self):
        alone, both = (jobs_of(units(9, interpreters=some), 3, 7, {}) for some in ((HERE,), BOTH))
        assert [job.cell for job in alone] == [job.cell for job in both[::2]]

    def test_what_is_recorded_or_failed_under_one_says_nothing_of_the_other(self):
        (under_a, under_b) = units(1, interpreters=BOTH)
        recorded = {(under_a.key, 0): Status.ERROR, (under_b.key, 0): Status.OK}
        left = jobs_of([under_a, under_b], 3, 0, recorded)
        assert [(job.interpreter, job.round) for job in left] == [(B, 1), (B, 2)]

    def test_further_tries_of_both_stand_together(self):
        (under_a, under_b) = planned_units = units(1, interpreters=BOTH)
        cell = under_a.cell
        history = {under_b.key: [Trial(cell.key, 1, Status.NOISY)]}
        assert with_retries([], planned_units, history, 2) == [Job(cell, 1, 1, B)]
        later = [Job(cell, 2, 0, A), Job(cell, 2, 0, B)]
        assert with_retries([Job(cell, 1, 0, A), *later], planned_units, history, 2) == [
            Job(cell, 1, 1, B), Job(cell, 1, 0, A), *later,
        ]  # fmt: skip
        history[under_a.key] = [Trial(cell.key, 1, Status.OK)]
        assert with_retries(later, planned_units, history, 2) == [Job(cell, 1, 1, B), Job(cell, 1, 1, A), *later]
        history[under_a.key] = [Trial(cell.key, 1, Status.ERROR)]
        assert with_retries([], planned_units, history, 2) == [Job(cell, 1, 1, B)]
        assert with_retries([], planned_units, history, 1) == []


@pytest.fixture
def halves(make, tmp_path):
    """A schedule of two interpreters whose trials end as `answer(interpreter, request)` says; it records jobs too."""

    def build(answer=lambda interpreter, request: ok(request), **options):
        servers = {one: Server(lambda request, env, one=one: answer(one, request)) for one in BOTH}
        names = zip(BOTH, "ab", strict=True)
        places = {one: Place(Servers(servers[one]), tmp_path / name, {"of": name}) for one, name in names}
        done: list[tuple[Job, Trial]] = []
        made = make(places=places, record=lambda job, trial: done.append((job, trial)), **options)
        made.done, made.server_of = done, servers
        return made

    return build


class TestScheduled:
    def test_each_runs_in_its_own_place(self, halves, tmp_path):
        schedule = halves()
        schedule.run(jobs_of(units(2, interpreters=BOTH), 2, 0, {}))
        assert Counter(job.interpreter for job, _ in schedule.done) == {A: 4, B: 4}
        for one, name in zip(BOTH, "ab", strict=True):
            requests = schedule.server_of[one].requests
            assert len(requests) == 4
            assert {Path(request["cache_dir"]).parent for request in requests} == {tmp_path / name}
            assert {request["ceilings"]["of"] for request in requests} == {name}

    def test_a_failure_costs_its_own_half_alone(self, halves):
        bad = cells(2)[0].key

        def answer(interpreter, request):
            failed = interpreter == B and Cell.from_params(request["cell"]).key == bad
            return ok(request, "error" if failed else "ok")

        schedule = halves(answer)
        schedule.run(jobs_of(units(2, interpreters=BOTH), 3, 0, {}))
        counts = Counter((job.cell.key == bad, job.interpreter) for job, _ in schedule.done)
        assert counts == {(True, A): 3, (True, B): 1, (False, A): 3, (False, B): 3}
        assert {job.interpreter for job in schedule.observer.dropped_jobs} == {B}

    def test_rounds_end_early_for_the_half_that_is_known(self, halves):
        def answer(interpreter, request):
            done = ok(request)
            done["result"]["latency_ms"] = 1.0 + (request["round"] / 10 if interpreter == B else 0)
            return done

        schedule = halves(answer, protocol={**PROTOCOL, "enough_interval": 0.01})
        schedule.run(jobs_of(units(1, interpreters=BOTH), 8, 0, {}))
        assert Counter(job.interpreter for job, _ in schedule.done) == {A: 5, B: 8}

    @pytest.mark.parametrize("noisy", BOTH)
    @pytest.mark.parametrize("number", [0, 1])
    def test_after_noise_both_come_again_beside_each_other(self, noisy, number, halves):
        """At the end of the round; the one that has not had its trial yet waits for that."""
        bad = cells(3)[1].key

        def answer(interpreter, request):
            disturbed = interpreter == noisy and request["round"] == number and not request["attempt"]
            return ok(request, "noisy" if disturbed and Cell.from_params(request["cell"]).key == bad else "ok")

        schedule = halves(answer, protocol={**PROTOCOL, "attempts": 2})
        schedule.run(jobs_of(units(3, interpreters=BOTH), 2, 0, {}))
        of_round = [job for job, _ in schedule.done if job.round == number]
        first, second = BOTH if number == 0 else BOTH[::-1]
        assert all(job.cell.key == bad for job in of_round[-2:])
        assert [(job.interpreter, job.attempt) for job in of_round[-2:]] == (
            [(first, 1), (second, 1)] if noisy == second else [(first, 1), (second, 0)]
        )
        assert len(of_round) == (8 if noisy == second else 7)
        assert len(schedule.done) == 6 + len(of_round)
        assert len(schedule.observer.added_jobs) == len(of_round) - 6

    def test_noise_without_end_is_tried_so_often_and_no_more(self, halves):
        schedule = halves(lambda interpreter, request: ok(request, "noisy"), protocol={**PROTOCOL, "attempts": 3})
        schedule.run(jobs_of(units(2, interpreters=BOTH), 2, 0, {}))
        counts = Counter((job.key, job.round, job.attempt) for job, _ in schedule.done)
        assert set(counts.values()) == {1}
        assert len(counts) == 2 * 2 * 2 * 3

    def test_one_that_failed_does_not_come_again(self, halves):
        def answer(interpreter, request):
            return ok(request, "error" if interpreter == A else "noisy" if not request["attempt"] else "ok")

        schedule = halves(answer, protocol={**PROTOCOL, "attempts": 2})
        schedule.run(jobs_of(units(1, interpreters=BOTH), 1, 0, {}))
        assert [(job.interpreter, job.attempt) for job, _ in schedule.done] == [(A, 0), (B, 0), (B, 1)]

    def test_a_pair_stays_on_one_gpu(self, halves):
        schedule = halves(slots=gpus(3))  # the watcher asserts that a cell never runs twice at once
        schedule.run(jobs_of(units(5, interpreters=BOTH), 6, 0, {}))
        where: dict[tuple, set[str]] = {}
        for slot, job in schedule.observer.order:
            where.setdefault((job.cell.key, job.round), set()).add(slot)
        assert len(where) == 30
        assert all(len(slots) == 1 for slots in where.values())

    def test_a_pair_that_was_interrupted_goes_on_where_it_was(self, halves):
        """What was recorded under one says on which GPU the other belongs, if that is still there."""
        planned_units = units(4, interpreters=BOTH)
        history, recorded = {}, {}
        for index, unit in enumerate(planned_units):
            if unit.interpreter == A:
                known = Trial(unit.cell.key, 0, Status.OK, latency_ms=1.0, gpu_uuid=f"GPU-{index // 2}")
                history[unit.key], recorded[unit.key, 0] = [known], Status.OK
        schedule = halves(slots=gpus(3), history=history)
        left = jobs_of(planned_units, 1, 0, recorded)
        schedule.run(left)
        assert len(left) == len(schedule.done) == 4
        assert {job.interpreter for job in left} == {B}
        slot_of = {job.cell.key: slot for slot, job in schedule.observer.order}
        assert [slot_of[cell.key] for cell in cells(3)] == ["GPU 0", "GPU 1", "GPU 2"]
        assert slot_of[cells(4)[3].key] in slot_of.values(), "a GPU that is gone holds nobody up"

    @pytest.mark.parametrize("options", [{"isolation": "spawn"}, {}])
    def test_fresh_interpreters_are_those_asked_for(self, halves, monkeypatch, options):
        started = []

        class Spawned(Server):
            def __init__(self, python=None, preload=True, folder=None):
                super().__init__()
                started.append((python, folder, preload))

            def wait_ready(self): ...

            def close(self): ...

        monkeypatch.setattr(scheduling, "ForkServer", Spawned)
        env = {} if options else {"OMP_NUM_THREADS": "1"}  # read at import: such a cell is spawned
        halves(**options).run(jobs_of(units(1, env=env, interpreters=BOTH), 1, 0, {}))
        assert started == [(A.python, None, False), (B.python, None, False)]


class TestResumed:
    def info(self, *asked, **given):
        environments = {f"e{index}": one.facts() for index, one in enumerate(asked)}
        return SimpleNamespace(id="s", host={"environments": environments} if asked else {}, trials=1, **given)

    def sites(self, *asked, ids="e0 e1 e2"):
        pairs = zip(asked, ids.split(), strict=False)
        return {one: SimpleNamespace(environment=SimpleNamespace(id=number)) for one, number in pairs}

    def test_the_same_interpreters(self):
        planned.check_same_interpreters(self.info(A, B), self.sites(B, A))
        planned.check_same_interpreters(self.info(), self.sites(HERE))

    @pytest.mark.parametrize("now", [(A,), (A, HERE), (HERE,), (A, B, HERE)])
    def test_others_are_refused(self, now):
        with pytest.raises(ResumeError, match=r"sweep s ran under python=/venvs/a/\S+ and python=/venvs/b/\S+, not"):
            planned.check_same_interpreters(self.info(A, B), self.sites(*now))
        with pytest.raises(ResumeError, match="ran under effbench's own interpreter, not python=/venvs/a/bin/python"):
            planned.check_same_interpreters(self.info(), self.sites(A))

    def test_changes_are_told_of_the_interpreter_that_changed(self):
        store = SimpleNamespace(recorded=lambda sweep_id, environment_id: {})
        assert list(planned.changes(store, self.info(A, B), self.sites(A, B))) == []
        (said,) = planned.changes(store, self.info(A, B), self.sites(A, B, ids="e0 other"))
        assert said.startswith(f"hardware or software of python={B.python} differs")
        moved = self.info(A, B)
        moved.host["environments"]["e1"]["git_description"] = "v1.0-dirty"
        (said,) = planned.changes(store, moved, self.sites(A, B))
        assert said.startswith(f"the folder of python={B.python} was at v1.0-dirty, and is at ")


def test_progress_names_the_half():
    (cell,) = cells(1)
    assert set(unit_names([Unit(cell)]).values()) == {"m bs=1 eager float32"}
    assert list(unit_names([Unit(cell, A), Unit(cell, B)]).values()) == [
        "m bs=1 eager float32 · a", "m bs=1 eager float32 · b",
    ]  # fmt: skip
    both = [Unit(cell), Unit(cell, Interpreter(A.python, "/checkout/new"))]
    assert list(unit_names(both).values()) == ["m bs=1 eager float32 · own · here", "m bs=1 eager float32 · a · new"]
