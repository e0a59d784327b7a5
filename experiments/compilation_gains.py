"""What does compilation gain at which batch size, and how much of that does a CUDA graph gain
alone?

B batch, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from effbench.claims._timing import (
    disturbed_fraction,
    figure,
    in_turn,
    latency_ms,
    paired_ratio,
    period_ms,
)
from effbench.claims._tools import attempt, fresh_compile_cache
from torch import nn

from effbench.claims import (
    Answer,
    Claim,
    by,
    fraction,
    geomean,
    highest,
    interval,
    lowest,
    ratio,
    where,
)
from effbench.claims.checks import COMPILER, CUDA, Facts, check
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
            **{
                label: paired_ratio(eager, times[label, kind])
                for label in steps
                if label != "eager"
            },
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
            facts[kind]
            for facts in batch_sizes.values()
            if kind in facts and facts.model in models and facts.bs in batches
        ]
        gains = [gain for gain in gains if gain["compiled graph"].value > 1.05]
        alone = geomean([gain["compiled"] for gain in gains])
        together = geomean([gain["compiled graph"] for gain in gains])
        return fraction(alone, together)

    models = list(dict.fromkeys(facts.model for facts in batch_sizes.values()))
    holds, also = {}, {}
    for kind in KINDS:
        for model in models:
            shares = {name: compilation(kind, batches, [model]) for name, batches in RANGES.items()}
            holds[f"{model}, {kind}, {SMALL}: the graph more"] = shares[SMALL].below(0.5)
            holds[f"{model}, {kind}, {MIDDLE}: both"] = shares[MIDDLE].within(0.2, 0.8)
            holds[f"{model}, {kind}, {LARGE}: compilation more"] = shares[LARGE].above(0.5)
            for name, share in shares.items():
                also[f"{model}, {kind}, {name}: compilation's share"] = share
    for key, facts in batch_sizes.items():
        for kind in KINDS:
            for label in ("graph", "compiled", "compiled graph"):
                also[f"{key}, {kind}: eager ÷ {label}"] = facts.get(kind, {}).get(label)
    return Answer(holds, compilation("period", RANGES[LARGE], models), also)


@Claim("P2", "torch.compile gains 10 to 30 % in compute efficiency.", unit="%")
def p2(rows):
    ratios = ratio(rows, "gpu_busy_ms", mode=["eager", "default"])
    compiled = where(rows, mode="default")
    gains = by(compiled, ["model", "bs"], lambda part: geomean(ratios[part.index]) - 1)
    holds = {label: gain.within(0.1, 0.3) for label, gain in gains.items()}
    also = {"least": lowest(ratios), "largest": highest(ratios), **gains}
    return Answer(holds, geomean(ratios) - 1, also)


@Claim(
    "P7", "Compilation speeds an MLP up 1.3x, attention 1.1x, a model end to end 1.2x.", unit="×"
)
def p7(rows, batch_sizes):
    ranges = {"mlp": (1.2, 1.4), "attention": (1.05, 1.15), "gpt2": (1.1, 1.3)}
    holds, also = {}, {}
    for model, (low, high) in ranges.items():
        of_model = where(rows, model=model)
        batch = "bs 8" if model == "gpt2" else "bs 128"
        gain = {
            "latency": interval(where(of_model, mode="default").speedup),
            "period": interval(ratio(of_model, "period_ms", mode=["eager", "default"])),
        }
        for kind in KINDS:
            holds[f"{model}, {batch}, {kind}"] = gain[kind].within(low, high)
            also[f"{model}, {batch}, {kind}: eager ÷ compiled"] = gain[kind]
            if kind in batch_sizes.get(f"{model}, bs 1", {}):
                small = batch_sizes[f"{model}, bs 1"][kind].compiled
                holds[f"{model}, bs 1, {kind}"] = small.within(low, high)
                also[f"{model}, bs 1, {kind}: eager ÷ compiled"] = small
    return Answer(holds, geomean(where(rows, mode="default").speedup), also)
