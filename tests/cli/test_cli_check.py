import json
import shlex
from unittest.mock import Mock
from xml.etree import ElementTree

import pytest
from made_sweeps import DEFAULT, EAGER, FAST, GRAPH, SLOW, a_cell, environment

from effbench.comparison import confirm as rerun

ERROR = {"status": "error", "reason": "boom"}
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
        ({EAGER: FAST}, {EAGER: FAST, DEFAULT: ERROR}, (), 0, "1 new"),
        ({EAGER: FAST}, {EAGER: SLOW}, (), 1, "check failed: 1 slower against main"),
        ({EAGER: FAST}, {EAGER: SLOW}, ("--metric", "kernels"), 0, "check passed"),
        ({EAGER: FAST, GRAPH: FAST}, {EAGER: FAST, GRAPH: BROKEN}, (), 1, "1 broken"),
        (
            {EAGER: FAST, GRAPH: FAST},
            {EAGER: FAST, GRAPH: BROKEN},
            ("--cell", "eager"),
            0,
            "check passed",
        ),
        ({EAGER: FAST, DEFAULT: FAST}, {EAGER: FAST}, (), 1, "1 missing"),
        (
            {EAGER: FAST, DEFAULT: FAST},
            {EAGER: FAST},
            ("--set", "on_missing=ignore"),
            0,
            "missing (ignored)",
        ),
        ({EAGER: FAST}, {DEFAULT: FAST}, (), 3, "nothing comparable"),
    ],
)
def test_exit_codes(checked, before, after, options, code, said):
    done = checked(before, after, *options)
    assert (done.code, done.out if code == 3 else done.err) == (code, "")
    assert said in " ".join((done.out + done.err).replace("│", " ").split())


def test_the_table_has_every_row_that_fails_the_check(checked, effbench):
    done = checked({EAGER: FAST} | {a_cell(bs=100 + n): FAST for n in range(11)}, {EAGER: FAST})
    assert (done.code, done.out.count("? missing")) == (1, 11)
    done = effbench("check", "--baseline", "main", "--set", "on_missing=ignore")
    assert (done.code, done.out.count("? missing")) == (
        0,
        0,
    ) and "the table omits 11 missing, 12 same" in done.out


@pytest.mark.parametrize("after", [ERROR, {"status": "oom", "reason": "20 GiB"}])
def test_a_check_that_judges_nothing_does_not_pass(checked, effbench, after):
    done = checked({EAGER: after}, {EAGER: after})
    assert done.code == 3 and not done.err
    assert "nothing was checked against main; " in done.out
    assert "0 of 1 cells have figures in both sweeps" in " ".join(done.out.split())
    assert (
        json.loads(effbench("check", "--baseline", "main", "--format", "json").out)["passed"]
        is False
    )
    assert effbench("check", "--baseline", "main", "--format", "markdown").out.startswith(
        "## ❌ effbench: nothing was"
    )
    suites = ElementTree.fromstring(
        effbench("check", "--baseline", "main", "--format", "junit").out
    )
    assert suites.get("tests") == suites.get("skipped") != "0"


def test_the_verdict_is_in_the_log_when_the_output_goes_to_a_file(checked):
    done = checked({EAGER: FAST}, {EAGER: SLOW}, "--format", "markdown", "--out", "check.md")
    assert (done.code, done.out, done.err) == (
        1,
        "",
        "effbench: check failed: 1 slower against main\n",
    )


def test_each_regression_has_a_command_that_shows_it(checked, effbench):
    rule = "exceptions=[{mode: cuda-graph, floor: 0.5, reason: a b}]"
    half = (
        {EAGER: FAST, GRAPH: FAST},
        {a_cell(dtype="float16"): SLOW, a_cell("cuda-graph", dtype="float16"): BROKEN},
    )
    done = checked(*half, "--set", rule, "--across", "dtype", "--floor", "3%")
    assert done.code == 1
    assert "▲ slower" in done.out and "1.00 ms  1.10 ms" in done.out
    assert "degraded: CUDA graphs skipped: mutated inputs (before ok)" in done.out
    commands = [
        line.strip()
        for line in done.out.splitlines()
        if line.strip().startswith("effbench compare")
    ]
    shown = [effbench(*shlex.split(command)[1:]) for command in commands]
    assert [one.code for one in shown] == [0, 0]
    assert "✗ broken" in shown[0].out and "▲ slower" in shown[1].out


