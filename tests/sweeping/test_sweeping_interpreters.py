"""Interpreters as axes: found, checked, told apart, and interleaved. No torch; small scripts stand for interpreters."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from schedule_parts import PROTOCOL, Server, cells, gpus, ok, units

import effbench
from effbench.cell import Cell, Environment, Status, Trial
from effbench.errors import ConfigError, ResumeError, WorkerError
from effbench.sweeping import interpreters, plan, planned, sites
from effbench.sweeping import schedule as scheduling
from effbench.sweeping.hydra_plugin import names_interpreter
from effbench.sweeping.interpreters import HERE, Interpreter, Unit, check, named_twice, resolve
from effbench.sweeping.jobs import Job, jobs_of, with_retries
from effbench.sweeping.progress import unit_names
from effbench.sweeping.schedule import Place
from effbench.sweeping.servers import Servers

A, B = Interpreter("/venvs/a/bin/python"), Interpreter("/venvs/b/bin/python")
BOTH = (A, B)
#: What a probe finds.
FACTS = {
    "gpu_name": None, "gpu_memory_bytes": None, "driver_version": None, "cuda_version": None,
    "torch_version": "2.13.0", "triton_version": None, "python": "3.12.1", "cpu_name": "c", "platform": "p",
    "flags": {"OMP_NUM_THREADS": "2"},
}  # fmt: skip


@pytest.fixture
def script(tmp_path):
    """A program that prints `said`."""

    def write(said, path="bin/python"):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\n")
        file.chmod(0o755)
        return str(file)

    return write


def answer(version=(3, 12), missing=(), torch="2.13.0"):
    return json.dumps(["effbench", list(version), list(missing), torch])


class TestFound:
    def test_nothing_given_is_here(self):
        assert resolve() == HERE == Interpreter()
        assert HERE.given == {}
        assert (HERE.executable, HERE.home) == (sys.executable, os.getcwd())  # noqa: PTH109

    def test_a_name_is_looked_for_on_the_path(self, script, monkeypatch):
        path = script(answer(), "bin/python-of-mine")
        monkeypatch.setenv("PATH", str(Path(path).parent))
        assert resolve("python-of-mine").python == path

    def test_a_relative_path_becomes_absolute_and_keeps_its_link(self, script, tmp_path, monkeypatch):
        script(answer(), "base/python3")
        (tmp_path / "venv").mkdir()
        (tmp_path / "venv" / "python").symlink_to(tmp_path / "base" / "python3")
        monkeypatch.chdir(tmp_path)
        assert resolve("venv/python").python == str(tmp_path / "venv" / "python")
        assert resolve("./venv/../venv/python") == resolve("venv/python")

    @pytest.mark.parametrize("empty", ["", "  "])
    def test_nothing_is_no_name(self, empty):
        for name in ("python", "folder"):
            with pytest.raises(ConfigError, match=f"^{name}= is empty; leave it out, or say {name}=null"):
                resolve(**{name: empty})

    def test_one_under_two_names_is_told(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "old").mkdir()
        (tmp_path / "link").symlink_to("old")
        asked = [(None, None), (None, "old"), (None, "./old"), (None, "link"), (None, None)]
        assert named_twice({one: resolve(*one) for one in asked}) == [
            "folder=./old is the same as folder=old: it runs once",
            "folder=link is the same as folder=old: it runs once",
        ]

    def test_links_of_a_folder_are_followed(self, tmp_path, monkeypatch):
        (tmp_path / "v1").mkdir()
        (tmp_path / "current").symlink_to(tmp_path / "v1")
        monkeypatch.chdir(tmp_path)
        assert resolve(folder="current") == Interpreter(None, str(tmp_path / "v1")) == resolve(folder="v1")

    @pytest.mark.parametrize(
        ("python", "said"),
        [("no-such-python", "no such program on PATH"), ("not/there", "there is no "), (".", "is a folder; give the"),
         ("venv", "its interpreter is .*venv/bin/python"), ("./plain", "is not executable")],
    )  # fmt: skip
    def test_what_is_no_interpreter(self, script, tmp_path, monkeypatch, python, said):
        script(answer(), "venv/bin/python")
        (tmp_path / "plain").write_text("")
        monkeypatch.chdir(tmp_path)
        with pytest.raises(ConfigError, match=f"^python={re.escape(python)}.*{said}"):
            resolve(python)

    def test_what_is_no_folder(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(ConfigError, match="does not exist"):
            resolve(folder=str(tmp_path / "gone"))
        with pytest.raises(ConfigError, match="is no folder"):
            resolve(folder=str(tmp_path / "file"))


class TestChecked:
    @pytest.mark.parametrize(
        ("said", "expected"),
        [(answer(version=(3, 10)), "is Python 3.10; trials need 3.11 or newer"),
         (answer(missing=["torch", "pynvml"], torch=None),
          "lacks torch, nvidia-ml-py\nmend: .*/python -m pip install torch nvidia-ml-py"),
         (answer(torch="2.4.1+cu121"), r"has torch 2\.4\.1\+cu121; trials need 2\.11 or newer"),
         ("GNU bash, version 5.2", "is no Python interpreter that works"),
         ('["other", 1, 2, 3]', "is no Python interpreter that works")],
    )  # fmt: skip
    def test_one_that_will_not_do_is_named_with_what_it_lacks(self, script, said, expected):
        path = script(said)
        with pytest.raises(ConfigError, match=f"^python={path} {expected}"):
            check(Interpreter(path))

    @pytest.mark.parametrize("torch", ["2.11.0", "2.12.0a0+git1234", "3.0", "nightly"])
    def test_one_that_will_do(self, script, torch):
        check(Interpreter(script(answer(torch=torch))))

    def test_one_that_dies_is_named_with_the_signal(self, tmp_path):
        path = tmp_path / "python"
        path.write_text("#!/bin/sh\necho boo >&2\nkill -SEGV $$\n")
        path.chmod(0o755)
        with pytest.raises(ConfigError, match=r"is no Python interpreter that works \(it ended by signal 11\)"):
            check(Interpreter(str(path)))

    def test_this_very_interpreter_will_do(self, tmp_path):
        (tmp_path / "torch.py").write_text("raise SystemExit")  # of the user's: not the package
        check(Interpreter(sys.executable, str(tmp_path)))

    def test_a_program_of_another_machine(self, tmp_path):
        path = tmp_path / "python"
        path.write_bytes(b"\x7fELF nonsense")
        path.chmod(0o755)
        with pytest.raises(ConfigError, match="cannot be run: Exec format error"):
            check(Interpreter(str(path)))

    def test_what_is_needed_is_what_workers_import(self):
        package = Path(effbench.__file__).parent
        found = set()
        for path in (
            file for part in ("worker", "modes", "measure", "models") for file in (package / part).rglob("*.py")
        ):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    found |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    found.add(node.module.partition(".")[0])
        of_some_models = {"torchvision", "transformers", "triton"}
        assert found - sys.stdlib_module_names - {"effbench"} - of_some_models == interpreters.NEEDED.keys()

    def test_another_interpreter_sees_effbench_and_nothing_beside_it(self, monkeypatch, tmp_path):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        interpreters.lone_package.cache_clear()
        folder = interpreters.lone_package()
        assert [path.name for path in Path(folder).iterdir()] == ["effbench"]
        interpreters.lone_package.cache_clear()
        assert interpreters.lone_package() == folder
        interpreters.lone_package.cache_clear()  # the folder of this test goes
        code = "import effbench.message; print(effbench.message.VERSION)"
        env = {"PYTHONPATH": folder, "PATH": os.environ["PATH"]}
        done = subprocess.run([sys.executable, "-P", "-c", code], env=env, capture_output=True, text=True)
        assert done.stdout.strip() == "1", done.stderr


class TestEnvironment:
    def test_interpreters_alike_in_all_have_environments_of_their_own(self):
        asked = [HERE, A, B, Interpreter(None, "/x"), Interpreter(A.python, "/x"), Interpreter(A.python, "/y")]
        assert len({one.environment(FACTS).id for one in asked}) == len(asked)
        assert Interpreter(A.python, "/x").environment(FACTS).flags == {
            "OMP_NUM_THREADS": "2", "interpreter": A.python, "folder": "/x",
        }  # fmt: skip

    def test_an_ordinary_sweep_has_the_environment_that_it_always_had(self):
        assert HERE.environment(FACTS) == Environment(**FACTS)

    def test_facts_lead_back_to_the_interpreter(self, tmp_path):
        for one in (HERE, A, Interpreter(None, str(tmp_path)), Interpreter(A.python, str(tmp_path))):
            facts = json.loads(json.dumps(one.facts()))
            assert Interpreter.from_facts(facts) == one
            assert facts["python"] == (one.python or sys.executable)
            assert facts["folder"] == (one.folder or os.getcwd())  # noqa: PTH109

    def test_facts_know_the_revision_of_a_folder(self, tmp_path):
        (tmp_path / "net.py").write_text("a = 1\n")
        for words in (["init", "-q"], ["add", "."], ["-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "m"]):
            subprocess.run(["git", "-C", tmp_path, *words], check=True)
        clean = Interpreter(None, str(tmp_path)).facts()
        (tmp_path / "net.py").write_text("a = 2\n")
        dirty = Interpreter(None, str(tmp_path)).facts()
        assert len(clean["git_revision"]) == 40
        assert dirty["git_revision"] == clean["git_revision"]
        assert dirty["git_description"] == f"{clean['git_description']}-dirty"

    def test_a_gpu_for_one_alone_is_refused_where_auto_would_mean_two_things(self):
        facts = Environment(**FACTS)
        ready = {A: SimpleNamespace(interpreter=A, gpus=[{}], environment=facts),
                 B: SimpleNamespace(interpreter=B, gpus=[], environment=facts)}  # fmt: skip
        with pytest.raises(ConfigError, match=rf"^python={B.python} has torch 2.13.0, which sees no GPU"):
            sites.check_devices(ready, {A: [{"device": "auto"}], B: [{"device": "auto"}]})
        sites.check_devices(ready, {A: [{"device": "cuda"}], B: [{"device": "cpu"}]})


class TestOpened:
    """Fork servers that are made up: what the probe says of each."""

    PART = {  # noqa: RUF012
        "model": {"module": {"_target_": "net.Net"}}, "phase": "inference", "device": "cpu",
        "mode": {"name": "eager", "_target_": "effbench.modes.eager.Eager"},
    }  # fmt: skip

    @pytest.fixture
    def started(self, monkeypatch):
        made = []

        class Probed:
            def __init__(self, python=None, preload=True, folder=None):
                self.folder, self.closed = folder, False
                made.append(self)

            def call(self, task, payload, timeout_s):
                if self.folder is None:
                    raise WorkerError("the fork server ended while starting: ImportError: too old")
                errors = [] if self.folder.endswith("good") else ["_target_=net.Net: no module named net"]
                return {"errors": errors, "settings": [[]], "gpus": [], "details": {}, "environment": FACTS}

            def close(self):
                self.closed = True

        monkeypatch.setattr(sites, "ForkServer", Probed)
        return made

    def open(self, *folders):
        return sites.opened({Interpreter(None, folder): [self.PART] for folder in folders}, None, "eager")

    def test_each_has_a_server_until_the_end(self, started):
        with self.open("/good", "/also-good") as ready:
            assert [site.environment.flags["folder"] for site in ready.values()] == ["/good", "/also-good"]
            assert [server.closed for server in started] == [False, False]
            assert ready[Interpreter(None, "/good")].start().folder == "/good"
        assert [server.closed for server in started[:2]] == [True, True]

    def test_what_cannot_be_imported_names_the_interpreter(self, started):
        with (
            pytest.raises(ConfigError, match=r"^folder=/empty: _target_=net\.Net: no module named net$"),
            self.open("/good", "/empty"),
        ):
            pass
        assert [server.closed for server in started] == [True, True]

    def test_a_server_that_does_not_start_names_it_too(self, started):
        with pytest.raises(ConfigError, match=r"^effbench's own interpreter: .* too old$"), self.open("/good", None):
            pass

    def test_the_only_one_needs_no_name(self, started):
        with pytest.raises(WorkerError, match=r"^the fork server ended"), self.open(None):
            pass

    def test_a_server_that_was_lent_is_left_running(self, started):
        lent = sites.ForkServer(folder="/good")
        with sites.opened({HERE: [self.PART]}, lent, "eager") as ready:
            assert ready[HERE].server is lent
        assert (len(started), lent.closed) == (1, False)


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


class TestSettings:
    def test_defaults_are_those_of_the_configuration(self):
        found = plan.Settings.with_defaults(db="x.db", protocol={"rounds": 10}, timeout_s=5.0)
        assert (found.db, found.timeout_s, found.baseline_mode, found.isolation) == ("x.db", 5.0, "eager", "fork")
        assert (found.protocol["rounds"], found.protocol["warmup_calls"]) == (10, 10)
        assert found.executor["gpus"] == "auto"

    def test_interpreters_are_swept_and_no_part_of_the_cell(self):
        assert not set(plan.INTERPRETER_KEYS) & set(plan.CELL_KEYS)
        (cell,) = cells(1)
        assert Unit(cell, A).key != Unit(cell, B).key
        assert Unit(cell, A).cell.key == Unit(cell, B).cell.key
        assert interpreters.distinct([Unit(cell, A), Unit(cell, B), Unit(cell, A)]) == [Unit(cell, A), Unit(cell, B)]

    def test_where_no_job_runs_here_no_server_is_started_beforehand(self):
        assert names_interpreter(["bs=1", "python=a"])
        assert names_interpreter(["folder=a"])
        assert not names_interpreter(["bs=1", "sweep.name=python=a"])


def test_progress_names_the_half():
    (cell,) = cells(1)
    assert set(unit_names([Unit(cell)]).values()) == {"m bs=1 eager float32"}
    assert list(unit_names([Unit(cell, A), Unit(cell, B)]).values()) == [
        "m bs=1 eager float32 · a", "m bs=1 eager float32 · b",
    ]  # fmt: skip
    both = [Unit(cell), Unit(cell, Interpreter(A.python, "/checkout/new"))]
    assert list(unit_names(both).values()) == ["m bs=1 eager float32 · own · here", "m bs=1 eager float32 · a · new"]
