"""What does compilation gain at which batch size, and how much of that does a CUDA graph gain
alone?

B batch, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from effbench.experiments._timing import (
    disturbed_fraction,
    figure,
    in_turn,
    latency_ms,
    period_ms,
    ratio,
)
from effbench.experiments._tools import fresh_compile_cache
from torch import nn

from effbench.experiments import (
    Claim,
    Found,
    Pivot,
    between,
    geomean,
    highest,
    log,
    lowest,
    only,
    relative,
    where,
)
from effbench.experiments.checks import COMPILER, CUDA, Facts, attempt, check
from effbench.models.gpt2 import GPT2Decoder
from effbench.models.mlp import MLP
from effbench.modes.graphs import capture

GPU_SECONDS = 225
NEEDS = "cuda"
SWEEPS = {
    "parts": [
        "model=mlp,attention",
        "bs=128",
        "mode=eager,default",
        "protocol.rounds=10",
        "protocol.compilations=3",
        "protocol.budget_s=0.4",
        "protocol.load_s=0.1",
        "protocol.warmup_s=0.1",
    ],
    "end_to_end": [
        "model=gpt2",
        "model.module.layers=4",
        "bs=8",
        "mode=eager,default",
        "protocol.rounds=10",
        "protocol.compilations=3",
        "protocol.budget_s=0.4",
        "protocol.load_s=0.1",
        "protocol.warmup_s=0.1",
    ],
}
TABLES = [
    Pivot("Speedup over eager, latency", "speedup", unit="×"),
    Pivot("Time in which the GPU is busy (ms)", "gpu_busy_ms"),
]

BATCHES = (1, 8, 64, 256)
SMALL, MIDDLE, LARGE = "bs 1 to 8", "bs 8 to 64", "bs above 64"
RANGES = {SMALL: (1, 8), MIDDLE: (8, 64), LARGE: (256,)}
KINDS = ("latency", "period")


def made(name: str, batch: int, device: torch.device) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return a module in bfloat16 and its inputs."""
    module: nn.Module
    if name == "mlp":
        module, shape = MLP(1024, 8), (1024,)
    elif name == "gpt2":
        module = (
            GPT2Decoder(batch, 256, 128, layers=4, vocab=8192).to(device, torch.bfloat16).eval()
        )
        token = torch.randint(8192, (batch, 1), device=device)
        return module.requires_grad_(False), (token, torch.tensor([128], device=device))
    else:
        from effbench.models.vision import torchvision_model

        module, shape = torchvision_model(name, settled=True), (3, 224, 224)
    module = module.to(device, torch.bfloat16).eval().requires_grad_(False)
    return module, (torch.randn(batch, *shape, device=device, dtype=torch.bfloat16),)


@check(needs=(CUDA, COMPILER))
def batch_sizes(
    device: torch.device,
    models: Sequence[str] = ("mlp", "gpt2", "resnet18"),
    batches: Sequence[int] = BATCHES,
    rounds: int = 20,
) -> Facts:
    """Time eager, its CUDA graph, the compiled module, and its CUDA graph, in turn, at each batch
    size: latency and period. The compiled module and its graph run the same kernels, so that
    ln(E/C) ÷ ln(E/CG) is compilation's share of the gain of both."""
    facts: Facts = {}
    for name in models:
        for batch in batches:
            timed = attempt(gains, name, batch, device, rounds)
            key = f"{name}, bs {batch}"
            facts[key] = {"model": name, "bs": batch, **(timed.value or timed.facts())}
    return facts


def gains(name: str, batch: int, device: torch.device, rounds: int) -> Facts:
    torch._dynamo.reset()
    module, inputs = made(name, batch, device)
    with torch.inference_mode(), fresh_compile_cache():
        compiled = torch.compile(module, dynamic=False)
        compiled(*inputs)
        steps: dict[str, Callable[..., Any]] = {
            "eager": module,
            "graph": capture(module, inputs, {}, 3).step,
            "compiled": compiled,
            "compiled graph": capture(compiled, inputs, {}, 3).step,
        }
        measures = {}
        for label, step in steps.items():
            measures[label, "latency"] = latency_ms(partial(step, *inputs), device, 3)
            measures[label, "period"] = period_ms(partial(step, *inputs), device, 5)
        for measure in measures.values():
            measure()
        times = in_turn(measures, rounds)
    facts: Facts = {
        "disturbed_fraction": disturbed_fraction(
            {str(key): values for key, values in times.items()}
        )
    }
    for kind in KINDS:
        eager = times["eager", kind]
        facts[kind] = {
            "eager_ms": figure(eager),
            **{label: ratio(eager, times[label, kind]) for label in steps if label != "eager"},
        }
    return facts


