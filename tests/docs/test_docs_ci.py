"""The ready-made jobs for CI: valid YAML, and commands that effbench and the shell understand."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pages
import pytest
import yaml

from effbench.cli import main as cli
from effbench.config.launch import hydra_sweep

WORKFLOW = yaml.safe_load((pages.DOCS / "how-to" / "effbench-check.yml").read_text("utf-8"))
MEASURE, COMMENT = WORKFLOW["jobs"].values()


def jobs() -> dict[str, list[str]]:
    """The shell scripts of the ready-made jobs."""
    found = {"github": [step["run"] for step in MEASURE["steps"] if "run" in step]}
    for block in pages.blocks("yaml"):
        if block.page == "how-to/ci.md" and not pages.FILE.match(block.text):
            (job,) = yaml.safe_load(block.text).values()
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


# --- the comment on GitHub


def test_only_the_job_that_runs_no_code_of_a_pull_request_may_write():
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert "permissions" not in MEASURE
    assert COMMENT["permissions"] == {"pull-requests": "write"}
    assert COMMENT["runs-on"] == "ubuntu-latest"
    assert not any("run" in step or "checkout" in step["uses"] for step in COMMENT["steps"])
    assert "head.repo.full_name == github.repository" in MEASURE["if"], "no fork"


def test_a_file_goes_from_one_job_to_the_other():
    actions = {step["uses"]: step.get("with") for step in COMMENT["steps"]}
    downloaded = actions["actions/download-artifact@v4"]["name"]
    uploads = [step["with"] for step in MEASURE["steps"] if "upload" in step.get("uses", "")]
    assert {"name": downloaded, "path": "effbench.md"} in uploads


@pytest.mark.parametrize("written", ["## passed", None])
def test_the_summary_of_a_job_says_if_nothing_was_compared(written, tmp_path):
    (script,) = (script for script in jobs()["github"] if "GITHUB_STEP_SUMMARY" in script)
    if written:
        (tmp_path / "effbench.md").write_text(written)
    facts = {"PATH": "/usr/bin:/bin", "GITHUB_STEP_SUMMARY": "summary.md"}
    subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env=facts, check=True)
    text = (tmp_path / "summary.md").read_text("utf-8")
    assert text == (tmp_path / "effbench.md").read_text("utf-8")
    assert text == (written or "## ❌ effbench: nothing was compared; the log says why\n")


#: GitHub as the script of the comment sees it: prints what the script calls.
GITHUB = """
const calls = [];
const call = name => async options => calls.push({name, ...options});
const issues = {
  listComments: 'list', updateComment: call('update'), createComment: call('create'),
};
const github = {rest: {issues}, paginate: async what => what === 'list' ? COMMENTS : []};
const context = {
  repo: {owner: 'us', repo: 'net'}, issue: {number: 7}, runId: 5,
  serverUrl: 'https://github.com', payload: {pull_request: {head: {sha: 'abc123'}}},
};
(async () => { SCRIPT })().then(() => console.log(JSON.stringify(calls)));
"""


@pytest.fixture
def posted(tmp_path):
    """Runs the script of the comment with a report; returns what it calls, and how."""
    import playwright

    node = Path(playwright.__file__).parent / "driver" / "node"

    def call(report, *comments):
        (tmp_path / "effbench.md").write_text(report, "utf-8")
        script = COMMENT["steps"][-1]["with"]["script"]
        program = GITHUB.replace("COMMENTS", json.dumps(comments)).replace("SCRIPT", script)
        done = subprocess.run(
            [node, "-e", program], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        (found,) = json.loads(done.stdout)
        return found

    return call


def test_a_pull_request_has_one_comment(posted):
    report = "## ✅ effbench: check passed against main\n"
    first = posted(report)
    assert (first["name"], first["issue_number"]) == ("create", 7)
    shown = f"{report}\nabc123: [log and site](https://github.com/us/net/actions/runs/5)\n"
    assert first["body"] == f"<!-- effbench -->\n{shown}"
    quoted = {"id": 1, "user": {"type": "User"}, "body": first["body"]}
    other = {"id": 2, "user": {"type": "Bot"}, "body": "coverage"}
    ours = {"id": 3, "user": {"type": "Bot"}, "body": first["body"]}
    second = posted("## ❌ effbench\n", quoted, other, ours)
    assert (second["name"], second["comment_id"]) == ("update", 3)
    assert "## ❌ effbench" in second["body"]


def test_a_comment_is_no_longer_than_github_allows(posted):
    body = posted("é" * 70_000)["body"]
    assert 60_000 < len(body) < 65_536
    assert "log and site" in body
