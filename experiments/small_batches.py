"""What does a CUDA graph save at small batch sizes, and where does the time come from?"""

from effbench.claims import Answer, Claim, geomean, mean, where

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
    each="model",
    published=(
        "Mask R-CNN 1.70x in training (NVIDIA's post on CUDA graphs); granite 3B-a800m on an H200,"
        " bs 1, decoding: 26.49 to 2.67 ms (SGLang pull request 33293). Other models and other"
        " versions than ours."
    ),
)
def p1(rows):
    saved = 1 - 1 / geomean(where(rows, mode="cuda-graph").speedup)
    return saved.within(0.3, 0.7)


@Claim("P14", "CUDA graphs cut the time in which the GPU idles.", unit="%", each="model")
def p14(rows):
    eager = mean(where(rows, mode="eager").gpu_idle_fraction)
    graph = mean(where(rows, mode="cuda-graph").gpu_idle_fraction)
    saved = eager - graph
    also = {"idle in eager": eager, "idle in a CUDA graph": graph}
    return Answer(saved.above(0.01), saved, also)
