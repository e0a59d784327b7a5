import json
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from made_sweeps import a_cell, environment, steps

from effbench.commands.check import command_for
from effbench.comparison.verdicts import Change, Verdict

EAGER, DEFAULT, GRAPH = (a_cell(mode) for mode in ("eager", "default", "cuda-graph"))
FAST, SLOW = {"latency_ms": steps(1.0, 0.001)}, {"latency_ms": steps(1.1, 0.001)}
NOISY = {"latency_ms": steps(1.05, 0.1)}
THROTTLED = {"status": "noisy", "reason": "throttled"}
OOM, ERROR = {"status": "oom", "reason": "20 GiB"}, {"status": "error", "reason": "boom"}
BROKEN = {"status": "degraded", "reason": "CUDA graphs skipped: mutated inputs"}


@pytest.fixture
def checked(made, effbench):
    """Set the first sweep as `main`, run the second, check it."""

    def call(before, after, *options, env=None):
        first = made.sweep(before)
        assert effbench("baseline", "set", "main", first).code == 0
        made.sweep(after, env=env)
        return effbench("check", "--baseline", "main", *options)

    return call


@pytest.mark.parametrize(
    ("before", "after", "options", "code", "said"),
    [
        ({EAGER: FAST}, {EAGER: FAST}, (), 0, "check passed against main"),
        ({EAGER: FAST}, {EAGER: NOISY}, (), 0, "check passed"),
        ({EAGER: SLOW}, {EAGER: FAST}, (), 0, "check passed"),
        ({EAGER: FAST}, {EAGER: FAST, DEFAULT: FAST}, (), 0, "1 new"),
        ({EAGER: FAST, DEFAULT: BROKEN}, {EAGER: FAST, DEFAULT: FAST}, (), 0, "1 fixed"),
        ({EAGER: FAST, DEFAULT: BROKEN}, {EAGER: FAST, DEFAULT: BROKEN}, (), 0, "check passed"),
        ({EAGER: FAST}, {EAGER: SLOW}, (), 1, "check failed: 1 slower against main"),
        ({EAGER: FAST}, {EAGER: SLOW}, ("--floor", "15%"), 0, "check passed"),
        ({EAGER: FAST}, {EAGER: SLOW}, ("--metric", "kernels"), 0, "check passed"),
        ({EAGER: FAST, GRAPH: FAST}, {EAGER: FAST, GRAPH: BROKEN}, (), 1, "1 broken"),
        ({EAGER: FAST, GRAPH: FAST}, {EAGER: FAST, GRAPH: BROKEN}, ("--cell", "eager"), 0, "check passed"),
        ({EAGER: FAST, DEFAULT: FAST}, {EAGER: FAST}, (), 1, "1 missing"),
        ({EAGER: FAST, DEFAULT: FAST}, {EAGER: FAST, DEFAULT: None}, (), 1, "planned, not measured"),
        ({EAGER: FAST, DEFAULT: FAST}, {EAGER: FAST}, ("--set", "on_missing=ignore"), 0, "missing (ignored)"),
        ({EAGER: FAST, DEFAULT: BROKEN}, {EAGER: FAST, DEFAULT: ERROR}, (), 1, "1 broken"),
        ({EAGER: FAST, DEFAULT: THROTTLED}, {EAGER: FAST, DEFAULT: ERROR}, (), 1, "1 broken"),
        ({EAGER: FAST, DEFAULT: OOM}, {EAGER: FAST, DEFAULT: ERROR}, (), 1, "error: boom (before oom: 20 GiB)"),
        ({EAGER: FAST, DEFAULT: ERROR}, {EAGER: FAST, DEFAULT: OOM}, (), 0, "oom: 20 GiB (before error: boom)"),
        ({EAGER: FAST, DEFAULT: ERROR}, {EAGER: FAST, DEFAULT: BROKEN}, (), 0, "1 fixed"),
        ({EAGER: FAST, DEFAULT: ERROR}, {EAGER: FAST}, (), 0, "missing (ignored)"),
        ({EAGER: FAST}, {EAGER: FAST, DEFAULT: ERROR}, (), 0, "error: boom"),
        ({EAGER: {"kernels": 12}}, {EAGER: {"kernels": 13}}, (), 1, "kernels"),
        ({EAGER: {"graph_breaks": 0}}, {EAGER: {"graph_breaks": 1}}, (), 1, "graph_breaks"),
    ],
)
def test_exit_codes(checked, before, after, options, code, said):
    done = checked(before, after, *options)
    assert (done.code, done.err) == (code, "")
    assert " ".join(said.split()) in " ".join(done.out.replace("│", " ").split())


