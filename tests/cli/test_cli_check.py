import json
from unittest.mock import Mock
from xml.etree import ElementTree

import pytest
from made_sweeps import DEFAULT, EAGER, FAST, SLOW, a_cell, environment, steps

from effbench.analysis import confirm as rerun

ERROR = {"status": "error", "reason": "boom"}
TWO = {EAGER: FAST, DEFAULT: FAST}
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
        ({EAGER: FAST}, {EAGER: FAST}, "", 0, "check passed against main"),
        ({EAGER: FAST}, {EAGER: SLOW}, "", 1, "check failed: 1 slower against main"),
        ({EAGER: FAST}, {EAGER: SLOW}, "--metric kernels", 0, "check passed"),
        ({EAGER: FAST}, {EAGER: BROKEN}, "", 1, "1 broken"),
        (TWO, {EAGER: FAST}, "", 1, "1 missing"),
        (TWO, {EAGER: FAST}, "--set on_missing=ignore", 0, "missing (ignored)"),
        ({EAGER: FAST}, {DEFAULT: FAST}, "", 3, "nothing comparable"),
        ({EAGER: ERROR}, {EAGER: ERROR}, "", 3, "0 of 1 cells have figures in both sweeps"),
    ],
)
def test_exit_codes(checked, before, after, options, code, said):
    done = checked(before, after, *options.split())
    assert done.code == code
    assert said in " ".join((done.out + done.err).replace("│", " ").split())


@pytest.mark.parametrize(
    ("figures", "code", "said"),
    [
        ({}, 0, "check passed"),
        ({"cold_s": steps(2.3, 0.005)}, 1, "▲ slower"),
        ({"cache_misses": 1}, 1, "▲ more"),
    ],
)
def test_a_cold_start_is_checked(checked, figures, code, said):
    settings = {"change": "none", "processes": 1, "sizes": 1}
    cell = a_cell("default", phase="coldstart", cache="bundle", coldstart=settings)
    before = FAST | {"cold_s": steps(2.0, 0.005), "cache_misses": 0}
    done = checked({cell: before}, {cell: before | figures})
    assert done.code == code
    assert said in done.out


def test_the_table_has_every_row_that_fails_the_check(checked, effbench):
    done = checked({EAGER: FAST} | {a_cell(bs=100 + n): FAST for n in range(11)}, {EAGER: FAST})
    assert done.out.count("? missing") == 11
    done = effbench("check", "--baseline", "main", "--set", "on_missing=ignore")
    assert "? missing" not in done.out


def test_the_verdict_is_in_the_log_when_the_output_goes_to_a_file(checked):
    done = checked({EAGER: FAST}, {EAGER: SLOW}, "--format", "markdown", "--out", "check.md")
    assert (done.code, done.out) == (1, "")
    assert done.err == "effbench: check failed: 1 slower against main\n"


@pytest.mark.parametrize(
    ("mode", "code", "said"),
    [("eager", 0, "ignored: shared runner"), ("defualt", 1, "1 slower")],
)
def test_a_configuration_with_exceptions(checked, tmp_path, mode, code, said):
    rule = f"{{mode: {mode}, metric: latency_*, ignore: true, reason: shared runner}}"
    (tmp_path / "ours.yaml").write_text(f"exceptions: [{rule}]")
    done = checked({EAGER: FAST}, {EAGER: SLOW}, "--config", "ours.yaml")
    assert done.code == code
    assert said in " ".join(done.out.split())


def test_markdown_is_a_section_for_a_pull_request(checked):
    done = checked(TWO, {EAGER: SLOW, DEFAULT: BROKEN}, "--format", "markdown")
    assert done.out.startswith("## ❌ effbench: check failed: 1 broken, 1 slower against main\n")


def test_junit_has_all_rows(checked, tmp_path):
    done = checked(TWO, {EAGER: SLOW}, "--junit", "out/junit.xml")
    assert "▲ slower" in done.out
    root = ElementTree.parse(tmp_path / "out" / "junit.xml").getroot()
    assert [one.get("type") for one in root.iter("failure")] == ["slower", "missing"]