def test_a_configuration_with_exceptions(checked, effbench, tmp_path):
    assert checked({EAGER: FAST}, {EAGER: SLOW}).code == 1
    conf = tmp_path / "conf" / "check"
    conf.mkdir(parents=True)
    rule = (
        "exceptions:\n  - {mode: EAGER, metric: latency_*, ignore: true, until: DATE, reason:"
        " shared runner}\n"
    )
    for mode, date, code, said in (
        ("eager", "2999-01-01", 0, "ignored: shared runner"),
        (
            "eager",
            "2020-01-01",
            1,
            "exception for mode=eager metric=latency_* ended on 2020-01-01: shared runner",
        ),
        ("defualt", "2999-01-01", 1, "matches no cell here"),
    ):
        (conf / "ours.yaml").write_text(rule.replace("EAGER", mode).replace("DATE", date))
        done = effbench("check", "--baseline", "main", "--config", "ours")
        assert done.code == code
        assert said in " ".join(done.out.split())
    (conf / "default.yaml").write_text("limits: {latency_ms: {floor: 20%}}\n")
    done = effbench("check", "--baseline", "main")
    assert (
        done.code == 0 and "limits: conf/check/default.yaml over effbench's defaults\n" in done.out
    )


def test_markdown_is_a_section_for_a_pull_request_and_the_jobs_summary(
    checked, effbench, tmp_path, monkeypatch
):
    """Passed or not, what fails, the commands, what else changed."""
    summary = tmp_path / "summary.md"
    summary.write_text("# of another step\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    before, after = (
        {EAGER: FAST, GRAPH: FAST, DEFAULT: SLOW},
        {EAGER: SLOW, GRAPH: BROKEN, DEFAULT: FAST},
    )
    done = checked(before, after, "--format", "markdown")
    assert done.code == 1 and summary.read_text() == f"# of another step\n{done.out}\n"
    lines = done.out.splitlines()
    assert lines[0] == "## ❌ effbench: check failed: 1 broken, 1 slower against main"
    rows = [
        line.split(" | ")[0].strip("| ")
        for line in lines
        if line.startswith("| ") and "---" not in line
    ]
    assert rows == ["verdict", "✗ broken", "▲ slower", "verdict", "▼ faster"]
    assert done.out.count("<details>") == done.out.count("</details>") == 2
    assert sum(line.startswith("effbench compare") for line in lines) == 2
    summary.unlink()
    assert checked({EAGER: FAST}, {EAGER: FAST}).code == 0
    assert summary.read_text().startswith("## ✅ effbench: check passed against main\n")
    summary.unlink()
    done = effbench("check", "--baseline", "mian")  # why it could not check
    assert done.code == 3
    assert summary.read_text().startswith("## ❌ effbench: not checked against mian\n\nno baseline")


def test_formats(checked, effbench, tmp_path):
    done = checked(
        {EAGER: FAST, DEFAULT: FAST}, {EAGER: SLOW}, "--junit", "out/junit.xml", "--only", "new"
    )
    assert done.code == 1 and "▲ slower" not in done.out
    root = ElementTree.parse(tmp_path / "out" / "junit.xml").getroot()
    assert root.get("failures") == "2", "of all rows, whatever --only shows"
    assert [one.get("type") for one in root.iter("failure")] == ["slower", "missing"]
    whole = json.loads(effbench("check", "--baseline", "main", "--format", "json").out)
    assert (whole["passed"], whole["baseline"]) == (False, "main")
    assert [one["metric"] for one in whole["failing"]] == ["latency_ms", "status"]


