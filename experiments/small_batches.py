"""What does a CUDA graph save at small batch sizes, and where does the time come from?"""

from effbench.claims import Answer, Claim, by, geomean, mean, where

GPU_SECONDS = 250
NEEDS = "cuda"
SWEEPS = {
    "main": [
        "model=mlp,mlp-swiglu,attention,gpt2,moe-decode,mobilenetv3,resnet18,bert-base,lin3,llama-1b-decode",
        "bs=1",
        "mode=eager,cuda-graph",
        "protocol.rounds=3",
        "protocol.budget_s=1",
    ]
}


@Claim(
    "P1",
    "A CUDA graph cuts latency by 30 to 70 % at small batch.",
    unit="%",
    published=(
        "Mask R-CNN 1.70x in training (NVIDIA's post on CUDA graphs); granite 3B-a800m on an H200,"
        " bs 1, decoding: 26.49 to 2.67 ms (SGLang pull request 33293). Other models and other"
        " versions than ours."
    ),
)
def p1(rows):
    graphs = where(rows, mode="cuda-graph")
    saved = by(graphs, ["model"], lambda part: 1 - 1 / geomean(part.speedup))
    holds = {model: fraction.within(0.3, 0.7) for model, fraction in saved.items()}
    return Answer(holds, 1 - 1 / geomean(graphs.speedup), saved)


@Claim("P14", "CUDA graphs cut the time in which the GPU idles.", unit="%")
def p14(rows):
    def idle(mode, among=rows):
        return mean(where(among, mode=mode).gpu_idle_fraction)

    saved = by(rows, ["model"], lambda part: idle("eager", part) - idle("cuda-graph", part))
    holds = {model: fraction.above(0.01) for model, fraction in saved.items()}
    eager, graph = idle("eager"), idle("cuda-graph")
    also = {"idle in eager": eager, "idle in a CUDA graph": graph, **saved}
    return Answer(holds, eager - graph, also)
