import json
import shlex
from xml.etree import ElementTree

import pytest
from made_sweeps import a_cell, environment, steps

from effbench.comparison import confirm as rerun

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


def test_each_regression_has_a_command_that_shows_it(checked, effbench):
    rule = "exceptions=[{mode: cuda-graph, floor: 0.5, reason: a b}]"
    half = {EAGER: FAST, GRAPH: FAST}, {a_cell(dtype="float16"): SLOW, a_cell("cuda-graph", dtype="float16"): BROKEN}
    done = checked(*half, "--set", rule, "--across", "dtype", "--floor", "3%")
    assert done.code == 1
    assert "▲ slower" in done.out and "1.00 ms  1.10 ms" in done.out
    assert "degraded: CUDA graphs skipped: mutated inputs (ok before)" in done.out
    commands = [line.strip() for line in done.out.splitlines() if line.strip().startswith("effbench compare")]
    shown = [effbench(*shlex.split(command)[1:]) for command in commands]
    assert [one.code for one in shown] == [0, 0]
    assert "✗ broken" in shown[0].out and "▲ slower" in shown[1].out


def test_the_floor_of_the_command_line_wins(checked, effbench, tmp_path):
    folder = tmp_path / "conf" / "check"
    folder.mkdir(parents=True)
    (folder / "default.yaml").write_text("limits: {latency_ms: {floor: 20%}}\n")
    done = checked({EAGER: FAST}, {EAGER: SLOW})
    assert done.code == 0 and "limits: conf/check/default.yaml over effbench's defaults\n" in done.out
    done = effbench("check", "--baseline", "main", "--floor", "5%")
    assert done.code == 1 and "defaults, --floor 5%\n" in done.out
    # a setting is the floor of what has none of its own
    assert effbench("check", "--baseline", "main", "--set", "floor=5%").code == 0


