"""Driver, CUDA and the GPUs that torch sees."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from effbench.doctor.finding import Finding, counted, good, note, problem, warning
from effbench.doctor.nvml import Nvml
from effbench.metrics import format_bytes

Version = tuple[int, int]


def findings(nvml: Nvml, answer: dict[str, Any], environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """`answer`: what the probe said."""
    gpus, environment = answer["gpus"], answer["environment"]
    for gpu in gpus:
        yield good(f"GPU {gpu['index']}: {gpu['name']}, {format_bytes(gpu['memory_bytes'])}")
    installed = nvml.ask("nvmlDeviceGetCount") or 0
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if not gpus:
        yield no_gpu(installed, environment["cuda_version"], visible)
    elif visible is not None and installed > len(gpus):
        yield note(
            f"{len(gpus)} of {installed} GPUs are used (CUDA_VISIBLE_DEVICES={visible})",
            "work on the others shares their host's cores and power",
        )
    if gpus and nvml.why:
        yield warning(
            f"NVML does not answer: {nvml.why}",
            "clocks, slowdowns, energy and other processes on the GPU stay unknown",
            "pip install nvidia-ml-py, and a driver whose libnvidia-ml.so.1 can be seen from here",
        )
    yield from versions(nvml, environment["cuda_version"], bool(gpus))


def no_gpu(installed: int, cuda: str | None, visible: str | None) -> Finding:
    effect = "cells run on the CPU; CUDA graphs and reduce-overhead are unsupported; no period, memory or energy"
    if not installed:
        built = "" if cuda else " (it is built without CUDA)"
        return note(
            f"torch sees no CUDA device{built}",
            effect,
            "a machine with an NVIDIA GPU, its driver, and a CUDA build of torch",
        )
    what = f"torch sees no CUDA device, but the driver has {counted(installed, 'GPU')}"
    if visible is not None and cuda:  # hidden on purpose, as it seems
        return note(f"{what} (CUDA_VISIBLE_DEVICES={visible!r})", effect, "unset CUDA_VISIBLE_DEVICES")
    mend = "nvidia-smi, and python -c 'import torch; torch.cuda.init()', say why"
    return problem(what, effect, mend if cuda else "this torch is built without CUDA: install a CUDA build")


def versions(nvml: Nvml, torch_cuda: str | None, works: bool) -> Iterator[Finding]:
    """The driver's CUDA against the CUDA that torch was built for. `works`: torch has a GPU all the same."""
    driver = nvml.ask("nvmlSystemGetDriverVersion")
    if driver is None:
        return
    number = nvml.ask("nvmlSystemGetCudaDriverVersion_v2") or nvml.ask("nvmlSystemGetCudaDriverVersion")
    most = None if not number else (number // 1000, number % 1000 // 10)
    wanted = version(torch_cuda)
    what = f"driver {driver}" + ("" if most is None else f", for CUDA up to {most[0]}.{most[1]}")
    if most is None or wanted is None or most >= wanted:
        yield good(what + ("" if wanted is None else f"; torch is built for CUDA {torch_cuda}"))
    elif most[0] == wanted[0] or works:
        yield warning(
            f"{what}: older than torch's CUDA {torch_cuda}",
            "it runs by CUDA's compatibility; kernels compiled at run time may be refused",
            f"a driver for CUDA {torch_cuda} or newer, or a torch for CUDA {most[0]}.{most[1]}",
        )
    else:
        yield problem(
            f"{what}: too old for torch's CUDA {torch_cuda}",
            "nothing can be measured on the GPU",
            f"a driver for CUDA {torch_cuda} or newer, or a torch for CUDA {most[0]}.{most[1]}",
        )


def version(words: str | None) -> Version | None:
    """`12.8` is (12, 8)."""
    major, _, minor = (words or "").partition(".")
    return (int(major), int(minor.split(".")[0])) if major.isdigit() and minor[:1].isdigit() else None
