"""What do CUDA graphs in pieces gain and cost, against none and a whole graph?"""

from __future__ import annotations

from typing import Any

import pandas as pd

from effbench.claims import Answer, Claim, by, geomean, interval, ratio, where
from effbench.claims.figures import Figure
from effbench.core.metrics import SPEEDUPS

GPU_SECONDS = 520
NEEDS = "cuda"
QUICK = ("protocol=quick", "protocol.rounds=3")
SWEEPS = {
    "decode": [
        "model=gpt2,llama-1b-decode",
        "bs=1",
        "mode=eager,piecewise-graph,cuda-graph,default,default+piecewise,default+graph",
        *QUICK,
    ],
    "prefill": [
        "model=llama-1b-prefill",
        "model.module.seq=32,2048",
        "bs=1",
        "mode=eager,piecewise-graph,cuda-graph,default+piecewise,default+graph",
        *QUICK,
    ],
}

DECODE = ("model",)
PREFILL = ("model", "seq")
SHORT, LONG = 32, 2048
#: Graphs in pieces and the whole graph of the same kernels.
WHOLE = {"piecewise-graph": "cuda-graph", "default+piecewise": "default+graph"}
#: The largest speedup that counts as none.
LITTLE = 1.05
#: The table: what each mode gains and costs.
TABLE = ("latency_ms", "speedup", "relative_memory", "graph_pool_bytes", "cold_capture_s")
Figures = dict[str, Figure]


def cases(rows: pd.DataFrame, names: tuple[str, ...]) -> dict[str, pd.DataFrame]:
    """Return label -> rows of each combination of these columns' values."""
    found = {}
    for values in rows[[*names]].drop_duplicates().to_dict("records"):
        words = [str(values["model"])]
        words += [f"{name}={value}" for name, value in values.items() if name != "model"]
        found[" ".join(words)] = where(rows, **values)
    return found


def gain(rows: pd.DataFrame, before: str, after: str) -> Figure:
    """Return how much faster a mode is than another, in rows that differ only in their mode. Pairs
    tell it of eager; two other modes are steadier without eager between them."""
    if before == "eager":
        return interval(where(rows, mode=after).speedup)
    return interval(ratio(rows, "latency_ms", mode=[before, after]))


def table(rows: pd.DataFrame, names: tuple[str, ...], columns: tuple[str, ...] = TABLE) -> Figures:
    """Return these columns of all cells by label; eager's speedups are 1 by definition."""
    figures: Figures = {}
    for column in columns:
        shown = rows
        if column in SPEEDUPS:
            shown = rows[rows["mode"] != "eager"]
        found = by(shown, ["mode", *names], lambda part, column=column: interval(part[column]))
        figures |= {f"{column}, {label}": figure for label, figure in found.items()}
    return figures


@Claim(
    "P31",
    "CUDA graphs make PyTorch 1.2 to 3 times faster if the CPU is the bottleneck, and hardly if the"
    " GPU is.",
    unit="×",
    published=(
        "often 1.2 to 3 times; minimal gains or losses if the GPU is the bottleneck (NVIDIA's"
        " guide CUDA Graph Best Practice for PyTorch, read in 2026: PyTorch CUDA Graph Integration,"
        " Performance Issues). Judged: not more than 5 % if the GPU is the bottleneck."
    ),
)
def p31(decode, prefill):
    holds: dict[str, Any] = {}
    bound_by_cpu = []
    also = {}
    for rows, names in ((decode, DECODE), (prefill, PREFILL)):
        for label, part in cases(rows, names).items():
            found = gain(part, "eager", "cuda-graph")
            eager = where(part, mode="eager")
            if (eager["bound"] == "gpu").any():
                holds[f"hardly, bound by the GPU: {label}"] = found.below(LITTLE)
            else:
                holds[f"1.2 to 3 times, bound by the CPU: {label}"] = found.within(1.2, 3)
                bound_by_cpu.append(found)
            also[f"idle GPU in eager, {label}"] = interval(eager.gpu_idle_fraction)
            also[f"a whole graph, {label}"] = found
    return Answer(holds, geomean(bound_by_cpu), also)


@Claim(
    "P32",
    "A whole CUDA graph instead of graphs in pieces cuts the latency of decoding by 7 % for small"
    " models.",
    unit="%",
    published=(
        "7 % of the median time per token for models such as Qwen 2.5 1.5B (vLLM pull request"
        " 16072, of 2025); whole graphs for decoding, and pieces for the rest, are generally the"
        " fastest, especially for small models (vLLM's document CUDA Graphs). Pieces there end at"
        " vLLM's attention, and run compiled code. Judged: 5 to 10 %."
    ),
)
def p32(decode):
    holds = {}
    gains = []
    for label, part in cases(decode, DECODE).items():
        for pieces, whole in WHOLE.items():
            found = gain(part, pieces, whole)
            gains.append(found)
            holds[f"faster: {label} {whole}"] = found.above(1)
            holds[f"by about 7 %: {label} {whole}"] = (1 - 1 / found).within(0.05, 0.1)
    return Answer(holds, 1 - 1 / geomean(gains), table(decode, DECODE))


@Claim(
    "P33",
    "CUDA graphs in pieces make prefill faster, especially with short inputs.",
    unit="×",
    published=(
        "no figures (SGLang pull request 10062, of 2025; the default since 16331, of 2026); 4.7 %"
        " for Qwen3 0.6B with 512 tokens on an H800 (xLLM pull request 872, of 2026). Judged: 32"
        " and 2,048 tokens, one request, without padding to captured lengths."
    ),
)
def p33(prefill):
    gains = {
        seq: gain(where(prefill, seq=seq), "eager", "piecewise-graph") for seq in (SHORT, LONG)
    }
    holds = {f"faster with {seq} tokens": found.above(1) for seq, found in gains.items()}
    holds["more with 32 than with 2048 tokens"] = gains[SHORT].above(gains[LONG])
    return Answer(holds, gains[SHORT], table(prefill, PREFILL))


p34 = Claim(
    "P34",
    "Inductor's graph partition is faster than a graph that is split before Inductor with few"
    " tokens, slower with many, and compiles longer.",
    published=(
        "faster by less replay overhead, with a much longer cold compilation (vLLM issue 27080, of"
        " 2025); faster with few tokens, but 0.5 % slower with 1,024 and 1.6 % with 8,192 (issue"
        " 27828, about Hopper: Llama-3.1-8B, May 2026); 69 s of compilation became 27 s (PyTorch"
        " pull request 167132, of November 2025)."
    ),
    not_measurable=(
        "a partition around PyTorch's attention (Inductor's option custom_should_partition_ops)"
        " fails in PyTorch 2.11: attention returns values that cudagraph trees do not take, and a"
        " static key-value cache counts as memory outside their pool"
    ),
)

s20 = Claim(
    "S20",
    "reduce-overhead is slower in PyTorch 2.10 than in 2.9.",
    published=(
        "40 to 55 % less throughput, by cudaGraphLaunch that takes 7 times as long, for a GPT of 6B"
        " on an H100 (PyTorch issue 174575, of 2026); disputed there: CUDA graph trees had no"
        " substantive change between the two"
    ),
    not_measurable=(
        "the reference machine has neither release, only PyTorch 2.11; with both installed,"
        " `python=` compares them"
    ),
)
