"""Modules and modes of users that misbehave: each costs its own trial, never the sweep."""

from __future__ import annotations

import json

import pytest

from effbench.store import Store

EXPECTED = {
    "Raises": ("error", "in check: ValueError: bad weather"),
    "RaisesInInit": ("error", "in build: ValueError: no such weather"),
    "CannotSay": ("error", "in check: MuteError"),
    "Interrupts": ("error", "in check: KeyboardInterrupt"),
    "Leaves": ("crashed", "exited with code 7 (in check)"),
    "LeavesQuietly": ("crashed", "exited with code 0 (in check)"),
    "LeavesAtOnce": ("crashed", "exited with code 8 (in check)"),
    "WantsTooMuch": ("oom", "in check: "),
    "WantsTooMuchInPython": ("oom", "in check: MemoryError"),
    "Segfaults": ("crashed", "killed by SIGSEGV (in check)"),
    "Aborts": ("crashed", "killed by SIGABRT (in check)"),
    "ClosesEverything": ("crashed", "(in check)"),
    "NotANumber": ("incorrect", "eager output not finite"),
    "HasNothing": ("error", "holds no tensor to compare"),
    "IsRandom": ("incorrect", "eager itself is"),
    "Sleeps": ("timeout", "not done after 6 s (in check)"),
    "WritesIntoItsInput": ("ok", ""),
    "IsLoud": ("ok", ""),
    "LeavesProcessesBehind": ("ok", ""),
    "SeesNoGpu": ("ok", ""),
}
KINDS = ("right", "wrong", "shape", "type", "more", "raises", "missing", "degraded")


def results(cli) -> dict[tuple[str, str], dict]:
    """Rows of the newest sweep by (model, mode)."""
    with Store.open(cli.db) as store:
        return {(row["model"], row["mode"]): row for row in store.results(store.find_sweep("last").id)}


@pytest.fixture(scope="module")
def swept(workshop):
    """One sweep over all that misbehaves."""
    targets = ",".join(f"mischief.{name}" for name in EXPECTED)
    done = workshop.sweep("model=custom", f"model.module._target_={targets}", "model.inputs.x.shape=[4]", "timeout_s=6")
    with Store.open(workshop.db) as store:
        sweep = store.find_sweep("last")
        names = {cell.key: cell.model_name for cell in store.planned(sweep.id)}
        trials = {names[trial["cell_key"]]: trial for trial in store.trials(sweep.id)}
    return done, results(workshop), trials


def test_each_costs_its_own_trial_and_the_sweep_goes_on(swept):
    done, rows, trials = swept
    assert (done.code, done.err) == (1, "")
    assert f"of {len(EXPECTED)} cells" in done.out
    for name, (status, reason) in EXPECTED.items():
        row = rows[name, "eager"]
        assert (row["status"], reason in (row["reason"] or "")) == (status, True), row["reason"]
        assert "\n" not in (row["reason"] or "")
        assert (row["latency_ms"] is not None) == (status == "ok")
    for name in ("Raises", "RaisesInInit"):
        assert "ValueError" in trials[name]["extra"]["traceback"]
        assert "mischief.py" in trials[name]["extra"]["traceback"]
    assert trials["LeavesAtOnce"]["extra"]["log"] == "last words\n"
    assert len(trials["IsLoud"]["extra"].get("log", "")) == 0


def test_whole_process_trees_are_gone(swept, workshop, wait_gone):
    for file, count in (("asleep", 4), ("left", 2)):
        pids = [int(pid) for pid in (workshop.folder / file).read_text().split()]
        assert len(pids) == count
        for pid in pids:
            wait_gone(pid, 0)


@pytest.fixture(scope="module")
def own(workshop):
    """A user's own modes over a right module, with failures ignored."""
    done = workshop.sweep(
        "--config-dir", "conf", f"mode=eager,{','.join(KINDS)}", "on_failure=ignore",
        "model=custom", "model.module._target_=nets/mine.py:Base", "model.inputs.x.shape=[4]",
    )  # fmt: skip
    return done, results(workshop)


