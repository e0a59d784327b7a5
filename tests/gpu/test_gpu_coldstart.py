"""Cold starts on a GPU: the parts of the first answer, caches, and another GPU."""

from itertools import product

import pytest
import torch

MODES = "eager,default,reduce-overhead,cuda-graph"
PARTS = ("interpreter", "imports", "device", "build", "load", "trace", "compile", "autotune")
PARTS += ("capture", "first_call")
SMALL = ("model=mlp", "model.module.width=256", "bs=4", "phase=coldstart", "protocol.rounds=1")
NONE = [(mode, "none") for mode in MODES.split(",")]
CACHED = list(product(("default", "reduce-overhead"), ("folder", "bundle")))


def seconds_of(trial):
    return {part: trial[f"cold_{part}_s"] for part in PARTS if trial[f"cold_{part}_s"] is not None}


@pytest.fixture(scope="module")
def starts(swept):
    """Trials by mode and cache."""
    trials = swept(*SMALL, f"mode={MODES}", "cache=none")
    trials += swept(*SMALL, "mode=default,reduce-overhead", "cache=folder,bundle")
    return {(trial["mode"], trial["cell"].cache): trial for trial in trials}


@pytest.mark.parametrize("start", NONE + CACHED)
def test_the_parts_add_up(starts, start):
    trial = starts[start]
    assert trial["status"] == "ok", trial["reason"]
    seconds = seconds_of(trial)
    assert min(seconds.values()) >= 0
    assert sum(seconds.values()) == pytest.approx(trial["cold_s"], rel=0.03)
    assert seconds["device"] > 0.01
    assert trial["peak_reserved_bytes"] > 0


def test_only_captures_before_the_first_answer_are_parts(starts):
    assert starts["cuda-graph", "none"]["cold_capture_s"] > 0
    assert starts["eager", "none"]["cold_capture_s"] == 0
    # cudagraph trees warm up in the first call, and capture in the second one; for their pool they
    # capture an empty graph first
    assert starts["reduce-overhead", "none"]["cold_capture_s"] < 0.01
    assert starts["reduce-overhead", "none"]["steady_call"] >= 3


@pytest.mark.parametrize("start", CACHED)
def test_a_cache_saves_the_compilation(starts, start):
    trial, without = starts[start], starts[start[0], "none"]
    assert trial["cache_reuse"] == "whole"
    # a network of this size compiles in 0.5 s, and loads its code in 0.3 s
    assert trial["cold_compile_s"] < 0.8 * without["cold_compile_s"]
    assert trial["cold_s"] < without["cold_s"]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_cache_is_that_of_a_gpu(swept):
    (trial,) = swept(*SMALL, "mode=default", "cache=folder", "coldstart.change=gpu")
    assert trial["status"] == "ok", trial["reason"]
    assert trial["cache_reuse"] == "none"
    missed = trial["extra"]["coldstart"]["missed"]
    assert any("device cuda:0, now cuda:1" in reason for reason in missed)
