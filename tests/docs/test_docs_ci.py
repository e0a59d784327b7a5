"""The ready-made jobs for CI: valid YAML, and commands that effbench and the shell understand."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
import subprocess

import pages
import pytest
import yaml

from effbench import cli
from effbench.launcher.launch import hydra_sweep


def jobs() -> dict[str, list[str]]:
    """The shell scripts of the page's jobs."""
    found = {}
    for block in pages.blocks("yaml"):
        if block.page == "how-to/ci.md" and not pages.FILE.match(block.text):
            content = yaml.safe_load(block.text)
            if "jobs" in content:
                (job,) = content["jobs"].values()
                assert set(job) >= {"runs-on", "steps"}
                assert all(("run" in step) != ("uses" in step) for step in job["steps"])
                found["github"] = [step["run"] for step in job["steps"] if "run" in step]
            else:
                (job,) = content.values()
                assert all(isinstance(line, str) for line in job["script"]), "a colon makes a mapping of a line"
                found["gitlab"] = job["script"]
    return found


def test_the_shell_can_read_both():
    assert set(jobs()) == {"github", "gitlab"}
    for script in jobs().values():
        subprocess.run(["sh", "-n"], input="\n".join(script), text=True, check=True)


@pytest.mark.parametrize("service", ["github", "gitlab"])
def test_every_command_is_one(service, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    script = "\n".join(jobs()[service])
    lines = re.findall(r"\.venv/bin/effbench (.*?)(?: \|\| (?:failed|code)=\$\?|; fi)?$", script, re.M)
    kinds = []
    for line in lines:
        words = shlex.split(line.replace("$DB", "results/effbench.db"))
        kinds.append(words[0])
        if cli.is_bare_word(words[0]):
            parser = argparse.ArgumentParser()
            importlib.import_module(f"effbench.commands.{cli.COMMANDS[words[0]]}").add_arguments(parser)
            parser.parse_args(words[1:])
        else:  # composed, and not run
            assert (
                hydra_sweep(["--cfg", "job", *(word for word in words if "," not in word or "shape" in word)]) is None
            )
    assert {"-m", "check", "baseline"} <= set(kinds)


def as_gitlab_runs_it(folder, sweep_exit, check_exit, branch="", source=""):
    """The script's exit code and the commands that it ran, with effbench in its place that ends as told."""
    fake = folder / ".venv" / "bin" / "effbench"
    fake.parent.mkdir(parents=True)
    fake.write_text(f"#!/bin/sh\necho $1 >> log\ncase $1 in -m) exit {sweep_exit};; check) exit {check_exit};; esac\n")
    fake.chmod(0o755)
    script = "\n".join(["set -e", *jobs()["gitlab"][1:]])
    env = {"PATH": "/usr/bin:/bin", "DB": "x.db", "CI_COMMIT_BRANCH": branch, "CI_PIPELINE_SOURCE": source}
    done = subprocess.run(["sh", "-c", script], cwd=folder, env=env)
    return done.returncode, (folder / "log").read_text().split()


@pytest.mark.parametrize(
    ("sweep_exit", "check_exit", "facts", "code", "ran"),
    [
        (0, 0, {"branch": "main"}, 0, ["-m", "baseline"]),
        (1, 0, {"branch": "main"}, 1, ["-m"]),
        (2, 0, {"source": "merge_request_event"}, 2, ["-m"]),
        (0, 0, {"source": "merge_request_event"}, 0, ["-m", "check"]),
        (0, 1, {"source": "merge_request_event"}, 1, ["-m", "check"]),
        (1, 0, {"source": "merge_request_event"}, 1, ["-m", "check"]),
    ],
)
def test_what_the_gitlab_job_does(tmp_path, sweep_exit, check_exit, facts, code, ran):
    assert as_gitlab_runs_it(tmp_path, sweep_exit, check_exit, **facts) == (code, ran)


def test_the_output_of_the_step_of_githubs_job(tmp_path):
    """The check that follows runs if the code is 0 or 1."""
    (step,) = (text for text in jobs()["github"] if "GITHUB_OUTPUT" in text)
    fake = tmp_path / ".venv" / "bin" / "effbench"
    fake.parent.mkdir(parents=True)
    env = {"PATH": "/usr/bin:/bin", "DB": "x.db", "GITHUB_OUTPUT": "said", "GITHUB_EVENT_NAME": "push"}
    for sweep_exit in (0, 1, 2):
        fake.write_text(f"#!/bin/sh\nexit {sweep_exit}\n")
        fake.chmod(0o755)
        (tmp_path / "said").unlink(missing_ok=True)
        done = subprocess.run(["sh", "-ec", step], cwd=tmp_path, env=env)
        assert (done.returncode, (tmp_path / "said").read_text()) == (sweep_exit, f"code={sweep_exit}\n")
