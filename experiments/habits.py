"""What do in-place operations, nonzero and gradient modes cost, in time and in memory?

B batch, D width, N elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from effbench.claims._timing import (
    difference,
    figure,
    host_us,
    in_turn,
    latency_ms,
    paired_ratio,
    period_ms,
)
from effbench.claims._tools import call_ms
from effbench.claims.overheads import GRADIENTS, IN_PLACE, GradMode, InPlace, Selection, spin

from effbench.claims import Answer, Claim
from effbench.claims.checks import CUDA, Facts, check
from effbench.measure.memory import reset_peaks
from effbench.measure.timing import synchronizer

GPU_SECONDS = 35


def peak_bytes(function: Callable[[], Any], device: torch.device) -> int | None:
    """Return the peak of allocated device memory during a call, above what was allocated before;
    None on the CPU."""
    if device.type != "cuda":
        return None
    function()
    reset_peaks(device)
    before = torch.cuda.memory_allocated(device)
    result = function()  # kept alive until the peak is read
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated(device) - before
    del result
    return peak


@check()
def in_place(
    device: torch.device, elements: Sequence[int] = (2**14, 2**18, 2**22, 2**25), rounds: int = 60
) -> Facts:
    """Compare a ReLU and a clamp in place and out of place: time, peak memory, and the address of
    the result."""
    facts: Facts = {}
    for count in elements if device.type == "cuda" else elements[:2]:
        x = torch.randn(1, count, device=device)
        calls = {name: partial(InPlace(name, count), x) for name in IN_PLACE}
        measures = {}
        with torch.inference_mode():
            x.relu_().clamp_(max=1.0)  # another call changes nothing
            for name, call in calls.items():
                measures[name, "latency"] = latency_ms(call, device)
                measures[name, "period"] = period_ms(call, device)
            measured = in_turn(measures, rounds)
            peaks = {name: peak_bytes(call, device) for name, call in calls.items()}
            kept = {name: call().data_ptr() == x.data_ptr() for name, call in calls.items()}
        inside, outside = IN_PLACE
        facts[f"{count} elements"] = {
            "latency_ms": {name: figure(measured[name, "latency"]) for name in IN_PLACE},
            "latency_gain": paired_ratio(measured[outside, "latency"], measured[inside, "latency"]),
            "period_gain": paired_ratio(measured[outside, "period"], measured[inside, "period"]),
            "peak_bytes": peaks,
            "result_is_the_input": kept,
        }
    return facts


@check(needs=(CUDA,))
def waits(device: torch.device, batches: Sequence[int] = (1, 4096), rounds: int = 400) -> Facts:
    """Attribute the wait of `nonzero` after a stack of linear layers: to the forward before it, or
    to itself.

    `alone`: host time of `nonzero` on an idle device; `after`: directly after the forward was
    launched. Without a synchronisation, the forward is still running when the call returns.
    """
    model = Selection().to(device, torch.bfloat16).eval().requires_grad_(False)
    return {f"bs {batch}": wait_of(model, batch, device, rounds) for batch in batches}


def wait_of(model: Selection, batch: int, device: torch.device, rounds: int) -> Facts:
    x = torch.randn(batch, 1000, device=device, dtype=torch.bfloat16)
    forward_ends = torch.cuda.Event()
    running: dict[str, list[bool]] = {}

    def mask() -> torch.Tensor:
        return model.stack(x).flatten() > 0

    selections: dict[str, Callable[[torch.Tensor], Any]] = {
        "nonzero": lambda positive: positive.nonzero(),
        "nonzero_static": lambda positive: torch.nonzero_static(positive, size=positive.numel()),
        "mask": lambda positive: torch.where(positive, 1.0, 0.0).sum(),
    }

    def selection_us(
        select: Callable[[torch.Tensor], Any], name: str, idle: bool
    ) -> Callable[[], float]:
        def measure() -> float:
            positive = mask()
            forward_ends.record()
            if idle:
                torch.cuda.synchronize()
            # by the clock of the CPU, which does not wait for the GPU
            select_us = 1e3 * call_ms(select, positive, device=torch.device("cpu"))
            if not idle:
                running.setdefault(name, []).append(not forward_ends.query())
            torch.cuda.synchronize()
            return select_us

        return measure

    with torch.inference_mode():
        forward = figure(in_turn({"forward": period_ms(mask, device)}, 20)["forward"])
        work_us = max(50, int(1e3 * forward["value"]))
        measures: dict[str, Callable[[], float]] = {}
        for name, select in selections.items():
            measures[f"{name} after"] = selection_us(select, name, idle=False)
            measures[f"{name} alone"] = selection_us(select, name, idle=True)
        measures["work, then nonzero"] = latency_ms(
            lambda: (p := mask(), spin(work_us), p.nonzero()), device, 3
        )
        measures["nonzero, then work"] = latency_ms(
            lambda: (mask().nonzero(), spin(work_us)), device, 3
        )
        for measure in measures.values():
            measure()
        running.clear()
        times = in_turn(measures, rounds)
    overlap_ms = difference(times["nonzero, then work"], times["work, then nonzero"])
    waited = [
        after - alone
        for after, alone in zip(times["nonzero after"], times["nonzero alone"], strict=True)
    ]
    return {
        "forward_us": {name: 1e3 * value for name, value in forward.items()},
        "host_us": {
            name: figure(times[name]) for name in times if not name.startswith(("work", "nonzero,"))
        },
        "wait_for_forward_us": figure(waited),
        "wait_for_forward_fraction": paired_ratio(waited, times["nonzero after"]),
        "forward_runs_after": {name: sum(values) / len(values) for name, values in running.items()},
        "work_us": work_us,
        "overlap_saves_us": {name: 1e3 * value for name, value in overlap_ms.items()},
    }


#: Case -> batch and width: bound by launches, and by the device.
SIZES = {
    "bs 8, width 64": (8, 64),
    "bs 8, width 256": (8, 256),
    "bs 4096, width 1024": (4096, 1024),
}


@check()
def gradients(
    device: torch.device, sizes: dict[str, tuple[int, int]] | None = None, rounds: int = 60
) -> Facts:
    """Compare forwards with gradients, with no_grad and in inference_mode, at several sizes:
    latency, host time and peak memory."""
    facts: Facts = {}
    sizes = sizes or (SIZES if device.type == "cuda" else dict(list(SIZES.items())[:2]))
    for case, (batch, width) in sizes.items():
        x = torch.randn(batch, width, device=device)
        calls = {name: partial(GradMode(name, width).to(device), x) for name in GRADIENTS}
        measures = {}
        for name, call in calls.items():
            call()
            synchronizer(device)()
            measures[name, "latency"] = latency_ms(call, device, 3)
            measures[name, "host"] = host_us(call, device, 3)
        measured = in_turn(measures, rounds if device.type == "cuda" else rounds // 2)
        facts[case] = {
            name: {
                "latency_ms": figure(measured[name, "latency"]),
                "latency_gain": paired_ratio(
                    measured["grad", "latency"], measured[name, "latency"]
                ),
                "host_saved_us": difference(measured["grad", "host"], measured[name, "host"]),
                "peak_bytes": peak_bytes(calls[name], device),
            }
            for name in GRADIENTS
        }
    return facts


@Claim("O4", "In-place skips an allocation and saves time.", unit="×")
def o4(in_place):
    holds, also = {}, {}
    for size in in_place:
        facts = in_place[size]
        holds[f"skips an allocation, {size}"] = facts.result_is_the_input["in-place"]
        holds[f"less time for a call, {size}"] = facts.latency_gain.above(1)
        holds[f"less time in a stream, {size}"] = facts.period_gain.above(1)
        also[f"{size}: latency, out of place ÷ in place"] = facts.latency_gain
        also[f"{size}: period, out of place ÷ in place"] = facts.period_gain
        also[f"{size}: peak memory beyond the input, out of place and in place (bytes)"] = [
            facts.peak_bytes[name] for name in ("out-of-place", "in-place")
        ]
    return Answer(holds, in_place[list(in_place)[-1]].latency_gain, also)


@Claim(
    "O5",
    "nonzero synchronises, and the wait is really for the forward before it.",
    unit="%",
    needs="cuda",
)
def o5(waits):
    holds, also = {}, {}
    for case in waits:
        facts = waits[case]
        holds[f"{case}: nonzero waits until the forward is done"] = (
            facts.forward_runs_after.nonzero <= 0
        )
        holds[f"{case}: most of the wait is for the forward"] = (
            facts.wait_for_forward_fraction.above(0.5)
        )
        static, alone = (facts.host_us[f"nonzero_static {when}"] for when in ("after", "alone"))
        holds[f"{case}: nonzero_static does not wait"] = static.below(1.2 * alone)
        holds[f"{case}: host work before nonzero is hidden by the forward"] = (
            facts.overlap_saves_us.above(0)
        )
        also[f"{case}: the forward on the GPU (µs)"] = facts.forward_us
        for name in facts.host_us:
            also[f"{case}: {name}, host (µs)"] = facts.host_us[name]
        also[f"{case}: wait for the forward (µs)"] = facts.wait_for_forward_us
        also[f"{case}: saved by work before the wait (µs)"] = facts.overlap_saves_us
    return Answer(holds, waits["bs 4096"].wait_for_forward_fraction, also)


@Claim("O6", "Switch gradients off where none are needed.", unit="×")
def o6(gradients):
    holds, also = {}, {}
    for case in gradients:
        grad = gradients[case].grad
        on_gpu = grad.peak_bytes is not None
        for name in ("no_grad", "inference_mode"):
            facts = gradients[case][name]
            holds[f"{case}: {name} saves time"] = facts.latency_gain.above(1)
            if on_gpu:
                holds[f"{case}: {name} saves memory"] = facts.peak_bytes < grad.peak_bytes
            also[f"{case}: {name}, latency of grad ÷ this"] = facts.latency_gain
            also[f"{case}: {name}, host time saved (µs)"] = facts.host_saved_us
        also[f"{case}: peak memory, grad, no_grad and inference_mode (bytes)"] = [
            gradients[case][name].peak_bytes for name in gradients[case]
        ]
    return Answer(holds, gradients["bs 8, width 256"].inference_mode.latency_gain, also)
