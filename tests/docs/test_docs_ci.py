"""The ready-made jobs for CI: valid YAML, and commands that effbench and the shell understand."""

from __future__ import annotations

import re
import shlex
import subprocess

import pages
import pytest
import yaml

from effbench.cli import main as cli
from effbench.config.launch import hydra_sweep


def jobs() -> dict[str, list[str]]:
    """The shell scripts of the page's jobs."""
    found = {}
    for block in pages.blocks("yaml"):
        if block.page == "how-to/ci.md" and not pages.FILE.match(block.text):
            content = yaml.safe_load(block.text)
            if "jobs" in content:
                (job,) = content["jobs"].values()
                found["github"] = [step["run"] for step in job["steps"] if "run" in step]
            else:
                (job,) = content.values()
                assert all(isinstance(line, str) for line in job["script"]), (
                    "a colon makes a mapping of a line"
                )
                found["gitlab"] = job["script"]
    return found


@pytest.mark.parametrize("service", ["github", "gitlab"])
def test_every_command_is_one(service, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    script = "\n".join(jobs()[service])
    lines = re.findall(
        r"\.venv/bin/effbench (.*?)(?: \|\| (?:failed|code)=\$\?|; fi)?$", script, re.M
    )
    kinds = []
    for line in lines:
        words = shlex.split(line.replace("$DB", "results/effbench.db"))
        kinds.append(words[0])
        if cli.is_bare_word(words[0]):
            pages.parse(words)
        else:  # composed, and not run
            single = [word for word in words if "," not in word or "shape" in word]
            assert hydra_sweep(["--cfg", "job", *single]) is None
    assert {"-m", "check", "baseline"} <= set(kinds)


@pytest.fixture
def ending(tmp_path):
    """Puts a program in effbench's place whose sweep and check end with these codes."""
    fake = tmp_path / ".venv" / "bin" / "effbench"
    fake.parent.mkdir(parents=True)

    def make(sweep_exit, check_exit=0):
        cases = f"case $1 in -m) exit {sweep_exit};; check) exit {check_exit};; esac"
        fake.write_text(f"#!/bin/sh\necho $1 >> log\n{cases}\n")
        fake.chmod(0o755)
        return {"PATH": "/usr/bin:/bin", "DB": "x.db"}

    return make


@pytest.mark.parametrize(
    ("sweep_exit", "check_exit", "on_main", "code", "ran"),
    [
        (0, 0, True, 0, ["-m", "baseline"]),
        (1, 0, True, 1, ["-m"]),
        (0, 1, False, 1, ["-m", "check"]),
        (1, 0, False, 1, ["-m", "check"]),
    ],
)
def test_what_the_gitlab_job_does(ending, tmp_path, sweep_exit, check_exit, on_main, code, ran):
    script = "\n".join(["set -e", *jobs()["gitlab"][1:]])
    facts = (
        {"CI_COMMIT_BRANCH": "main"} if on_main else {"CI_PIPELINE_SOURCE": "merge_request_event"}
    )
    done = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, env=ending(sweep_exit, check_exit) | facts
    )
    assert (done.returncode, (tmp_path / "log").read_text().split()) == (code, ran)
