"""Which execution mode wins where, and by how much?"""

from effbench.claims import Answer, Claim, by, geomean, highest, lowest, ratio, where

GPU_SECONDS = 940
NEEDS = "cuda"
SWEEPS = {
    "main": [
        "model=mlp,attention,gpt2",
        "bs=1,128",
        "mode=eager,default,reduce-overhead,max-autotune,cuda-graph,compile+graph",
        "protocol.rounds=3",
        "protocol.budget_s=1",
    ],
    "convolutions": [  # without max-autotune, which takes minutes per cell
        "model=resnet18",
        "bs=1,128",
        "mode=eager,default,reduce-overhead,cuda-graph",
        "protocol.rounds=3",
        "protocol.budget_s=1",
    ],
}


@Claim(
    "P3",
    "Graph and compilation combined give 30 to 60 %.",
    unit="%",
    published=(
        "2.27x in inference and 1.41x in training, geometric means of more than 180 models on an"
        " A100 (PyTorch 2 paper, ASPLOS 2024); Llama-7B on an A100, bs 1, with reduce-overhead and"
        " a static cache: 25.5 to 107 tokens/s (gpt-fast); Llama-3-8B, bs 1: 8.23 to 7.35 ms"
        " (SGLang pull request 1401). Other GPUs and models than ours."
    ),
)
def p3(rows):
    combined = where(rows, mode=["reduce-overhead", "max-autotune", "compile+graph"])
    saved = by(combined, ["model", "bs"], lambda part: 1 - 1 / geomean(part.speedup))
    holds = {label: fraction.within(0.3, 0.6) for label, fraction in saved.items()}
    speedups = combined.speedup
    also = {"least speedup": lowest(speedups), "largest speedup": highest(speedups), **saved}
    return Answer(holds, 1 - 1 / geomean(speedups), also)


@Claim(
    "P16",
    "Bound by latency: a graph first; bound by throughput: compilation first; in production both,"
    " with reduce-overhead, and max-autotune when tuning.",
)
def p16(rows):
    def speedup(mode, among=rows):
        return geomean(where(among, mode=mode).speedup)

    def period(mode):
        return geomean(ratio(rows[rows.bs >= 64], "period_ms", mode=["eager", mode]))

    single = where(rows, bs=1)
    # without max-autotune; compare only models that have every mode
    tuned = rows[rows.model != "resnet18"]
    graph, compiled, both = (
        speedup(mode, tuned) for mode in ("cuda-graph", "default", "compile+graph")
    )
    reduced, most = speedup("reduce-overhead", tuned), speedup("max-autotune", tuned)
    either = highest([speedup("cuda-graph"), speedup("default")])
    holds = {
        "bs 1: a graph before compilation": (
            speedup("cuda-graph", single).above(speedup("default", single))
        ),
        "bs 64 and more: compilation before a graph": period("default").above(period("cuda-graph")),
        "both together (compile+graph) before either": both.above(highest([graph, compiled])),
        "reduce-overhead before either": speedup("reduce-overhead").above(either),
        "max-autotune before reduce-overhead": most.above(reduced),
    }
    paid_back = where(rows, mode="max-autotune").break_even_calls.astype(float).median()
    also = {
        "bs 1, a graph": speedup("cuda-graph", single),
        "bs 1, compiled": speedup("default", single),
        "period at bs 64 and more, a graph": period("cuda-graph"),
        "period at bs 64 and more, compiled": period("default"),
        "mlp, attention and gpt2: a graph": graph,
        "compile+graph": both,
        "reduce-overhead": reduced,
        "max-autotune": most,
        "calls until max-autotune has paid for itself": paid_back,
    }
    return Answer(holds, also=also)
