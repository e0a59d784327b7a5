"""Modules and modes of users that misbehave: each costs its own trial, never the sweep."""

import pytest
from whole_sweeps import results_of, trials_of

EXPECTED = {
    "Raises": ("error", "in check: ValueError: bad weather"),
    "Interrupts": ("error", "in check: KeyboardInterrupt"),
    "Leaves": ("crashed", "in check: SystemExit: 7 (mischief.py:"),
    "LeavesAtOnce": ("crashed", "exited with code 8 (in check)"),
    "WantsTooMuch": ("oom", "in check: "),
    "ClosesEverything": ("crashed", "(in check)"),
    "NotANumber": ("incorrect", "eager output not finite; choose another dtype, or"),
    "HasNothing": ("error", "has no tensor to compare"),
    "IsRandom": ("incorrect", "eager itself is"),
    "Sleeps": ("timeout", "not done after 6 s (in check)"),
    "WritesIntoItsInput": ("ok", ""),
}


def results(cli) -> dict[tuple[str, str], dict]:
    """Rows of the newest sweep by (model, mode)."""
    return {(row["model"], row["mode"]): row for row in results_of(cli.db)}


@pytest.fixture(scope="module")
def swept(workshop):
    """One sweep over all that misbehaves."""
    targets = ",".join(f"mischief.{name}" for name in EXPECTED)
    done = workshop.sweep(
        "model=custom",
        f"model.module._target_={targets}",
        "model.inputs.x.shape=[4]",
        "timeout_s=6",
    )
    return done, results(workshop), {trial["model"]: trial for trial in trials_of(workshop.db)}


def test_each_costs_its_own_trial_and_the_sweep_goes_on(swept):
    done, rows, trials = swept
    assert (done.code, done.err) == (1, "")
    assert f"of {len(EXPECTED)} cells" in done.out
    for name, (status, reason) in EXPECTED.items():
        row = rows[name, "eager"]
        assert (row["status"], reason in (row["reason"] or "")) == (status, True), row["reason"]
        assert "\n" not in (row["reason"] or "")
        assert (row["latency_ms"] is not None) == (status == "ok")
    assert "ValueError" in trials["Raises"]["extra"]["traceback"]
    assert "mischief.py" in trials["Raises"]["extra"]["traceback"]
    assert trials["LeavesAtOnce"]["extra"]["log"] == "last words\n"


def test_the_end_of_the_sweep_prints_the_command_that_shows_failures(workshop, swept):
    *_, last = swept[0].out.splitlines()
    assert last.startswith("failures: effbench ls --failures --traceback --sweep "), last
    assert "Traceback" in workshop.run(*last.split()[2:]).out


def test_modes_of_ones_own(workshop):
    done = workshop.sweep(
        "--config-dir",
        "conf",
        "mode=eager,right,wrong,raises,missing,degraded,forgets,tells",
        "on_failure=ignore",
        "model=custom",
        "model.module._target_=nets/mine.py:Base",
        "model.inputs.x.shape=[4]",
    )
    rows = results(workshop)
    assert done.code == 0, "failures can be ignored"
    for kind, status, reason in (
        ("right", "ok", ""),
        ("wrong", "incorrect", "relative error 0.01"),
        ("raises", "error", "in prepare: RuntimeError: cannot be prepared"),
        (
            "forgets",
            "error",
            "OwnMode must return effbench.modes.base.Prepared, got NoneType",
        ),
        (
            "tells",
            "error",
            "facts of the mode must be plain values: Object of type Tensor",
        ),
        ("missing", "unsupported", "this mode is never there"),
        ("degraded", "degraded", "it was not in the mood"),
    ):
        row = rows["Base", kind]
        assert (row["status"], reason in (row["reason"] or "")) == (status, True), row["reason"]
        assert (row["speedup"] is not None) == (status == "ok")
        assert "encoder.py" not in (row["reason"] or ""), "a line of Python's own is no help"


def test_an_output_that_is_not_finite_may_be_allowed(workshop):
    custom = ("model=custom", "model.module._target_=mischief.NotANumber")
    done = workshop.sweep(*custom, "model.inputs.x.shape=[4]", "model.allow_nonfinite=true")
    assert done.code == 0
    (row,) = results_of(workshop.db)
    assert row["status"] == "ok"