def test_json(checked):
    done = checked(TWO, {EAGER: SLOW}, "--format", "json")
    whole = json.loads(done.out)
    assert (whole["passed"], whole["baseline"]) == (False, "main")
    assert [one["metric"] for one in whole["failing"]] == ["latency_ms", "status"]


def test_baselines_that_cannot_be_used(made, effbench):
    def refused(code, said, name="main"):
        done = effbench("check", "--baseline", name)
        assert (done.code, done.out) == (code, "")
        assert said in done.err

    refused(3, "holds no sweep yet")
    sweep = made.sweep({EAGER: FAST})
    refused(3, "no baseline 'main'")
    effbench("baseline", "set", "main", sweep)
    refused(3, "choose from main", "mian")
    refused(2, "both sides are sweep")
    made.delete_sweep(sweep)
    made.sweep({EAGER: FAST})
    refused(3, f"no sweep '{sweep}'")


@pytest.mark.parametrize("form", ["table", "markdown", "json", "csv", "junit"])
def test_hardware_that_was_not_checked_is_named(made, effbench, form):
    """`main` is set on an L40S, and the sweep ran on an L4, too."""
    small, large = (environment(gpu_name=f"NVIDIA {name}") for name in ("L4", "L40S"))
    assert effbench("baseline", "set", "main", made.sweep({EAGER: FAST}, env=large)).code == 0
    sweep = made.sweep({EAGER: SLOW}, env=small)
    made.sweep({EAGER: FAST}, env=large, into=sweep)
    done = effbench("check", "--baseline", "main", "--format", form)
    assert done.code == 0
    assert "NVIDIA L4" in (done.err if form == "csv" else done.out)


@pytest.mark.parametrize(("junit", "out"), [("junit.xml", "/proc/x/y"), ("/proc/x/y", "check.md")])
def test_a_file_that_cannot_be_written_does_not_prevent_the_other(checked, tmp_path, junit, out):
    words = ("--format", "markdown", "--junit", junit, "--out", out)
    done = checked({EAGER: FAST}, {EAGER: SLOW}, *words)
    assert done.code == 2 and "cannot write" in done.err
    (written,) = {junit, out} - {"/proc/x/y"}
    assert "latency_ms" in (tmp_path / written).read_text()


def test_an_interrupted_confirmation_tells_what_the_sweep_showed(checked, effbench, monkeypatch):
    monkeypatch.setattr(rerun, "run_again", run_again := Mock(side_effect=KeyboardInterrupt))
    done = checked({EAGER: FAST}, {EAGER: SLOW}, "--confirm")
    assert (done.code, done.err) == (130, "effbench: interrupted while confirming\n")
    assert "note: the re-run was interrupted\n" in done.out
    assert "neither confirmed nor refuted: not run again" in " ".join(done.out.split())
    nothing = effbench("check", "--baseline", "main", "--set", "floor=50%", "--confirm")
    assert (nothing.code, run_again.call_count) == (0, 1), "nothing to confirm"


def test_a_sweep_that_does_not_record_its_interpreter_is_not_run_again(checked):
    done = checked({EAGER: FAST}, {EAGER: SLOW}, "--confirm", "--format", "json")
    assert done.code == 1
    (note,) = json.loads(done.out)["notes"]
    assert note.startswith("nothing was run again: ")
    assert note.endswith(" does not record its interpreter")


def test_ambiguous_rows_that_were_not_confirmed_do_not_pass(checked, monkeypatch):
    monkeypatch.setattr(rerun, "run_again", Mock(side_effect=KeyboardInterrupt))
    noisy = {"latency_ms": [1.0, 1.3, 1.0, 1.3, 1.1]}
    done = checked({EAGER: FAST}, {EAGER: noisy}, "--confirm", "--format", "json")
    assert not json.loads(done.out)["passed"]