def test_what_is_shown_does_not_decide(checked):
    done = checked({EAGER: FAST}, {EAGER: SLOW}, "--only", "broken")
    assert done.code == 1
    assert "▲ slower" not in done.out


def test_each_regression_has_a_command_that_shows_it(checked, effbench):
    rule = "exceptions=[{mode: cuda-graph, floor: 0.5, reason: a b}]"
    done = checked({EAGER: FAST, GRAPH: FAST}, {EAGER: SLOW, GRAPH: BROKEN}, "--set", rule)
    assert done.code == 1
    assert "latency_ms slower: 1.00 ms → 1.10 ms" in done.out
    assert "status broken: degraded: CUDA graphs skipped: mutated inputs (ok before)" in done.out
    commands = [line.strip() for line in done.out.splitlines() if line.strip().startswith("effbench compare")]
    assert len(commands) == 2
    shown = [effbench(*shlex.split(command)[1:]) for command in commands]
    assert [one.code for one in shown] == [0, 0]
    assert "✗ broken" in shown[0].out
    assert "▲ slower" in shown[1].out


def test_the_command_accepts_what_the_check_accepted(checked, effbench):
    done = checked({EAGER: FAST}, {a_cell(dtype="float16"): SLOW}, "--across", "dtype", "--floor", "3%")
    assert done.code == 1
    (command,) = [line.strip() for line in done.out.splitlines() if line.strip().startswith("effbench compare")]
    assert "--across dtype" in command
    assert "▲ slower" in effbench(*shlex.split(command)[1:]).out


def test_the_command_says_what_the_check_said(checked, effbench):
    """However many rows the check tests, and whatever else is slower: a p of 0.03 passes among many others that are
    clear, and would not as one of the few rows of its own cell."""
    faint = {"latency_ms": steps(1.0, 0.03)}, {"latency_ms": steps(1.078, 0.03)}
    loud = [a_cell(bs=size) for size in (1, 2, 4, 16, 32, 64, 128, 256)]
    quiet = dict.fromkeys(("period_ms", "gpu_busy_ms", "energy_mj"), 3.0)
    twice = dict.fromkeys(quiet, 6.0)
    before = {EAGER: faint[0]} | dict.fromkeys(loud, FAST | quiet)
    after = {EAGER: faint[1]} | dict.fromkeys(loud, SLOW | twice)
    done = checked(before, after, "--format", "json")
    (row,) = [one for one in json.loads(done.out)["failing"] if one["cell_key"] == EAGER.key]
    shown = json.loads(effbench(*shlex.split(row["command"])[1:], "--format", "json").out)["changes"]
    assert {one["cell_key"] for one in shown} == {EAGER.key}
    (latency,) = [one for one in shown if one["metric"] == "latency_ms"]
    assert latency["verdict"] == "slower"
    assert latency["p_value"] * len([one for one in shown if one["p_value"] is not None]) > 0.05
    # of the metrics asked for, the command tests the same
    done = effbench("check", "--baseline", "main", "--metric", "latency_ms", "--metric", "kernels")
    (command,) = [line for line in done.out.splitlines() if EAGER.key[:12] in line]
    assert "--metric latency_ms --metric kernels" in command
    assert "period_ms" not in effbench(*shlex.split(command)[1:]).out


