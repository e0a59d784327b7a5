"""What does each mode gain when a model is split over two GPUs, or trained on two?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from effbench.claims import Answer, Claim, by, geomean, interval, ratio, where
from effbench.claims.figures import Figure, missing
from effbench.core.cell import Status
from effbench.core.metrics import SPEEDUPS

GPU_SECONDS = 900
NEEDS = "two GPUs"
DECODE = [
    "bs=1,64",
    "mode=eager,default,cuda-graph,default+graph",
    "parallel=none,tp2",
    "protocol=quick",
    "protocol.rounds=2",
]
SWEEPS = {  # parts of the layers: an eager call of all of them takes 50 ms with tp2
    "decode": ["model=llama-1b-decode", "model.module.layers=8", *DECODE],
    "wide": ["model=llama-7b-decode", "model.module.layers=4", *DECODE],
    "training": [
        "model=bert-base",
        "bs=8",
        "phase=training",
        "mode=eager,default",
        "parallel=none,ddp2,fsdp2",
        "protocol=quick",
        "protocol.rounds=2",
    ],
}

CASE = ["model", "bs", "parallel"]
#: The least speedup that counts as parity with eager.
PARITY = 0.98
#: What is shown of training.
TRAINING = ("speedup", "period_speedup", "scaling_efficiency")
Figures = dict[str, Figure]


def over_eager(rows: pd.DataFrame) -> pd.Series:
    """Return what a CUDA graph of eager code gains, from pairs."""
    return where(rows, mode="cuda-graph").speedup


def over_compiled(rows: pd.DataFrame) -> pd.Series:
    """Return what a CUDA graph of compiled code gains, which has no distributed tensors to
    dispatch."""
    return ratio(rows, "latency_ms", mode=["default", "default+graph"])


def by_compiling(rows: pd.DataFrame) -> pd.Series:
    """Return what compilation gains if both sides are CUDA graphs."""
    return ratio(rows, "latency_ms", mode=["cuda-graph", "default+graph"])


def at(gains: pd.Series, rows: pd.DataFrame, **cell: Any) -> Figure:
    """Return the only one of these gains whose row has these values."""
    return interval(gains[where(rows.loc[gains.index], **cell).index])


def sizes(rows: pd.DataFrame) -> dict[str, int]:
    """Return the batch sizes of a sweep of one model by label."""
    return {f"{rows.model.iloc[0]} bs={bs}": bs for bs in rows.bs.unique()}


def by_case(
    gains: pd.Series, rows: pd.DataFrame, what: str, names: Sequence[str] = CASE
) -> Figures:
    """Return all of these gains with labels that begin with `what`."""
    found = by(rows.loc[gains.index], [*names], lambda part: interval(gains[part.index]))
    return {f"{what}, {label}": figure for label, figure in found.items()}


def by_mode(rows: pd.DataFrame, *names: str) -> Figures:
    """Return these columns of all cells by label; eager's speedups are 1 by definition."""
    figures: Figures = {}
    for name in names:
        shown = rows
        if name in SPEEDUPS:
            shown = rows[rows["mode"] != "eager"]
        figures |= by_case(shown[name], rows, name, ["mode", *CASE])
    return figures


@Claim(
    "P17",
    "CUDA graphs are particularly effective with tensor parallelism, and for small models.",
    unit="×",
    published=(
        "no figures (vLLM pull request 1926, which introduced graphs). vLLM's layers are no"
        " distributed tensors, whose dispatch a graph saves, too; compiled code has none."
    ),
)
def p17(decode, wide):
    holds = {}
    also = {}
    single, split = [], []
    for rows in (decode, wide):
        compiled = over_compiled(rows)
        for what, gains in (("eager", over_eager(rows)), ("compiled", compiled)):
            for label, bs in sizes(rows).items():
                single.append(at(gains, rows, bs=bs, parallel="none"))
                split.append(at(gains, rows, bs=bs, parallel="tp2"))
                holds[f"with tp2: a graph of {what} code, {label}"] = split[-1].above(single[-1])
        also |= by_mode(rows, "speedup", "scaling_efficiency")
        also |= by_case(compiled, rows, "a graph of compiled code")
    small, large = (at(over_eager(rows), rows, bs=1, parallel="tp2") for rows in (decode, wide))
    holds["for 1B more than for 7B, bs=1 with tp2"] = small.above(large)
    return Answer(holds, geomean(split) / geomean(single), also)


