"""The ready-made jobs for CI: valid YAML, and commands that effbench and the shell understand."""

from __future__ import annotations

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
        if block.page == "regressions.md" and not pages.FILE.match(block.text):
            content = yaml.safe_load(block.text)
            if "jobs" in content:
                (job,) = content["jobs"].values()
                assert "runs-on" in job and all(("run" in step) != ("uses" in step) for step in job["steps"])
                found["github"] = [step["run"] for step in job["steps"] if "run" in step]
            else:
                (job,) = content.values()
                assert all(isinstance(line, str) for line in job["script"]), "a colon makes a mapping of a line"
                found["gitlab"] = job["script"]
    return found


@pytest.mark.parametrize("service", ["github", "gitlab"])
def test_the_shell_and_effbench_understand_every_command(service, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    script = "\n".join(jobs()[service])
    subprocess.run(["sh", "-n"], input=script, text=True, check=True)
    lines = re.findall(r"\.venv/bin/effbench (.*?)(?: \|\| (?:failed|code)=\$\?|; fi)?$", script, re.M)
    kinds = []
    for line in lines:
        words = shlex.split(line.replace("$DB", "results/effbench.db"))
        kinds.append(words[0])
        if cli.is_bare_word(words[0]):
            pages.parser_of(words[0]).parse_args(words[1:])
        else:  # composed, and not run
            alone = [word for word in words if "," not in word or "shape" in word]
            assert hydra_sweep(["--cfg", "job", *alone]) is None
    assert {"-m", "check", "baseline"} <= set(kinds)


def fake_effbench(folder, sweep_exit, check_exit=0):
    """Put a program in the place of effbench that logs its first word and ends as told."""
    fake = folder / ".venv" / "bin" / "effbench"
    fake.parent.mkdir(parents=True, exist_ok=True)
    fake.write_text(f"#!/bin/sh\necho $1 >> log\ncase $1 in -m) exit {sweep_exit};; check) exit {check_exit};; esac\n")
    fake.chmod(0o755)


@pytest.mark.parametrize(
    ("sweep_exit", "check_exit", "branch", "code", "ran"),
    [
        (0, 0, "main", 0, ["-m", "baseline"]), (1, 0, "main", 1, ["-m"]), (2, 0, "", 2, ["-m"]),
        (0, 0, "", 0, ["-m", "check"]), (0, 1, "", 1, ["-m", "check"]), (1, 0, "", 1, ["-m", "check"]),
    ],
)  # fmt: skip
def test_what_the_gitlab_job_does(tmp_path, sweep_exit, check_exit, branch, code, ran):
    fake_effbench(tmp_path, sweep_exit, check_exit)
    source = "" if branch else "merge_request_event"
    env = {"PATH": "/usr/bin:/bin", "DB": "x.db", "CI_COMMIT_BRANCH": branch, "CI_PIPELINE_SOURCE": source}
    done = subprocess.run(["sh", "-c", "\n".join(["set -e", *jobs()["gitlab"][1:]])], cwd=tmp_path, env=env)
    assert (done.returncode, (tmp_path / "log").read_text().split()) == (code, ran)


def test_the_output_of_the_step_of_githubs_job(tmp_path):
    """The check that follows runs if the code is 0 or 1."""
    (step,) = (text for text in jobs()["github"] if "GITHUB_OUTPUT" in text)
    for code in (0, 1, 2):
        fake_effbench(tmp_path, code)
        env = {"PATH": "/usr/bin:/bin", "DB": "x.db", "GITHUB_OUTPUT": f"said{code}", "GITHUB_EVENT_NAME": "push"}
        done = subprocess.run(["sh", "-ec", step], cwd=tmp_path, env=env)
        assert (done.returncode, (tmp_path / f"said{code}").read_text()) == (code, f"code={code}\n")