def test_modes_of_ones_own(own):
    done, rows = own
    assert done.code == 0, "failures can be ignored"
    for kind, status, reason in (
        ("right", "ok", ""),
        ("wrong", "incorrect", "relative error 0.01"),
        ("shape", "incorrect", "output is (1, 1) torch.float32 where eager's is (1, 4)"),
        ("type", "incorrect", "torch.float64 where eager's is (1, 4) torch.float32"),
        ("more", "incorrect", "2 output tensors where eager has 1"),
        ("raises", "error", "in prepare: RuntimeError: cannot be prepared"),
        ("missing", "unsupported", "this mode is never there"),
        ("degraded", "degraded", "it was not in the mood"),
    ):
        row = rows["Base", kind]
        assert (row["status"], reason in (row["reason"] or "")) == (status, True), row["reason"]
        assert (row["speedup"] is not None) == (status == "ok")


@pytest.mark.slow
def test_several_inputs_of_several_kinds(workshop):
    done = workshop.sweep("--config-dir", "conf", "model=several", "bs=2", "mode=eager,default")
    assert done.code == 0, done
    assert {key: row["status"] for key, row in results(workshop).items()} == {
        ("several", "eager"): "ok", ("several", "default"): "ok",
    }  # fmt: skip


def test_outputs_that_are_not_finite_can_be_allowed(workshop):
    done = workshop.sweep("model=custom", "model.module._target_=mischief.NotANumber", "model.inputs.x.shape=[4]",
                        "model.allow_nonfinite=true")  # fmt: skip
    assert done.code == 0, done
    assert results(workshop)["NotANumber", "eager"]["status"] == "ok"


def test_variables_reach_the_cell_and_force_a_fresh_interpreter(workshop):
    done = workshop.sweep("model=custom", "model.module._target_=mischief.SeesItsEnvironment", "env.FOO=1",
                        "model.inputs.x.shape=[4]", "env.BAR=true")  # fmt: skip
    assert done.code == 0, done
    row = results(workshop)["SeesItsEnvironment", "eager"]
    params = row["params"] if isinstance(row["params"], dict) else json.loads(row["params"])
    assert params["env"] == {"FOO": "1", "BAR": "true"}


@pytest.mark.slow
def test_a_fresh_interpreter_each(workshop):
    done = workshop.sweep("model=custom", "model.module._target_=mischief.ComesFromFresh,mischief.Segfaults",
                        "model.inputs.x.shape=[4]", "isolation=spawn")  # fmt: skip
    assert done.code == 1, done
    found = {model: row["status"] for (model, _), row in results(workshop).items()}
    assert found == {"ComesFromFresh": "ok", "Segfaults": "crashed"}


def test_a_shape_that_does_not_fit(workshop):
    done = workshop.sweep("model=tiny", "model.inputs.x.shape=[5]")
    assert (done.code, done.err) == (1, "")
    row = results(workshop)["tiny", "eager"]
    assert row["status"] == "error"
    assert "(1x5 and 32x32)" in row["reason"]


class TestWithoutCompiler:
    """`default` without a C++ compiler is no failure: it says what to install."""

    @pytest.mark.parametrize(
        ("variables", "said"),
        [
            pytest.param({"PATH": "empty"}, "g++", marks=pytest.mark.slow, id="none"),
            pytest.param({"CXX": "/nowhere/c++"}, "/nowhere/c++", id="CXX"),
            pytest.param({"PATH": "broken"}, "g++", marks=pytest.mark.slow, id="broken"),
        ],
    )
    def test_default_is_unsupported(self, cli, variables, said):
        for name in ("empty", "broken"):
            (cli.folder / name).mkdir()
        fake = cli.folder / "broken" / "g++"
        fake.write_text("#!/bin/sh\nexit 1\n")
        fake.chmod(0o755)
        env = {name: value if value.startswith("/") else str(cli.folder / value) for name, value in variables.items()}
        if "PATH" in env:
            env["PATH"] += ":/nonexistent"
        (cli.folder / "broken" / "sh").symlink_to("/bin/sh")
        done = cli.sweep("model=tiny", "mode=eager,default", env=env)
        assert done.code == 0, done
        rows = results(cli)
        assert rows["tiny", "eager"]["status"] == "ok"
        assert rows["tiny", "default"]["status"] == "unsupported", rows["tiny", "default"]["reason"]
        assert said in rows["tiny", "default"]["reason"]
        assert "install g++" in rows["tiny", "default"]["reason"]
