"""What a check says of what it did not judge, and where it says it."""

import json
import shlex
from xml.etree import ElementTree

import pytest
from made_sweeps import a_cell, environment, steps

from effbench.analysis.limits import limits_of
from effbench.commands.check import failing
from effbench.comparison import confirm as rerun
from effbench.comparison.compare import compare_sweeps
from effbench.store.store import Store

EAGER, DEFAULT = (a_cell(mode) for mode in ("eager", "default"))
FAST, SLOW = {"latency_ms": steps(1.0, 0.001)}, {"latency_ms": steps(1.1, 0.001)}
OOM, ERROR = {"status": "oom", "reason": "20 GiB"}, {"status": "error", "reason": "boom"}


@pytest.fixture
def checked(made, effbench):
    """Set the first sweep as `main`, run the second, check it."""

    def call(before, after, *options):
        assert effbench("baseline", "set", "main", made.sweep(before)).code == 0
        made.sweep(after)
        return effbench("check", "--baseline", "main", *options)

    return call


@pytest.fixture
def two_gpus(made, effbench):
    """`main` on an L40S, and a sweep on an L4 that is slow there and on an L40S."""
    small, large = (environment(gpu_name=f"NVIDIA {name}") for name in ("L4", "L40S"))
    assert effbench("baseline", "set", "main", made.sweep({EAGER: FAST}, env=large)).code == 0
    sweep = made.sweep({EAGER: SLOW}, env=small)
    made.sweep({EAGER: FAST}, env=large, into=sweep)


@pytest.mark.parametrize("format", ["table", "markdown", "json", "csv", "junit"])
def test_hardware_that_was_not_checked_is_named(two_gpus, effbench, format):
    done = effbench("check", "--baseline", "main", "--format", format)
    assert done.code == 0
    if format in ("table", "markdown"):
        assert "check passed against main; NVIDIA L4 not checked\n" in done.out
    if format == "csv":
        assert done.err == "effbench: NVIDIA L4 not checked\n"
    elif format == "junit":
        root = ElementTree.fromstring(done.out.encode())
        assert root.find("testsuite[@name='NVIDIA L4']/testcase/skipped").get("message") == "NVIDIA L4: not checked"
        assert int(root.get("tests")) == len(list(root.iter("testcase")))
        assert int(root.get("skipped")) == len(list(root.iter("skipped")))
    else:
        assert "not checked: NVIDIA L4, where this sweep ran as well" in done.out
    if format == "json":
        assert json.loads(done.out)["unchecked"] == ["NVIDIA L4"]


def test_hardware_without_a_baseline_is_not_another(two_gpus, made, effbench):
    done = effbench("check", "--baseline", "main", "--on", "NVIDIA L4")
    assert (done.code, done.out) == (3, "")
    assert "baseline 'main' is set on NVIDIA L40S" in done.err
    effbench("baseline", "set", "main", made.sweep({EAGER: FAST}, env=environment(gpu_name="NVIDIA L4")))
    assert effbench("check", "--baseline", "main", "--sweep", "20").code == 2  # the start of several
    sweep = made.sweep({EAGER: SLOW}, env=environment(gpu_name="NVIDIA L4"))
    made.sweep({EAGER: FAST}, env=environment(gpu_name="NVIDIA L40S"), into=sweep)
    assert "choose one with --on" in effbench("check", "--baseline", "main").err
    done = effbench("check", "--baseline", "main", "--on", "NVIDIA L4")
    assert done.code == 1
    assert "check failed: 1 slower against main; NVIDIA L40S not checked\n" in done.out
    (command,) = [line.strip() for line in done.out.splitlines() if line.strip().startswith("effbench compare")]
    assert "▲ slower" in effbench(*shlex.split(command)[1:]).out
    assert effbench("check", "--baseline", "main", "--on", "l40s").code == 0


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


def test_half_a_re_run_judges_nothing(made):
    before, after = made.sweep({EAGER: FAST}), made.sweep({EAGER: SLOW})
    with Store.open(made.path) as store:
        compared = compare_sweeps(store, *map(store.find_sweep, (before, after)), limits_of({}))
    flagged = failing(compared)
    done = rerun.interrupted(compared, flagged, "20261122-000000-abcd")
    assert (done.interrupted, done.sweep_id) == (True, "20261122-000000-abcd")
    assert done.compared.notes == ["the re-run was interrupted (sweep 20261122-000000-abcd)"]
    reasons = {change.metric: change.reason for change in done.compared.changes if change.gates}
    assert reasons == {"latency_ms": "neither confirmed nor refuted: the re-run was interrupted"}