def test_the_jobs_summary_is_appended(checked, tmp_path, monkeypatch):
    path = tmp_path / "summary.md"
    path.write_text("# of another step\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    hostile = a_cell(model="<img src=x onerror=alert(1)> a|b")
    assert checked({hostile: FAST}, {hostile: SLOW}).code == 1
    text = path.read_text()
    assert text.startswith("# of another step\n## ❌ effbench: check failed: 1 slower against main\n")
    assert "<img" not in text.partition("```sh")[0] + text.rpartition("```")[2]
    head, row = (
        next(line for line in text.splitlines() if line.startswith(f"| {one}")) for one in ("verd", "▲ slower")
    )
    assert "&lt;img" in row and row.count("|") == head.count("|")
    block = text.partition("```sh\n")[2].partition("\n```")[0].splitlines()
    assert [line[:8] for line in block] == ["# <img s", "effbench"]


def test_markdown_is_a_section_for_a_pull_request(checked, tmp_path, monkeypatch):
    """Passed or not, what fails, the commands, what else changed: the same as in the job's summary."""
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    other = a_cell(bs=64)
    done = checked({EAGER: FAST, GRAPH: FAST, other: SLOW}, {EAGER: SLOW, GRAPH: BROKEN, other: FAST}, "--format",
                   "markdown")  # fmt: skip
    assert done.code == 1 and done.out.rstrip() == summary.read_text().rstrip()
    lines = done.out.splitlines()
    assert lines[0] == "## ❌ effbench: check failed: 1 broken, 1 slower against main"
    rows = [line.split(" | ")[0].strip("| ") for line in lines if line.startswith("| ") and "---" not in line]
    assert rows == ["verdict", "✗ broken", "▲ slower", "verdict", "▼ faster"]
    assert done.out.count("<details>") == done.out.count("</details>") == 2
    assert sum(line.startswith("effbench compare") for line in lines) == 2
    summary.unlink()
    assert checked({EAGER: FAST}, {EAGER: FAST}).code == 0
    assert summary.read_text().startswith("## ✅ effbench: check passed against main\n")


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


def test_formats(checked, effbench, tmp_path):
    done = checked({EAGER: FAST, DEFAULT: FAST}, {EAGER: SLOW}, "--junit", "out/junit.xml", "--only", "new")
    assert done.code == 1 and "▲ slower" not in done.out
    root = ElementTree.parse(tmp_path / "out" / "junit.xml").getroot()
    assert root.get("failures") == "2", "of all rows, whatever --only shows"
    assert [one.get("type") for one in root.iter("failure")] == ["slower", "missing"]
    done = effbench("check", "--baseline", "main", "--format", "json")
    whole = json.loads(done.out)
    assert (done.code, whole["passed"], whole["baseline"]) == (1, False, "main")
    assert [one["metric"] for one in whole["failing"]] == ["latency_ms", "status"]
    assert [one["verdict"] for one in whole["changes"] if one["gates"]] == ["slower", "missing"]
    done = effbench("check", "--baseline", "main", "--format", "markdown", "--out", "comment.md")
    assert (done.code, done.out) == (1, "")
    assert "| ▲ slower |" in (tmp_path / "comment.md").read_text()
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
    def refused(code, said, name="main"):
        done = effbench("check", "--baseline", name)
        assert (done.code, done.out, done.err.count("\n")) == (code, "", 1), done
        assert said in done.err

    refused(3, "holds no sweep yet")
    sweep = made.sweep({EAGER: FAST})
    refused(3, "no baseline 'main'")
    effbench("baseline", "set", "main", sweep)
    refused(3, "nearest: main", "mian")
    refused(2, "is the baseline 'main' itself")
    unmeasured = made.sweep({EAGER: None}, state="running")
    refused(3, "has no trial yet")
    made.delete_sweep(unmeasured)
    made.sweep({EAGER: FAST})
    made.delete_sweep(sweep)
    refused(3, "gone from this database")


# --- what a check says of what it did not judge, and where ---


@pytest.fixture
def two_gpus(made, effbench):
    """`main` on an L40S, and a sweep on an L4 that is slow there and on an L40S."""
    small, large = (environment(gpu_name=f"NVIDIA {name}") for name in ("L4", "L40S"))
    assert effbench("baseline", "set", "main", made.sweep({EAGER: FAST}, env=large)).code == 0
    sweep = made.sweep({EAGER: SLOW}, env=small)
    made.sweep({EAGER: FAST}, env=large, into=sweep)


def test_hardware_that_was_not_checked_is_named(two_gpus, effbench):
    done = {}
    for format in ("table", "markdown", "json", "csv", "junit"):
        done[format] = effbench("check", "--baseline", "main", "--format", format)
        assert done[format].code == 0
        assert "NVIDIA L4" in (done[format].err if format == "csv" else done[format].out), format
    assert "check passed against main; NVIDIA L4 not checked\n" in done["table"].out
    assert json.loads(done["json"].out)["unchecked"] == ["NVIDIA L4"]
    root = ElementTree.fromstring(done["junit"].out.encode())
    assert root.find("testsuite[@name='NVIDIA L4']/testcase/skipped") is not None
    assert int(root.get("skipped")) == len(list(root.iter("skipped")))


def test_a_check_that_judged_nothing_says_so(checked):
    done = checked({EAGER: ERROR, DEFAULT: ERROR}, {EAGER: ERROR, DEFAULT: OOM})
    assert done.code == 0
    assert done.out.endswith("check passed against main; 0 of 2 cells have figures to compare\n")


@pytest.mark.parametrize("option", ["--junit", "--out"])
def test_a_file_that_cannot_be_written_does_not_hide_the_verdict(
    checked, effbench, made, tmp_path, monkeypatch, option
):
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    format = ("--format", "markdown") if option == "--out" else ()
    done = checked({EAGER: FAST}, {EAGER: SLOW}, option, "/proc/x/y", *format)
    assert done.code == 2
    assert "cannot write /proc/x/y" in done.err
    assert summary.read_text().startswith("## ❌ effbench: check failed: 1 slower against main\n")
    assert "not checked" not in summary.read_text()


def test_a_summary_that_cannot_be_written_costs_nothing_else(checked, tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "/proc/x/summary.md")
    done = checked({EAGER: FAST}, {EAGER: SLOW}, "--junit", "junit.xml")
    assert (done.code, "cannot write GITHUB_STEP_SUMMARY" in done.err) == (2, True)
    assert "check failed: 1 slower against main" in done.out
    assert ElementTree.parse(tmp_path / "junit.xml").getroot().get("failures") == "1"


def test_an_interrupted_confirmation_tells_what_the_sweep_showed(checked, tmp_path, monkeypatch):
    def ctrl_c(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(rerun, "confirm", ctrl_c)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    done = checked({EAGER: FAST}, {EAGER: SLOW}, "--confirm", "--junit", "junit.xml")
    assert (done.code, done.err) == (130, "effbench: interrupted while confirming\n")
    assert "note: the re-run was interrupted\n" in done.out
    for said in (done.out, (tmp_path / "summary.md").read_text(), (tmp_path / "junit.xml").read_text()):
        assert "neither confirmed nor refuted: the re-run was interrupted" in " ".join(said.split())
