"""What do compilation, compiled blocks and FlexAttention gain in diffusion transformers, and in the
other transformers of which the same is said?"""

from __future__ import annotations

import pandas as pd

from effbench.claims import Answer, Claim, by, geomean, interval, ratio, where
from effbench.claims.figures import Figure

GPU_SECONDS = 640
NEEDS = "cuda"
QUICK = ("protocol=quick", "protocol.rounds=2")
DENOISERS = (
    "QwenImageTransformer2DModel",
    "LTXVideoTransformer3DModel",
    "WanTransformer3DModel",
)
SWEEPS = {
    "flux": [  # all 57 blocks, because compile time depends on them
        "model=diffusers",
        "model.arch=FluxTransformer2DModel",
        "bs=1",
        "mode=eager,default,regional",
        *QUICK,
    ],
    "denoisers": [  # 8 blocks: the speedup of equal blocks does not depend on their number
        "model=diffusers",
        f"model.arch={','.join(DENOISERS)}",
        "model.config.num_layers=8",
        "bs=1",
        "mode=eager,default",
        *QUICK,
    ],
    "attention": [  # so long that attention takes most of the block's time
        "model=attention",
        "model.module.seq=32768",
        "model.module.causal=true",
        "model.attention=sdpa,flash,flex",
        "bs=1",
        "mode=default",
        *QUICK,
    ],
    "blocks": [
        "model=llama-1b-prefill",
        "model.module.seq=128",
        "bs=1,4",
        "mode=eager,default,regional",
        "protocol=quick",
        "protocol.rounds=3",  # small calls are bound by the host, so processes differ more
    ],
}

#: The least speed that counts as the same.
PARITY = 0.98
Figures = dict[str, Figure]


def whole_to_blocks(rows: pd.DataFrame) -> tuple[Figure, Figure]:
    """Return by what factor compiling only the blocks is shorter, and how fast they are, with the
    compiled whole as 1."""
    shorter = interval(ratio(rows, "compile_cold_s", mode=["default", "regional"]))
    speed = interval(ratio(rows, "latency_ms", mode=["default", "regional"]))
    return shorter, speed


def table(rows: pd.DataFrame, *columns: str) -> Figures:
    """Return these columns of the cells that compile, by label."""
    compiled = rows[rows["mode"] != "eager"]
    figures: Figures = {}
    for column in columns:
        found = by(
            compiled, ["mode", "model", "bs"], lambda part, column=column: interval(part[column])
        )
        figures |= {f"{column}, {label}": figure for label, figure in found.items()}
    return figures


@Claim(
    "P35",
    "Compiling only the repeated blocks of a denoiser takes 8 to 10 times less time and costs no"
    " speed.",
    unit="×",
    published=(
        "8 to 10 times, for many architectures (diffusers' documentation Accelerate inference, of"
        " 2025); Flux.1-dev: 67.4 to 9.6 s on an H100 (PyTorch's devlog torch.compile and"
        " Diffusers, of 2026); 50.7 to 8.1 s on an H200, 7.6 and 7.7 s an image (SGLang pull"
        " request 28193, of 2026). Judged as no cost: not more than 2 % slower."
    ),
)
def p35(flux):
    shorter, speed = whole_to_blocks(flux)
    holds = {"8 to 10 times less time": shorter.within(8, 10), "no cost": speed.above(PARITY)}
    also = {"speed of blocks ÷ whole": speed} | table(flux, "compile_cold_s", "latency_ms")
    return Answer(holds, shorter, also)


@Claim(
    "P36",
    "torch.compile makes Flux about 1.5 times faster.",
    unit="×",
    published=(
        "Flux.1-dev with 28 steps, in bfloat16: 6.7 to 4.5 s on an H100 (PyTorch's devlog"
        " torch.compile and Diffusers, of 2026), 5.58 to 4.32 s on an H200 (SGLang pull request"
        " 19673, of 2026), which is 1.29 times. Whole pipelines; here the denoiser alone. Judged:"
        " 1.4 to 1.6 times."
    ),
)
def p36(flux):
    speedup = interval(where(flux, mode="default").speedup)
    also = table(flux, "speedup", "latency_ms", "break_even_calls")
    return Answer(speedup.within(1.4, 1.6), speedup, also)


@Claim(
    "P37",
    "torch.compile makes most diffusion models slower.",
    unit="×",
    published=(
        "12 of 17 presets slower, 1 as fast, 4 faster, on H100s: Qwen-Image 12.6 to 14.5 s,"
        " LTX-2 6.0 to 25.7 s, but Wan 56.6 to 51.3 s (SGLang pull request 34173, of 2026: first"
        " reported latencies of SGLang's pipelines, which may contain compilation). Here steady"
        " calls of denoisers from diffusers."
    ),
)
def p37(flux, denoisers):
    holds = {}
    speedups = []
    for rows, names in ((flux, ["FluxTransformer2DModel"]), (denoisers, DENOISERS)):
        for name in names:
            speedup = interval(where(rows, model=name, mode="default").speedup)
            holds[name] = speedup.below(1)
            speedups.append(speedup)
    columns = ("speedup", "latency_ms", "compile_cold_s", "break_even_calls")
    return Answer(holds, geomean(speedups), table(flux, *columns) | table(denoisers, *columns))


@Claim(
    "P38",
    "On Hopper, FlexAttention's forward is about 25 % faster than FlashAttention 2.",
    unit="×",
    published=(
        "about 25 % faster, 85 % of FlashAttention 3, averages on an H100 (PyTorch at GTC 2025);"
        " 90 % of FlashAttention 2 on an A100 (PyTorch's blog post FlexAttention, of 2024). Here a"
        " causal block with 16 heads of 64 and 32,768 tokens, its four projections included."
        " Judged: 15 to 35 %."
    ),
)
def p38(attention):
    gain = interval(ratio(attention, "latency_ms", attention=["flash", "flex"]))
    default = interval(ratio(attention, "latency_ms", attention=["sdpa", "flex"]))
    latency = by(attention, ["attention"], lambda part: interval(part.latency_ms))
    also = {"torch's own choice (sdpa) ÷ flex": default}
    also |= {f"latency_ms, {label}": figure for label, figure in latency.items()}
    return Answer(gain.within(1.15, 1.35), gain, also)


@Claim(
    "P39",
    "Compiling each Transformer block instead of the whole model takes 3.5 to 5.5 times less time;"
    " it is slower with one prompt, and as fast with four.",
    unit="×",
    published=(
        "Llama-3.2-1B with 128 tokens: 10.7 to 2.0 s of compilation, 6.3 to 9.7 ms a call with one"
        " prompt; 10.2 to 2.9 s, 10.0 ms both with four (Accelerate pull request 3529, of 2025);"
        " shorter, without figures (torchtitan issue 479, of 2024). As fast here: not more than 2 %"
        " slower."
    ),
)
def p39(blocks):
    holds = {}
    factors = []
    also = {}
    for bs in (1, 4):
        shorter, speed = whole_to_blocks(where(blocks, bs=bs))
        factors.append(shorter)
        holds[f"3.5 to 5.5 times less time, bs={bs}"] = shorter.within(3.5, 5.5)
        also[f"speed of blocks ÷ whole, bs={bs}"] = speed
        if bs == 1:
            holds["slower, bs=1"] = speed.below(1)
        else:
            holds["as fast, bs=4"] = speed.above(PARITY)
    also |= table(blocks, "compile_cold_s", "speedup")
    return Answer(holds, geomean(factors), also)
