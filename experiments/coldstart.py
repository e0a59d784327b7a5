"""How soon does a fresh process answer in each mode, and what does a cache save?"""

from effbench.claims import Answer, Claim, by, geomean, lowest, ratio, where

GPU_SECONDS = 1900
NEEDS = "cuda"
NETWORKS = "model=gpt2,resnet50,vit-b,bert-base,llama-1b-decode"
STARTS = ["phase=coldstart", "protocol=quick", "protocol.rounds=3", "timeout_s=300", NETWORKS]
SWEEPS = {
    "rungs": [
        *STARTS,
        "mode=eager,default,regional",
        "cache=none,folder,bundle",
        "exclude=[{mode:[eager,regional],cache:[folder,bundle]},"
        "{mode:regional,model:[resnet50,vit-b]}]",
    ],
    # Without this variable, torch first compiles test programs for the CPU's vector instructions,
    # before it loads a package: 37 s on an H200's host.
    "packages": [
        *STARTS,
        "mode=eager,aot-inductor",
        "cache=none,package",
        "exclude=[{mode:eager,cache:package},{mode:aot-inductor,cache:none}]",
        "env.TORCHINDUCTOR_VEC_ISA_OK=0",
    ],
}
#: The parts of eager's start before its first call.
BEFORE = ("cold_interpreter_s", "cold_imports_s", "cold_device_s", "cold_build_s")


def seconds(rows, **values):
    """Return the seconds to the first answer of the rows with these values."""
    return geomean(where(rows, **values).cold_s)


def first_call(rows, **values):
    """Return the seconds of a start with these values, without those before eager's first call.
    This includes importing the compiler, loading the cache, and tracing."""
    (eager,) = where(rows, mode="eager").itertuples()
    return seconds(rows, **values) - sum(getattr(eager, part) for part in BEFORE)


@Claim(
    "P22",
    "A cache of compiled artifacts lets a model start 2 to 3 times as fast.",
    unit="×",
    published=(
        "From 120, 150 and 400 s to 60, 70 and 150 s for containers of FLUX models (Replicate,"
        " Torch compile caching for inference speed, 2025); ResNet-152 with reduce-overhead, first"
        " call from 21.1 to 8.9 s (T. J. Fan, Keep warm with portable torch.compile caches, 2025)."
        " Larger models and other GPUs than ours."
    ),
)
def p22(rungs):
    gains = by(
        where(rungs, mode="default"),
        ["model"],
        lambda part: geomean(ratio(part, "cold_s", cache=["none", "bundle"])),
    )
    holds = {label: gain.within(2, 3) for label, gain in gains.items()}
    return Answer(holds, geomean(gains.values()), also=gains)


@Claim(
    "P23",
    "A bundle does as much as a copied cache folder: nothing is compiled again.",
    unit="×",
    published=(
        "Mega-Cache is the ideal, portable solution; loading it populates all modular caches"
        " (PyTorch recipe: Compile time caching in torch.compile). The whole cache directory can be"
        " copied to save a great amount of compilation time (vLLM's design document on"
        " torch.compile)."
    ),
)
def p23(rungs):
    compiled = where(rungs, mode="default")
    holds = {}
    for row in where(compiled, cache=["folder", "bundle"]).itertuples():
        holds[f"{row.model}, {row.cache}: all of it is used"] = row.cache_reuse == "whole"
    ratios = by(
        compiled,
        ["model"],
        lambda part: geomean(ratio(part, "cold_s", cache=["bundle", "folder"])),
    )
    for label, slower in ratios.items():
        holds[f"{label}: with a bundle at most a tenth later"] = slower.below(1.1)
    return Answer(holds, geomean(ratios.values()), also=ratios)


@Claim(
    "P24",
    "Even with a cache, a compiled model's first call takes several times as long as eager's.",
    unit="×",
    published=(
        "0.25 s in eager, 1.03 s compiled with a cache, 3.36 s without one, on an H100"
        " (pytorch/pytorch issue 172547)."
    ),
)
def p24(rungs):
    def times(part):
        return first_call(part, cache="bundle") / first_call(part, mode="eager")

    ratios = by(rungs, ["model"], times)
    holds = {label: figure.above(2) for label, figure in ratios.items()}
    also = dict(ratios)
    for label, figure in by(
        rungs, ["model"], lambda part: first_call(part, cache="bundle")
    ).items():
        also[f"{label}: first call with a bundle (s)"] = figure
    return Answer(holds, lowest(ratios.values()), also)


@Claim(
    "P25",
    "Compiling only the repeated block takes an eighth to a tenth of the time, at the same speed.",
    unit="×",
    published=(
        "8 to 10 times less compile time, the same speedup (diffusers documentation); Flux.1-dev"
        " on an H100: 67.4 to 9.6 s (PyTorch devlog, 2026); Llama-3.2-1B: 10.7 to 1.95 s, but 9.7"
        " instead of 6.3 ms (accelerate pull request 3529)."
    ),
)
def p25(rungs):
    def compiling(rows, mode):
        plain = where(rows, mode=mode)
        return geomean(plain.cold_trace_s + plain.cold_compile_s)

    plain = where(rungs, cache="none")
    in_regions = where(plain, mode="regional").model
    plain = plain[plain.model.isin(in_regions)]
    shorter = by(
        plain, ["model"], lambda part: compiling(part, "default") / compiling(part, "regional")
    )
    slower = by(
        plain,
        ["model"],
        lambda part: geomean(ratio(part, "latency_ms", mode=["regional", "default"])),
    )
    holds = {f"{label}: compiles in an eighth": gain.above(8) for label, gain in shorter.items()}
    for label, figure in slower.items():
        holds[f"{label}: at most 5 % slower"] = figure.below(1.05)
    also = {f"{label}: latency against the whole model": value for label, value in slower.items()}
    return Answer(holds, geomean(shorter.values()), also=shorter | also)


@Claim(
    "P26",
    "A model compiled ahead of time starts without a delay for compiling.",
    unit="×",
    published=(
        "Ahead-of-time compilation eliminates cold-start compilation latency in production (PyTorch"
        " documentation, torch.compile().aot_compile(); here AOTInductor's packages, with"
        " TORCHINDUCTOR_VEC_ISA_OK=0)."
    ),
)
def p26(packages):
    def load_seconds(part):
        return geomean(where(part, cache="package").cold_load_s)

    later = by(
        packages,
        ["model"],
        lambda part: seconds(part, cache="package") / seconds(part, mode="eager"),
    )
    holds = {
        f"{label}: at most a tenth later": figure.below(1.1) for label, figure in later.items()
    }
    also = dict(later)
    for label, figure in by(packages, ["model"], load_seconds).items():
        also[f"{label}: loading the package (s)"] = figure
    return Answer(holds, geomean(later.values()), also)