@Claim(
    "P4",
    "At bs 1 to 8 graphs win most, from 8 to 64 both, above 64 compilation contributes more.",
    unit="%",
    published=(
        "SGLang pull request 1008, a graph against graph and compilation: bs 1 7.37 to 6.42 ms, bs"
        " 128 11.84 to 12.31 ms. Another model and GPU."
    ),
)
def p4(batch_sizes):
    def compilation(kind, batches, models):
        """Return compilation's fraction of the gain of compilation and a graph together; the
        geometric mean of the gains of the models that gain at least 5 % together."""
        gains = [
            batch_sizes[key][kind]
            for key in batch_sizes
            if batch_sizes[key].model in models
            and any(batch_sizes[key].bs.value == batch for batch in batches)
        ]
        gains = [gain for gain in gains if gain["compiled graph"].value > 1.05]
        alone, together = (
            geomean([gain[label] for gain in gains]) for label in ("compiled", "compiled graph")
        )
        return log(alone) / log(together)

    models = list(dict.fromkeys(batch_sizes[key].model for key in batch_sizes))
    holds, also = {}, {}
    for kind in KINDS:
        for model in models:
            shares = {name: compilation(kind, batches, [model]) for name, batches in RANGES.items()}
            holds[f"{model}, {kind}, {SMALL}: the graph more"] = shares[SMALL] < 0.5
            holds[f"{model}, {kind}, {MIDDLE}: both"] = between(shares[MIDDLE], 0.2, 0.8)
            holds[f"{model}, {kind}, {LARGE}: compilation more"] = shares[LARGE] > 0.5
            also |= {
                f"{model}, {kind}, {name}: compilation's share": share
                for name, share in shares.items()
            }
    for key in batch_sizes:
        for kind in KINDS:
            for label in ("graph", "compiled", "compiled graph"):
                also[f"{key}, {kind}: eager ÷ {label}"] = batch_sizes[key][kind][label]
    return Found(holds, compilation("period", RANGES[LARGE], models), also)


@Claim(
    "P2", "torch.compile gains 10 to 30 % in compute efficiency.", unit="%", each=["model", "bs"]
)
def p2(rows):
    gains = relative(where(rows, mode="default"), "gpu_busy_ms", "mode", "eager")
    gain = geomean(gains) - 1
    return Found(between(gain, 0.1, 0.3), gain, {"least": lowest(gains), "largest": highest(gains)})


@Claim(
    "P7", "Compilation speeds an MLP up 1.3x, attention 1.1x, a model end to end 1.2x.", unit="×"
)
def p7(rows, batch_sizes):
    ranges = {"mlp": (1.2, 1.4), "attention": (1.05, 1.15), "gpt2": (1.1, 1.3)}
    holds, also = {}, {}
    for model, (low, high) in ranges.items():
        compiled = where(rows, model=model, mode="default")
        batch = "bs 8" if model == "gpt2" else "bs 128"
        gain = {
            "latency": only(compiled.speedup),
            "period": only(relative(compiled, "period_ms", "mode", "eager")),
        }
        for kind in KINDS:
            holds[f"{model}, {batch}, {kind}"] = between(gain[kind], low, high)
            also[f"{model}, {batch}, {kind}: eager ÷ compiled"] = gain[kind]
            if f"{model}, bs 1" in batch_sizes:
                small = batch_sizes[f"{model}, bs 1"][kind].compiled
                holds[f"{model}, bs 1, {kind}"] = between(small, low, high)
                also[f"{model}, bs 1, {kind}: eager ÷ compiled"] = small
    return Found(holds, geomean(where(rows, mode="default").speedup), also)
