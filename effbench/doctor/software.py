"""Versions, compilers, and environment variables that change how torch runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from effbench.doctor.finding import Finding, good, note, warning

WITHIN = "it belongs to the environment: results compare within it only"
COMPILED = "torch.compile modes are unsupported"
#: Package of the extra `models` -> a target of effbench that imports it, and the models that need it.
EXTRA = {
    "torchvision": ("effbench.models.vision.torchvision_model", "resnet18, resnet50, mobilenetv3 and vit-b"),
    "transformers": ("effbench.models.bert.Bert", "bert-base"),
}
#: Variable -> its effect, where it spoils what is measured. A value that is off (empty, 0, false) spoils nothing.
SPOILS = {
    "CUDA_LAUNCH_BLOCKING": "every launch waits for its kernel: launch-bound cells and periods mean nothing",
    "TORCH_COMPILE_DISABLE": "torch.compile modes run as eager",
    "TORCHDYNAMO_DISABLE": "torch.compile modes run as eager",
    "TORCH_COMPILE_DEBUG": "compiling writes its traces, and takes longer",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "every compile is cold: compile_warm_s stays empty",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every allocation goes to the driver: slow, and CUDA graphs fail",
    "TORCH_LOGS": "logging takes time while compiling, and in the calls that it logs",
    "TRITON_INTERPRET": "Triton's kernels run on the CPU, interpreted",
    "NVIDIA_TF32_OVERRIDE": "it overrules numerics.tf32 in cuBLAS and cuDNN",
}
NO_EFFECT_IF_OFF = ("", "0", "false", "no", "off")
#: What a trial sets itself: the user's value changes nothing.
OURS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def findings(answer: dict[str, Any], environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """`answer`: what the probe said."""
    yield from versions(answer)
    yield from compilers(answer, environ)
    yield from variables(answer["environment"]["flags"], environ)


def versions(answer: dict[str, Any]) -> Iterator[Finding]:
    found, details = answer["environment"], answer["details"]
    packages = details["packages"]
    cuda = f"CUDA {found['cuda_version']}" if found["cuda_version"] else "no CUDA"
    yield good(
        f"torch {found['torch_version']}, {cuda}, cuDNN {cudnn(details.get('cudnn'))}, "
        f"Triton {found['triton_version'] or 'none'}, Python {found['python']}"
    )
    yield note("packages: " + ", ".join(f"{name} {version}" for name, version in sorted(packages.items())))
    for package, (target, models) in EXTRA.items():
        if package not in packages:
            yield note(f"{package} is not installed", f"no {models}", 'pip install "effbench[models]"')
        elif wrong := next((error for error in answer["errors"] if target in error), None):
            unfit = "torchvision" if "torchvision::" in wrong else package  # which transformers imports too
            yield warning(
                f"{package} {packages[package]} does not load with torch {found['torch_version']}: "
                + wrong.partition(": ")[2],
                f"{models} cannot be built",
                f"install the release of {unfit} that fits this torch, from the same package index as torch",
            )


def cudnn(number: int | None) -> str:
    """`91002` is 9.10.2; before version 9, `8902` is 8.9.2."""
    if not number:
        return "none"
    major, rest = divmod(number, 10_000 if number >= 90_000 else 1_000)
    return f"{major}.{rest // 100}.{rest % 100}"


def compilers(answer: dict[str, Any], environ: Mapping[str, str]) -> Iterator[Finding]:
    found, on_gpu = answer["details"]["compilers"], bool(answer["gpus"])
    have = [name for name, is_there in found.items() if is_there]
    for name in ("CC", "CXX"):
        if value := environ.get(name):
            have.append(f"{name}={value}")
    missing = False
    if not found["g++"] and not environ.get("CXX"):
        missing = True
        yield warning("no C++ compiler (g++)", f"{COMPILED} on the CPU", "apt-get install g++")
    if on_gpu and not (found["gcc"] or found["clang"] or environ.get("CC")):
        missing = True
        yield warning("no C compiler", f"{COMPILED} on CUDA", "apt-get install gcc")
    if on_gpu and not answer["environment"]["triton_version"]:
        yield warning("no Triton", f"{COMPILED} on CUDA", "pip install triton")
    if not missing:
        yield good(f"compilers: {', '.join(have)}")


def variables(flags: Mapping[str, str], environ: Mapping[str, str]) -> Iterator[Finding]:
    """`flags`: those that the environment's fingerprint holds."""
    for name, value in {**flags, **{name: environ[name] for name in SPOILS if name in environ}}.items():
        if name in SPOILS and value.lower() not in NO_EFFECT_IF_OFF:
            yield warning(f"{name}={value} is set", SPOILS[name], f"unset {name}")
        else:
            yield note(f"{name}={value} is set", WITHIN)
    for name in OURS:
        if value := environ.get(name):
            yield note(
                f"{name}={value} is set", "no effect on cells: each has a compile cache of its own", f"unset {name}"
            )
    if value := environ.get("LD_PRELOAD"):
        yield note(
            f"LD_PRELOAD={value} is set", "another allocator or OpenMP changes launch-bound cells, and no record tells"
        )