def test_baselines_that_cannot_be_used(made, effbench):
    def refused(code, said, name="main"):
        done = effbench("check", "--baseline", name)
        assert (done.code, done.out, done.err.count("\n")) == (code, "", 1), done
        assert said in done.err

    refused(3, "holds no sweep yet")
    sweep = made.sweep({EAGER: FAST})
    refused(3, "no baseline 'main'")
    effbench("baseline", "set", "main", sweep)
    refused(3, "choose from main", "mian")
    refused(2, "both sides are sweep")
    unmeasured = made.sweep({EAGER: None}, state="running")
    refused(3, "has no trial yet")
    made.delete_sweep(unmeasured)
    made.sweep({EAGER: FAST})
    made.delete_sweep(sweep)
    refused(3, "not in this database any more")


def test_hardware_that_was_not_checked_is_named(made, effbench):
    """`main` is set on an L40S, and the sweep ran on an L4, too."""
    small, large = (environment(gpu_name=f"NVIDIA {name}") for name in ("L4", "L40S"))
    assert effbench("baseline", "set", "main", made.sweep({EAGER: FAST}, env=large)).code == 0
    sweep = made.sweep({EAGER: SLOW}, env=small)
    made.sweep({EAGER: FAST}, env=large, into=sweep)
    done = {}
    for format in ("table", "markdown", "json", "csv", "junit"):
        done[format] = effbench("check", "--baseline", "main", "--format", format)
        assert done[format].code == 0
        assert "NVIDIA L4" in (done[format].err if format == "csv" else done[format].out), format
    assert "check passed against main; NVIDIA L4 not checked\n" in done["table"].out
    assert json.loads(done["json"].out)["unchecked"] == ["NVIDIA L4"]


def test_a_file_that_cannot_be_written_costs_nothing_else(checked, effbench, tmp_path, monkeypatch):
    assert checked({EAGER: FAST}, {EAGER: SLOW}).code == 1
    for bad in range(3):
        summary, junit, out = names = [
            "/proc/x/y" if bad == place else f"f{place}" for place in range(3)
        ]
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", summary)
        words = ("--format", "markdown", "--force", "--junit", junit, "--out", out)
        done = effbench("check", "--baseline", "main", *words)
        assert (
            done.code == 2 and "check failed: 1 slower" in done.err and "cannot write" in done.err
        )
        for name in {*names} - {"/proc/x/y"}:
            text = (tmp_path / name).read_text()
            assert "latency_ms" in text and "not checked" not in text
            (tmp_path / name).unlink()


def test_an_interrupted_confirmation_tells_what_the_sweep_showed(
    checked, effbench, tmp_path, monkeypatch
):
    monkeypatch.setattr(rerun, "run_again", run_again := Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    done = checked({EAGER: FAST}, {EAGER: SLOW}, "--confirm", "--junit", "junit.xml")
    assert (done.code, done.err) == (130, "effbench: interrupted while confirming\n")
    assert "note: the re-run was interrupted\n" in done.out
    assert effbench("check", "--baseline", "main", "--floor", "50%", "--confirm").code == 0, (
        "nothing to confirm"
    )
    refused = effbench("check", "--baseline", "main", "--confirm", "--only", "slow")
    assert "--only: unknown name slow" in refused.err and run_again.call_count == 1, (
        "nothing ran before the refusal"
    )
    for said in (
        done.out,
        (tmp_path / "summary.md").read_text(),
        (tmp_path / "junit.xml").read_text(),
    ):
        assert "neither confirmed nor refuted: not run again" in " ".join(said.split())
    done = checked(
        {EAGER: FAST},
        {EAGER: {"latency_ms": [1.0, 1.3, 1.0, 1.3, 1.1]}},
        "--confirm",
        "--format",
        "json",
    )
    assert (done.code, json.loads(done.out)["passed"]) == (
        130,
        False,
    ), "ambiguous rows were to be measured again"
    unfinished = "❌ effbench: check not finished against main: the re-run was interrupted; 1 of "
    assert unfinished in (tmp_path / "summary.md").read_text()