def test_a_cell_that_failed_when_run_again_is_shown_where_it_failed():
    row, sweep = Change("0123456789abcdef", "mlp", "latency_ms", Verdict.BROKEN), SimpleNamespace(id="after")
    said = command_for(row, "before", sweep, "x.db", ["--floor", "3%"], {row.key: "again"})
    assert said == "effbench ls --failures --sweep again --db x.db"


def test_the_floor_of_the_command_line_wins(checked, effbench, tmp_path):
    folder = tmp_path / "conf" / "check"
    folder.mkdir(parents=True)
    (folder / "default.yaml").write_text("limits: {latency_ms: {floor: 20%}}\n")
    done = checked({EAGER: FAST}, {EAGER: SLOW})
    assert done.code == 0
    assert "limits: conf/check/default.yaml over effbench's defaults\n" in done.out
    done = effbench("check", "--baseline", "main", "--floor", "5%")
    assert done.code == 1
    assert "limits: conf/check/default.yaml over effbench's defaults, --floor 5%\n" in done.out
    # a setting is the floor of what has none of its own
    assert effbench("check", "--baseline", "main", "--set", "floor=5%").code == 0
    (command,) = [line for line in done.out.splitlines() if line.strip().startswith("effbench compare")]
    assert "--floor 5%" in command


def test_junit(checked, tmp_path):
    done = checked({EAGER: FAST, DEFAULT: FAST}, {EAGER: SLOW}, "--junit", "out/junit.xml", "--only", "new")
    assert done.code == 1
    root = ElementTree.parse(tmp_path / "out" / "junit.xml").getroot()
    assert root.get("failures") == "2"  # of all rows, whatever --only shows
    assert [one.get("type") for one in root.iter("failure")] == ["slower", "missing"]


