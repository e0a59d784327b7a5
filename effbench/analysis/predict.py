"""Predict how fast modes that compile or capture run a model, from one trial in eager: `predict`.

A mode's latency is a constant plus the longer of its host time and its GPU time. Both are eager's,
of which one fraction is left for operators that stay kernels of their own and another one for those
that Inductor fuses. `benchmarks/predict.py` fits the fractions of each mode on stored sweeps and
writes them to `predictor.json`, with the errors for networks that were left out of the fit.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from effbench.analysis.kernel_classes import KernelClass, class_of
from effbench.core.cell import Result, Trial
from effbench.core.errors import NothingFoundError
from effbench.core.trace import Kernel

DATA = Path(__file__).with_name("predictor.json")
#: Kernels that take as long when compiled, and those of which as many are launched.
KEPT_TIME = (KernelClass.PRODUCTS, KernelClass.CONVOLUTIONS, KernelClass.ATTENTION)
KEPT_LAUNCHES = (*KEPT_TIME, KernelClass.NORMALISATION)
KNOWN = set(KernelClass) - {KernelClass.OTHER}
#: Parameters of cells whose calls are not one forward pass on one GPU.
OTHER_CALLS = {"stream", "parallel"}
#: A trait may lie beyond the fitted ones by this factor and this much.
FACTOR, ALLOWANCE = 1.5, 0.05


@dataclass(frozen=True)
class EagerProfile:
    """A call in eager: the host's and the GPU's time for operators that stay kernels of their own
    and for those that fuse. `traits`: what must resemble the fitted networks."""

    latency_ms: float
    host_kept_ms: float
    host_fused_ms: float
    gpu_kept_ms: float
    gpu_fused_ms: float
    traits: Mapping[str, float]

    @classmethod
    def of(cls, result: Result, trial: Trial) -> EagerProfile:
        """Return the times of a result, divided by the kernels of a trial. Raises NothingFoundError
        without a profile."""
        longest = trial.extra.get("profile", {}).get("top")
        busy_ms = result.gpu_busy_ms
        host_ms = result.enqueue_ms
        kernels = result.kernels
        if not (longest and result.latency_ms and busy_ms and host_ms and kernels):
            why = result.reason or "the trial has no profile of a GPU"
            raise no_prediction(why)

        def total(field: str, classes: Collection[KernelClass]) -> float:
            of_classes = (kernel for kernel in longest if class_of_name(kernel["name"]) in classes)
            return math.fsum(kernel[field] for kernel in of_classes)

        host_kept_ms = host_ms * total("count", KEPT_LAUNCHES) / kernels
        gpu_kept_ms = total("ms", KEPT_TIME)
        traits = {
            "ms of GPU busy time": busy_ms,
            "µs of the host per kernel": 1000 * host_ms / kernels,
            "part of convolutions": total("ms", [KernelClass.CONVOLUTIONS]) / busy_ms,
            "part of short or unknown kernels": 1 - total("ms", KNOWN) / busy_ms,
        }
        return cls(
            latency_ms=result.latency_ms,
            host_kept_ms=host_kept_ms,
            host_fused_ms=host_ms - host_kept_ms,
            gpu_kept_ms=gpu_kept_ms,
            gpu_fused_ms=busy_ms - gpu_kept_ms,
            traits=traits,
        )


def class_of_name(name: str) -> KernelClass:
    """Return what a kernel computes, by its name alone."""
    return class_of(Kernel(name, "", None, 0.0, 0.0, 0.0))


class ModeFit(msgspec.Struct):
    """How a mode's latency follows from a call in eager. Of networks that were left out, 80 % of
    measured ÷ predicted speedups lie from `low` to `high`. `least` and `most`: the fitted
    traits."""

    constant_ms: float
    host_ms: float
    host_kept: float
    host_fused: float
    gpu_kept: float
    gpu_fused: float
    low: float
    high: float
    least: dict[str, float]
    most: dict[str, float]

    def latency_ms(self, eager: EagerProfile) -> float:
        host_ms = self.host_ms
        host_ms += self.host_kept * eager.host_kept_ms + self.host_fused * eager.host_fused_ms
        gpu_ms = self.gpu_kept * eager.gpu_kept_ms + self.gpu_fused * eager.gpu_fused_ms
        return self.constant_ms + max(host_ms, gpu_ms)

    def why_unsure(self, eager: EagerProfile) -> str | None:
        """Return which trait differs from the fitted networks; None if all are alike."""
        for name, value in eager.traits.items():
            least = self.least[name]
            most = self.most[name]
            if not least / FACTOR - ALLOWANCE <= value <= most * FACTOR + ALLOWANCE:
                return f"{name}: {value:.3g}, fitted on {least:.3g} to {most:.3g}"
        return None


@dataclass(frozen=True)
class Prediction:
    """The latency and speedup of a mode; 80 % of measured speedups lie from `low` to `high`."""

    mode: str
    latency_ms: float
    speedup: float
    low: float
    high: float


@dataclass(frozen=True)
class Predictions:
    """The predictions for a model, the fastest mode first. `unsure`: mode -> why it has none."""

    ranked: list[Prediction]
    unsure: Mapping[str, str]

    @property
    def rivals(self) -> list[Prediction]:
        """The modes whose intervals include the speedup of the first one."""
        return [rival for rival in self.ranked[1:] if rival.high >= self.ranked[0].speedup]


class Predictor(msgspec.Struct):
    """The fit of each mode, and what it was made on."""

    gpus: list[str]
    dtype: str
    modes: dict[str, ModeFit]

    def predict(self, result: Result, trial: Trial) -> Predictions:
        """Predict the speedup of each mode that was fitted on similar networks, from a result in
        eager and its trial. Raises NothingFoundError if no mode can be predicted."""
        is_fitted = is_plain(result) and result.dtype == self.dtype
        if not is_fitted or result.gpu_name not in self.gpus:
            fitted = f"calls of inference in {self.dtype} on one {' or '.join(self.gpus)}"
            raise no_prediction(f"it was fitted on {fitted}")
        eager = EagerProfile.of(result, trial)
        ranked = []
        unsure = {}
        for mode, fit in self.modes.items():
            why = fit.why_unsure(eager)
            if why:
                unsure[mode] = why
                continue
            latency_ms = fit.latency_ms(eager)
            speedup = eager.latency_ms / latency_ms
            ranked.append(
                Prediction(
                    mode, latency_ms, speedup, low=speedup * fit.low, high=speedup * fit.high
                )
            )
        if not ranked:
            raise no_prediction("; ".join(dict.fromkeys(unsure.values())))
        ranked.sort(key=lambda prediction: prediction.latency_ms)
        return Predictions(ranked, unsure)


def no_prediction(why: str) -> NothingFoundError:
    """Return the error of a cell that cannot be predicted."""
    return NothingFoundError(f"no prediction: {why}\nomit --predict to measure the modes")


def is_plain(result: Result) -> bool:
    """Return whether a cell's calls are one forward pass on one GPU, with the model's own attention
    and weights."""
    if result.phase != "inference" or result.params.keys() & OTHER_CALLS:
        return False
    if result.params.get("model", {}).get("attention"):
        return False
    return "quantize" not in result.params["numerics"]


def shipped() -> Predictor:
    """Return the predictor that was fitted on the reference results."""
    return msgspec.json.decode(DATA.read_bytes(), type=Predictor)
