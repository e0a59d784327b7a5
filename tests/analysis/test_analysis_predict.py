"""Predictions from a trial in eager, with a fit of known factors and with the shipped one."""

import pytest
from made_sweeps import H200, a_result

from effbench.analysis.predict import EagerProfile, ModeFit, Predictor, shipped
from effbench.core.cell import Status, Trial
from effbench.core.errors import NothingFoundError

#: 4 of 10 ms of the GPU and 30 of 100 launches stay; a normalisation is launched, but fuses.
KERNELS = [
    {"name": "nvjet_sm90_tst_64x8_64x16_TNT", "count": 20.0, "ms": 3.0},
    {"name": "flash_fwd_kernel", "count": 5.0, "ms": 1.0},
    {"name": "vectorized_layer_norm_kernel", "count": 5.0, "ms": 2.0},
    {"name": "vectorized_elementwise_kernel", "count": 40.0, "ms": 3.5},
]

PARAMS = {"numerics": {"tf32": False}}


def eager(**changed):
    fields = {
        "gpu_name": H200,
        "device": "cuda",
        "dtype": "bfloat16",
        "latency_ms": 20.0,
        "gpu_busy_ms": 10.0,
        "enqueue_ms": 2.0,
        "kernels": 100,
        "params": PARAMS,
    }
    return a_result(**fields | changed)


def trial(kernels=KERNELS):
    return Trial("", 0, Status.OK, extra={"profile": {"top": kernels}})


def a_fit(**changed):
    traits = EagerProfile.of(eager(), trial()).traits
    fields = {
        "constant_ms": 0.5,
        "host_ms": 0.1,
        "host_kept": 1.0,
        "host_fused": 0.5,
        "gpu_kept": 1.0,
        "gpu_fused": 0.25,
        "low": 0.8,
        "high": 1.2,
        "least": traits,
        "most": traits,
    }
    return ModeFit(**fields | changed)


def predictor(**modes):
    return Predictor([H200], "bfloat16", modes)


def test_the_longer_of_host_and_gpu_counts():
    profile = EagerProfile.of(eager(), trial())
    # GPU: 4 + 0.25 · 6; host: 0.1 + 1 · 0.6 + 0.5 · 1.4
    assert a_fit().latency_ms(profile) == pytest.approx(0.5 + 5.5)
    assert a_fit(gpu_kept=0.0, gpu_fused=0.0).latency_ms(profile) == pytest.approx(0.5 + 1.4)


def test_modes_are_ranked_with_those_that_may_be_faster():
    fits = {"fast": a_fit(), "near": a_fit(constant_ms=1.0), "slow": a_fit(constant_ms=9.0)}
    found = predictor(**fits).predict(eager(), trial())
    first = found.ranked[0]
    assert (first.mode, first.speedup) == ("fast", pytest.approx(20 / 6))
    assert (first.low, first.high) == pytest.approx((0.8 * 20 / 6, 1.2 * 20 / 6))
    assert [rival.mode for rival in found.rivals] == ["near"]


@pytest.mark.parametrize(
    "changed",
    [
        {"gpu_name": "NVIDIA A100"},
        {"gpu_name": None},
        {"dtype": "float32"},
        {"phase": "training"},
        {"params": PARAMS | {"stream": {"name": "uniform"}}},
        {"params": PARAMS | {"parallel": "tensor(2)"}},
        {"params": {"numerics": {"quantize": "int8"}}},
        {"params": PARAMS | {"model": {"attention": "flex"}}},
    ],
)
def test_nothing_was_fitted_there(changed):
    with pytest.raises(NothingFoundError, match="fitted on calls of inference in bfloat16 on one"):
        predictor(mode=a_fit()).predict(eager(**changed), trial())


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, "the trial has no profile of a GPU"),
        ({"latency_ms": None, "reason": "out of memory"}, "no prediction: out of memory"),
    ],
)
def test_no_profile(changed, reason):
    with pytest.raises(NothingFoundError, match=reason):
        predictor(mode=a_fit()).predict(eager(**changed), trial([]))


def test_a_mode_that_was_fitted_on_other_networks_is_left_out():
    convolutions = [{"name": "sm90_xmma_fprop_implicit_gemm", "count": 100.0, "ms": 10.0}]
    other = a_fit(most=EagerProfile.of(eager(), trial(convolutions)).traits)
    found = predictor(known=other, unknown=a_fit()).predict(eager(), trial(convolutions))
    assert [prediction.mode for prediction in found.ranked] == ["known"]
    assert found.unsure == {"unknown": "part of convolutions: 1, fitted on 0 to 0"}


def test_no_mode_was_fitted_on_such_a_network():
    with pytest.raises(NothingFoundError, match="ms of GPU busy time: 100, fitted on 10 to 10"):
        predictor(mode=a_fit()).predict(eager(gpu_busy_ms=100.0), trial())


def test_the_shipped_fit_knows_these_modes():
    found = shipped().predict(eager(), trial())
    assert {"default", "reduce-overhead", "cuda-graph", "default+graph"} <= {
        prediction.mode for prediction in found.ranked
    }
