"""What does each of Inductor's options gain, alone, over the defaults of `torch.compile`?

Each cell times a compiled network without and with one option in turn.
"""

from __future__ import annotations

import pandas as pd

from effbench.claims import Answer, Claim, by, geomean, ratio, where
from effbench.claims.figures import Figure

GPU_SECONDS = 2300
NEEDS = "cuda"
#: All are off by default.
OPTIONS = (
    "aggressive_fusion",
    "batch_invariant",
    "combo_kernels",
    "coordinate_descent_tuning",
    "freezing",
    "max_autotune_pointwise",
    "triton.cooperative_reductions",
    "triton.enable_pdl",
)
#: The mode `default`, as one value of `mode`.
MODE = "_target_:effbench.modes.compiled.Compiled,mode:default,fullgraph:false,dynamic:null"


def modes() -> str:
    """Return the override that sweeps the options: a mode for each, named after it."""
    values = [f"{{name:default,{MODE},options:{{}}}}"]
    for option in OPTIONS:
        values.append(f"{{name:{option},{MODE},options:{{{option}:true}}}}")
    return f"mode={','.join(values)}"


COMMON = (modes(), "baseline_mode=default", "bs=1", "protocol=quick", "protocol.rounds=2")
SWEEPS = {
    "torchvision": ["model=torchvision", "model.arch=resnet50,convnext_tiny", *COMMON],
    "timm": ["model=timm", "model.arch=mobilenetv3_large_100,vit_base_patch16_224", *COMMON],
    "encode": ["model=transformers", "model.arch=bert-base", "model.task=encode", *COMMON],
    "logits": [
        "model=transformers",
        "model.arch=whisper-tiny,t5-small",
        "model.task=logits",
        *COMMON,
    ],
    "decode": [
        "model=transformers",
        "model.arch=gpt2,llama-1b,qwen2-0.5b",
        "model.task=decode",
        *COMMON,
    ],
}
Figures = dict[str, Figure]


def networks(*sweeps: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of all networks."""
    return pd.concat(sweeps, ignore_index=True)


def gains(rows: pd.DataFrame, option: str) -> Figures:
    """Return network -> speedup of an option over the defaults."""
    return by(where(rows, mode=option), ["model"], lambda part: geomean(part.speedup))


@Claim(
    "P28",
    "Combining independent kernels (`combo_kernels`) saves a seventh of them, at the same speed.",
    unit="×",
    published=(
        "413 to 357 kernels a call, the same throughput, for Qwen3-0.6B in FP8 on an H200"
        " (sgl-project/sglang pull request 21977). There with CUDA graphs in pieces, and 7,000"
        " tokens."
    ),
)
def p28(torchvision, timm, encode, logits, decode):
    rows = networks(torchvision, timm, encode, logits, decode)
    holds = {}
    kernels = by(
        rows,
        ["model"],
        lambda part: geomean(ratio(part, "kernels", mode=["default", "combo_kernels"])),
    )
    for label, fewer in kernels.items():
        holds[f"{label}: a tenth fewer kernels"] = fewer.above(1 / 0.9)
    speedups = gains(rows, "combo_kernels")
    for label, gain in speedups.items():
        holds[f"{label}: at most 2 % slower"] = gain.above(0.98)
    also = dict(speedups)
    for label, fewer in kernels.items():
        also[f"{label}: kernels without the option ÷ with it"] = fewer
    return Answer(holds, geomean(speedups.values()), also)


@Claim(
    "P29",
    "Coordinate descent tuning makes compiled networks faster.",
    unit="×",
    published=(
        "One of the options for fast generation (PyTorch blog: Accelerating Generative AI, parts 2"
        " and 3; torchao's recommended_inductor_config_setter)."
    ),
)
def p29(torchvision, timm, encode, logits, decode):
    rows = networks(torchvision, timm, encode, logits, decode)
    speedups = gains(rows, "coordinate_descent_tuning")
    holds = {label: gain.above(1) for label, gain in speedups.items()}
    return Answer(holds, geomean(speedups.values()), also=speedups)


@Claim(
    "P30",
    "Results that do not depend on the batch (`batch_invariant`) cost a third of the speed.",
    unit="×",
    published=(
        "34 % more time in SGLang, 62 % in the first version for vLLM (LMSYS, Towards deterministic"
        " inference in SGLang, 2025). Their own kernels, not Inductor's option."
    ),
)
def p30(torchvision, timm, encode, logits, decode):
    rows = networks(torchvision, timm, encode, logits, decode)
    speedups = gains(rows, "batch_invariant")
    holds = {label: gain.below(0.75) for label, gain in speedups.items()}
    return Answer(holds, geomean(speedups.values()), also=speedups)
