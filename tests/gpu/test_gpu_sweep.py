"""The seven modes and the ways to fail, through a real sweep on a GPU."""

from __future__ import annotations

from collections import Counter

import pytest

TWICE = ("eager", "default", "reduce-overhead", "cuda-graph")
#: Autotuning takes seconds: one round.
ONCE = ("max-autotune", "max-autotune-no-cudagraphs", "compile+graph")
GRAPHS = {"reduce-overhead", "max-autotune", "cuda-graph", "compile+graph"}
COMPILED = {
    "default",
    "reduce-overhead",
    "max-autotune",
    "max-autotune-no-cudagraphs",
    "compile+graph",
}

FIGURES = (
    "latency_ms",
    "period_ms",
    "peak_reserved_bytes",
    "sm_clock_mhz",
    "power_w",
    "temperature_c",
)
COUNTERS = ("graph_breaks", "recompiles", "cudagraph_skips")


@pytest.fixture(scope="module")
def seven(swept) -> dict[str, list[dict]]:
    """Trials by mode of a small model in all seven modes."""
    small = ("bs=4",)
    trials = swept(
        "model=mlp",
        "model.module.width=256",
        f"mode={','.join(TWICE)}",
        *small,
        "protocol.rounds=2",
    )
    trials += swept("model=tiny", f"mode={','.join(ONCE)}", *small)
    return {mode: [trial for trial in trials if trial["mode"] == mode] for mode in (*TWICE, *ONCE)}


every_mode = pytest.mark.parametrize("mode", (*TWICE, *ONCE))


@every_mode
def test_a_mode_has_its_figures(seven, mode):
    for trial in seven[mode]:
        assert trial["status"] == "ok", trial["reason"]
        for name in FIGURES:
            assert trial[name] > 0, name
        assert trial["rel_error"] < 0.05
        assert trial["gpu_uuid"].startswith("GPU-")
        assert (trial["graph_pool_bytes"] is not None) == (mode in GRAPHS)


@every_mode
def test_only_modes_that_compile_have_counters(seven, mode):
    expected = {0} if mode in COMPILED else {None}
    for trial in seven[mode]:
        assert {trial[name] for name in COUNTERS} == expected


@every_mode
def test_the_second_process_finds_a_warm_cache(seven, mode):
    trials = sorted(seven[mode], key=lambda trial: trial["round"])
    states = ("cold", "warm") if mode in COMPILED else (None, None)
    assert [trial["compile_cache"] for trial in trials] == list(states[: len(trials)])
    assert len(trials) == (2 if mode in TWICE else 1)


@every_mode
def test_both_processes_run_the_same_kernels(seven, mode):
    (kernels,) = {trial["kernel_fingerprint"] for trial in seven[mode]}
    assert len(kernels.removesuffix("-tuned")) == 16


def test_compiled_kernels_are_others(seven):
    assert seven["eager"][0]["kernel_fingerprint"] != seven["default"][0]["kernel_fingerprint"]


def test_out_of_memory_and_a_poisoned_context_cost_one_trial(custom):
    rows = {
        row["model"]: row for row in custom("TooMuch,OutOfRange,Whole", "eager", "[32]", "bs=4")
    }
    assert rows["TooMuch"]["status"] == "oom"
    assert rows["OutOfRange"]["status"] in ("error", "crashed")
    assert (rows["Whole"]["status"], rows["Whole"]["reason"]) == ("ok", None)


def test_a_skipped_cuda_graph_is_degraded_with_inductors_reason(custom):
    (row,) = custom("ChangesItsInput", "reduce-overhead", "[32]", "bs=4", "protocol.profile=false")
    assert row["status"] == "degraded", row["reason"]
    assert "mutated inputs" in row["reason"]


def test_a_graph_that_inductor_cuts_is_degraded_cold_and_warm(swept):
    trials = swept(
        "model=custom",
        "model.module._target_=modules.CallsTheHost",
        "model.inputs.x.shape=[32]",
        "bs=4",
        "mode=default,reduce-overhead",
        "protocol.rounds=2",
        "protocol.profile=false",
    )
    names = ("mode", "compile_cache", "status", "reason", "cudagraph_skips")
    facts = "\n".join(
        str([*(trial[name] for name in names), trial["extra"].get("log")]) for trial in trials
    )
    statuses = Counter((trial["mode"], trial["compile_cache"], trial["status"]) for trial in trials)
    expected = {"default": "ok", "reduce-overhead": "degraded"}
    assert statuses == Counter(
        (mode, cache, expected[mode]) for mode in expected for cache in ("cold", "warm")
    ), facts
    cut = {
        trial["compile_cache"]: trial["reason"]
        for trial in trials
        if trial["mode"] == "reduce-overhead"
    }
    assert all("parts ran outside a CUDA graph" in reason for reason in cut.values()), facts
    assert "cpu" in cut["cold"].lower(), facts
