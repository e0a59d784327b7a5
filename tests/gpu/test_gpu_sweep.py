"""The seven modes and the ways to fail, through a real sweep on a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import effbench
from effbench.store import Store

QUICK = ["protocol=quick", "protocol.budget_s=0.8", "protocol.min_time_s=0.3", "sweep.seed=1"]
MODES = "eager,default,reduce-overhead,max-autotune,max-autotune-no-cudagraphs,cuda-graph,compile+graph"
GRAPHS = {"reduce-overhead", "max-autotune", "cuda-graph", "compile+graph"}
COMPILED = {"default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "compile+graph"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working directory with the misbehaving modules in it."""
    folder = tmp_path_factory.mktemp("gpu")
    (folder / "broken.py").write_text((Path(__file__).parent / "broken.py").read_text())
    before = Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


@pytest.fixture(scope="module")
def seven(folder) -> dict[str, list[dict]]:
    """Trials by mode of a small mlp in all seven modes, two rounds."""
    sweep = effbench.sweep(
        ["model=mlp", "model.module.width=256", "bs=4", f"mode={MODES}", *QUICK, "protocol.rounds=2"]
    )
    with Store.open(sweep.db) as store:
        names = {cell.key: cell.mode_name for cell in store.planned(sweep.id)}
        found: dict[str, list[dict]] = {}
        for trial in store.trials(sweep.id):
            found.setdefault(names[trial["cell_key"]], []).append(trial)
    return found


def test_all_seven_modes_are_ok(seven):
    assert {mode: {t["status"] for t in trials} for mode, trials in seven.items()} == {
        mode: {"ok"} for mode in MODES.split(",")
    }


def test_every_trial_has_its_figures(seven):
    for mode, trials in seven.items():
        for trial in trials:
            for name in ("latency_ms", "period_ms", "peak_reserved_bytes", "sm_clock_mhz", "power_w", "temperature_c"):
                assert trial[name] > 0, (mode, name)
            assert trial["rel_error"] < 0.05
            assert trial["gpu_uuid"].startswith("GPU-")
            assert (trial["graph_pool_bytes"] is not None) == (mode in GRAPHS), mode


def test_compiling_is_cold_then_warm(seven):
    for mode, trials in seven.items():
        states = [trial["compile_cache"] for trial in sorted(trials, key=lambda trial: trial["round"])]
        assert states == (["cold", "warm"] if mode in COMPILED else [None, None]), mode


def test_dynamo_counters_belong_to_compiled_modes(seven):
    for mode, trials in seven.items():
        for trial in trials:
            if mode in COMPILED:
                assert (trial["graph_breaks"], trial["recompiles"], trial["cudagraph_skips"]) == (0, 0, 0), mode
            else:
                assert trial["graph_breaks"] is None


def statuses(targets: str, mode: str) -> dict[str, tuple[str, str]]:
    """Status and reason by model of a sweep over modules of broken.py."""
    sweep = effbench.sweep(
        [
            "model=custom",
            f"model.module._target_={targets}",
            "model.inputs.x.shape=[32]",
            "bs=4",
            f"mode={mode}",
            *QUICK,
        ]
    )
    with Store.open(sweep.db) as store:
        return {row["model"]: (row["status"], row["reason"] or "") for row in store.results(sweep.id)}


def test_out_of_memory_and_a_poisoned_context_cost_one_trial(folder):
    found = statuses("broken.TooMuch,broken.OutOfRange,broken.Whole", "eager")
    assert found["TooMuch"][0] == "oom"
    assert found["OutOfRange"][0] in ("error", "crashed")
    assert found["Whole"] == ("ok", "")


def test_a_skipped_cuda_graph_is_degraded_with_inductors_reason(folder):
    status, reason = statuses("broken.ChangesItsInput", "reduce-overhead")["ChangesItsInput"]
    assert status == "degraded"
    assert "mutated inputs" in reason and "broken.py:" in reason


def test_a_graph_that_inductor_cuts_is_degraded_cold_and_warm(folder):
    sweep = effbench.sweep(
        [
            "model=custom",
            "model.module._target_=broken.CallsTheHost",
            "model.inputs.x.shape=[32]",
            "bs=4",
            "mode=default,reduce-overhead",
            *QUICK,
            "protocol.rounds=2",
        ]
    )
    with Store.open(sweep.db) as store:
        names = {cell.key: cell.mode_name for cell in store.planned(sweep.id)}
        trials = [(names[t["cell_key"]], t["compile_cache"], t["status"], t["reason"]) for t in store.trials(sweep.id)]
    plain = [trial for trial in trials if trial[0] == "default"]
    assert {status for _, _, status, _ in plain} == {"ok"}
    cut = {cache: (status, reason) for mode, cache, status, reason in trials if mode == "reduce-overhead"}
    assert {cache: status for cache, (status, _) in cut.items()} == {"cold": "degraded", "warm": "degraded"}
    assert all("parts ran outside a CUDA graph" in reason for _, reason in cut.values())
    assert "cpu" in cut["cold"][1].lower()


def test_without_visible_gpus_a_cuda_cell_is_unsupported(folder, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    sweep = effbench.sweep(["model=tiny", "device=cuda", "mode=eager", *QUICK])
    assert list(sweep.results()["status"]) == ["unsupported"]
