"""The seven modes and the ways to fail, through a real sweep on a GPU."""

from __future__ import annotations

import pytest

QUICK = ["protocol.budget_s=0.8", "protocol.min_time_s=0.3", "protocol.compilations=1", "sweep.seed=1"]
MODES = "eager,default,reduce-overhead,max-autotune,max-autotune-no-cudagraphs,cuda-graph,compile+graph"
GRAPHS = {"reduce-overhead", "max-autotune", "cuda-graph", "compile+graph"}
COMPILED = {"default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "compile+graph"}


@pytest.fixture(scope="module")
def seven(swept) -> dict[str, list[dict]]:
    """Trials by mode of a small mlp in all seven modes, two rounds."""
    trials = swept("model=mlp", "model.module.width=256", "bs=4", f"mode={MODES}", *QUICK, "protocol.rounds=2")
    return {mode: [trial for trial in trials if trial["mode"] == mode] for mode in MODES.split(",")}


def test_every_mode_has_its_figures(seven):
    assert list(seven) and set(seven) == set(MODES.split(","))
    for mode, trials in seven.items():
        counted = (0, 0, 0) if mode in COMPILED else (None, None, None)
        for trial in trials:
            # a shared host may be busy for seconds: such a trial has its figures, too
            assert trial["status"] in ("ok", "noisy"), (mode, trial["reason"])
            for name in ("latency_ms", "period_ms", "peak_reserved_bytes", "sm_clock_mhz", "power_w", "temperature_c"):
                assert trial[name] > 0, (mode, name)
            assert trial["rel_error"] < 0.05
            assert trial["gpu_uuid"].startswith("GPU-")
            assert (trial["graph_pool_bytes"] is not None) == (mode in GRAPHS), mode
            assert (trial["graph_breaks"], trial["recompiles"], trial["cudagraph_skips"]) == counted, mode
        states = [trial["compile_cache"] for trial in sorted(trials, key=lambda trial: trial["round"])]
        assert states == (["cold", "warm"] if mode in COMPILED else [None, None]), mode
        (kernels,) = {trial["kernel_fingerprint"] for trial in trials}
        assert len(kernels) == 16, "the same in both processes"
    assert seven["eager"][0]["kernel_fingerprint"] != seven["default"][0]["kernel_fingerprint"]


def test_out_of_memory_and_a_poisoned_context_cost_one_trial(custom):
    rows = {row["model"]: row for row in custom("TooMuch,OutOfRange,Whole", "eager", "[32]", "bs=4", *QUICK)}
    assert rows["TooMuch"]["status"] == "oom"
    assert rows["OutOfRange"]["status"] in ("error", "crashed")
    assert (rows["Whole"]["status"], rows["Whole"]["reason"]) == ("ok", None)


def test_a_skipped_cuda_graph_is_degraded_with_inductors_reason(custom):
    (row,) = custom("ChangesItsInput", "reduce-overhead", "[32]", "bs=4", *QUICK)
    assert row["status"] == "degraded"
    assert "mutated inputs" in row["reason"] and "modules.py:" in row["reason"]


def test_a_graph_that_inductor_cuts_is_degraded_cold_and_warm(swept):
    trials = swept("model=custom", "model.module._target_=modules.CallsTheHost", "model.inputs.x.shape=[32]", "bs=4",
                   "mode=default,reduce-overhead", *QUICK, "protocol.rounds=2")  # fmt: skip
    assert {trial["status"] for trial in trials if trial["mode"] == "default"} == {"ok"}
    cut = {trial["compile_cache"]: trial for trial in trials if trial["mode"] == "reduce-overhead"}
    assert {cache: trial["status"] for cache, trial in cut.items()} == {"cold": "degraded", "warm": "degraded"}
    assert all("parts ran outside a CUDA graph" in trial["reason"] for trial in cut.values())
    assert "cpu" in cut["cold"]["reason"].lower()


def test_without_visible_gpus_a_cuda_cell_is_unsupported(swept, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert [trial["status"] for trial in swept("model=tiny", "device=cuda", "mode=eager", *QUICK)] == ["unsupported"]
