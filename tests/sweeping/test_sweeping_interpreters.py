"""Interpreters as axes: found, checked, told apart, and interleaved. No torch; small scripts stand for interpreters."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from effbench.sweeping import interpreters, plan, sites
from schedule_parts import cells

import effbench
from effbench.cell import Environment
from effbench.errors import ConfigError, WorkerError
from effbench.launcher.launch import names_interpreter
from effbench.sweep.interpreters import HERE, Interpreter, Unit, check, named_twice, resolve

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