def test_the_jobs_summary_is_appended(checked, tmp_path, monkeypatch):
    path = tmp_path / "summary.md"
    path.write_text("# of another step\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    hostile = a_cell(model="<img src=x onerror=alert(1)> a|b")
    assert checked({hostile: FAST}, {hostile: SLOW}).code == 1
    text = path.read_text()
    assert text.startswith("# of another step\n## ❌ effbench: check failed: 1 slower against main\n")
    assert "<img" not in text.partition("```sh")[0] + text.rpartition("```")[2]
    row = next(line for line in text.splitlines() if line.startswith("| ▲ slower"))
    assert "&lt;img" in row
    assert row.count("|") == next(line for line in text.splitlines() if line.startswith("| verdict")).count("|")
    block = text.partition("```sh\n")[2].partition("\n```")[0].splitlines()
    assert block[0].startswith("# <img src=x onerror=alert(1)> a|b bs=8 eager bfloat16: latency_ms slower")
    assert block[1].startswith("effbench compare ")
    assert len(block) == 2


def test_markdown_is_a_section_for_a_pull_request(checked, effbench, tmp_path, monkeypatch):
    """Passed or not, what fails, the commands, what else changed: the same as in the job's summary."""
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    other, third = a_cell(bs=64), a_cell(bs=128)
    before = {EAGER: FAST, GRAPH: FAST, other: SLOW, third: ERROR}
    done = checked(before, {EAGER: SLOW, GRAPH: BROKEN, other: FAST, third: OOM}, "--format", "markdown")
    assert done.code == 1
    assert done.out.rstrip() == summary.read_text().rstrip()
    lines = done.out.splitlines()
    assert lines[0] == "## ❌ effbench: check failed: 1 broken, 1 slower against main"
    table = [line for line in lines if line.startswith("| ")]
    assert [line.split(" | ")[0].strip("| ") for line in table if "---" not in line] == [
        "verdict", "✗ broken", "▲ slower", "verdict", "▼ faster", "= same"
    ]  # fmt: skip
    assert "<details><summary>How to see each of them</summary>" in lines
    assert "<details><summary>What fails nothing: 1 faster, 1 same</summary>" in lines
    assert done.out.count("<details>") == done.out.count("</details>") == 2
    for line in lines:  # a table or a block inside of HTML needs an empty line around it
        if line.startswith("<details>"):
            assert lines[lines.index(line) + 1] == ""
    assert sum(line.startswith("effbench compare") for line in lines) == 2
    assert any("limits: effbench&" in line or "limits: effbench's defaults" in line for line in lines)
    summary.unlink()
    assert checked({EAGER: FAST}, {EAGER: FAST}).code == 0
    text = summary.read_text()
    assert text.startswith("## ✅ effbench: check passed against main\n")
    assert "<details>" not in text


def test_a_job_that_could_not_check_says_why_in_its_summary(made, effbench, tmp_path, monkeypatch):
    path = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    made.sweep({EAGER: FAST})
    done = effbench("check", "--baseline", "main")
    assert done.code == 3
    assert path.read_text() == (
        "## ❌ effbench: not checked against main\n\n"
        + done.err.removeprefix("effbench: ").replace("`", "&#96;") + "\n"
    )  # fmt: skip


def test_a_summary_of_very_many_rows_stays_short(checked, monkeypatch, tmp_path):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    cells = [a_cell(bs=size) for size in range(1, 61)]
    assert checked(dict.fromkeys(cells, FAST), dict.fromkeys(cells, SLOW)).code == 1
    text = (tmp_path / "summary.md").read_text()
    assert text.count("| ▲ slower") == 50
    assert "10 further rows are omitted here." in text


def test_a_summary_that_cannot_be_written(checked, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "/proc/none/summary")
    done = checked({EAGER: FAST}, {EAGER: FAST})
    assert done.code == 2
    assert "cannot write GITHUB_STEP_SUMMARY" in done.err


def test_formats(checked, effbench, tmp_path):
    assert checked({EAGER: FAST}, {EAGER: SLOW}).code == 1
    done = effbench("check", "--baseline", "main", "--format", "json")
    assert done.code == 1
    (row,) = [one for one in json.loads(done.out)["changes"] if one["gates"]]
    assert (row["metric"], row["verdict"]) == ("latency_ms", "slower")
    done = effbench("check", "--baseline", "main", "--format", "markdown", "--out", "comment.md")
    assert (done.code, done.out) == (1, "")
    assert "| ▲ slower |" in (tmp_path / "comment.md").read_text()
    whole = json.loads(effbench("check", "--baseline", "main", "--format", "json").out)
    assert (whole["passed"], whole["baseline"], whole["limits"]) == (False, "main", "effbench's defaults")
    assert [one["metric"] for one in whole["failing"]] == ["latency_ms"]
    assert "effbench compare" in effbench("check", "--baseline", "main", "--format", "junit").out
    done = effbench("check", "--baseline", "main", "--out", "x.txt")
    assert (done.code, done.out) == (2, "")
    assert not (tmp_path / "x.txt").exists()


def test_a_configuration_with_exceptions(checked, effbench, tmp_path):
    assert checked({EAGER: FAST}, {EAGER: SLOW}).code == 1
    folder = tmp_path / "conf" / "check"
    folder.mkdir(parents=True)
    rule = "exceptions:\n  - {mode: EAGER, metric: latency_*, ignore: true, until: DATE, reason: shared runner}\n"

    def check(mode, date):
        (folder / "ours.yaml").write_text(rule.replace("EAGER", mode).replace("DATE", date))
        return effbench("check", "--baseline", "main", "--config", "ours")

    ignored = check("eager", "2999-01-01")
    assert ignored.code == 0
    assert "slower (ignored)" in ignored.out
    assert "ignored: shared runner" in " ".join(ignored.out.split())
    ended = check("eager", "2020-01-01")
    assert ended.code == 1
    assert "note: exception for mode=eager metric=latency_* ended on 2020-01-01: shared runner" in ended.out
    unused = check("defualt", "2999-01-01")
    assert unused.code == 1
    assert "fits no cell here" in unused.out
    (folder / "ours.yaml").write_text("exceptions:\n  - {mode: eager, ignore: true}\n")
    refused = effbench("check", "--baseline", "main", "--config", "ours")
    assert (refused.code, refused.out) == (2, "")
    assert "needs a reason" in refused.err


def test_baselines_by_hardware(made, effbench):
    other = environment(gpu_name="NVIDIA A100")
    for env, figures in ((None, FAST), (other, SLOW)):
        effbench("baseline", "set", "main", made.sweep({EAGER: figures}, env=env))
    here = made.sweep({EAGER: SLOW})
    there = made.sweep({EAGER: SLOW}, env=other)
    assert effbench("check", "--baseline", "main", "--sweep", there).code == 0
    assert effbench("check", "--baseline", "main", "--sweep", here).code == 1
    third = made.sweep({EAGER: SLOW}, env=environment(gpu_name="NVIDIA L4"))
    done = effbench("check", "--baseline", "main", "--sweep", third)
    assert (done.code, done.out) == (3, "")
    assert "is set on NVIDIA A100, NVIDIA H200, and sweep" in done.err


def test_nothing_comparable(checked):
    done = checked({EAGER: FAST}, {DEFAULT: FAST})
    assert (done.code, done.out) == (3, "")
    assert "nothing comparable" in done.err
    assert "differ in dtype" in checked({EAGER: FAST}, {a_cell(dtype="float16"): FAST}).err


def test_baselines_that_cannot_be_used(made, effbench):
    def check(name="main"):
        done = effbench("check", "--baseline", name)
        assert done.out == ""
        assert done.err.count("\n") == 1
        return done

    empty = check()
    assert empty.code == 3
    assert "holds no sweep yet" in empty.err
    sweep = made.sweep({EAGER: FAST})
    assert "no baseline 'main'" in check().err
    assert check().code == 3
    effbench("baseline", "set", "main", sweep)
    assert "nearest: main" in check("mian").err
    itself = check()
    assert itself.code == 2
    assert "is the baseline 'main' itself" in itself.err
    unmeasured = made.sweep({EAGER: None}, state="running")
    assert "has no trial yet" in check().err
    made.delete_sweep(unmeasured)
    made.sweep({EAGER: FAST})
    made.delete_sweep(sweep)
    gone = check()
    assert gone.code == 3
    assert "gone from this database" in gone.err


def test_databases_that_cannot_be_used(made, effbench, tmp_path):
    (tmp_path / "notes.txt").write_text("no database at all, only text that is longer than a header")
    (tmp_path / "empty").write_bytes(b"")
    for url, said in (("none.db", "no database at"), ("notes.txt", "not a database"), ("empty", "is empty"),
                      (str(tmp_path), "is a folder"), ("mysql://x/y", "unknown database")):  # fmt: skip
        done = effbench("check", "--baseline", "main", "--db", url)
        assert (done.code, done.out) == (2, "")
        assert said in done.err
        assert not (tmp_path / "none.db").exists()


def test_without_a_baseline_to_name(made, effbench):
    done = effbench("check")
    assert done.code == 2
    assert "--baseline" in done.err


def test_as_a_process(made, tmp_path):
    """The exit code is the process's, and nothing is printed beside what was asked for."""
    first = made.sweep({EAGER: FAST})
    made.sweep({EAGER: SLOW})

    def run(*words):
        root = Path(__file__).resolve().parents[2]
        return subprocess.run([sys.executable, "-m", "effbench", *words], cwd=tmp_path, env={"PYTHONPATH": str(root)},
                              capture_output=True, text=True)  # fmt: skip

    assert run("baseline", "set", "main", first).returncode == 0
    done = run("check", "--baseline", "main", "--format", "json")
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout)["counts"]["slower"] == 1