@Claim(
    "P18",
    "With tensor parallelism, a CUDA graph is useful at larger batch sizes, too.",
    unit="×",
    published=(
        "up to 512 or 768, for some models and especially at large sizes of tensor parallelism; by"
        " default graphs serve sizes below about 160 to 256 (SGLang's guide Hyperparameter"
        " Tuning). 64 here."
    ),
)
def p18(decode, wide):
    holds = {}
    also = {}
    values = []
    for rows in (where(decode, bs=64), where(wide, bs=64)):
        gains = over_compiled(rows)
        for label, bs in sizes(rows).items():
            split = at(gains, rows, bs=bs, parallel="tp2")
            holds[f"faster, {label}"] = split.above(1)
            holds[f"more than on one GPU, {label}"] = split.above(
                at(gains, rows, bs=bs, parallel="none")
            )
            values.append(split)
        also |= by_case(gains, rows, "a graph of compiled code")
    return Answer(holds, geomean(values), also)


@Claim(
    "P19",
    "torch.compile accelerates small batches; at large ones or with tensor parallelism it may be"
    " slower.",
    unit="×",
    published=(
        "Llama-3-8B, both in CUDA graphs: 7.37 to 6.42 ms at bs 1, 11.84 to 12.31 ms at bs 128"
        " (SGLang issue 1008, of 2024)"
    ),
)
def p19(decode, wide):
    holds = {}
    also = {}
    values = []
    for rows in (decode, wide):
        gains = by_compiling(rows)
        small = at(gains, rows, bs=1, parallel="none")
        for label, bs in sizes(rows).items():
            single, split = (at(gains, rows, bs=bs, parallel=name) for name in ("none", "tp2"))
            if bs == 1:
                holds[f"faster, {label}"] = small.above(1)
            else:
                holds[f"less than at bs=1, {label}"] = single.below(small)
            holds[f"less with tp2, {label}"] = split.below(single)
            values.append(split)
        also |= by_case(gains, rows, "compiled")
    return Answer(holds, geomean(values), also)


@Claim(
    "P20",
    "Compiled, data parallel training (DDP) is at least as fast as in eager.",
    unit="×",
    published=(
        "gains or parity for six models, BERT among them, on 1 to 64 GPUs (PyTorch pull request"
        " 88523, which made DDPOptimizer the default); parity here: not more than 2 % slower"
    ),
)
def p20(training):
    compiled = where(training, mode="default", parallel="ddp2")
    period, latency = interval(compiled.period_speedup), interval(compiled.speedup)
    holds = {"steps back to back": period.above(PARITY), "a single step": latency.above(PARITY)}
    return Answer(holds, period, by_mode(training, *TRAINING))


@Claim(
    "P21",
    "torch.compile makes fully sharded training 9 to 16 % faster, in less memory.",
    unit="×",
    published=(
        "Llama 3.1 8B on 8 H100s: 5,762 to 6,667 tokens/s per GPU, 82.4 to 77.0 GiB (torchtitan's"
        " benchmark of December 2024); whole steps of PPO with 7B and GRPO with 8B on 8 H100s:"
        " 1,268 to 1,377 and 2,457 to 2,822 tokens/s (verl pull request 3870). Other models than"
        " ours."
    ),
)
def p21(training):
    sharded = where(training, parallel="fsdp2")
    compiled = where(sharded, mode="default")
    period = interval(compiled.period_speedup)
    memory = interval(
        ratio(sharded, "peak_allocated_bytes", mode=["eager", "default"])[compiled.index]
    )
    holds = {"9 to 16 % faster": period.within(1.09, 1.16), "less memory": memory.above(1)}
    also = {"peak memory, eager ÷ compiled": memory} | by_mode(training, *TRAINING)
    return Answer(holds, period, also)


@Claim(
    "S19",
    "A whole CUDA graph does not work with tensor parallelism, because of DTensor's collectives.",
    published=(
        "capturing hangs with more than one rank (a note in the code of torchtitan pull request"
        " 2486, which generates with vLLM)"
    ),
)
def s19(decode, wide):
    holds = {}
    for rows in (decode, wide):
        for _, row in where(rows, mode=["cuda-graph", "default+graph"], parallel="tp2").iterrows():
            holds[f"{row['model']} bs={row.bs} {row['mode']}"] = fails(row)
    return Answer(holds)


def fails(row: pd.Series) -> bool | Figure:
    """Return whether a cell failed; a missing figure if it could not be tried."""
    if row.status is Status.OK or row.status.is_failure:
        return bool(row.status.is_failure)
    return missing(f"{row.status}: {row['model']} bs={row.bs} {row['mode']} ({row.reason})")
