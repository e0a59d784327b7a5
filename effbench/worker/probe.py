"""The task `probe`: describe the environment of this machine, and check which targets can be
imported."""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from effbench.core.cell import Environment, mode_settings
from effbench.core.errors import ConfigError, suggest
from effbench.core.message import (
    PROBE_PHASE,
    Json,
    MessagePipe,
    ProbeAnswer,
    ProbedGpu,
    ProbeRequest,
)
from effbench.measure.gpu import Nvml
from effbench.models import libraries
from effbench.models.build import resolve_target
from effbench.models.signature import mismatch
from effbench.modes.base import Mode

T = TypeVar("T")
PACKAGES = (
    "numpy",
    "torchvision",
    "transformers",
    "timm",
    "hydra-core",
    "sqlalchemy",
    "nvidia-ml-py",
    "effbench",
)
#: Prefixes of variables that change how torch runs; they belong to the environment.
FLAGS = (
    "TORCH",
    "PYTORCH_",
    "TRITON_",
    "CUDA_LAUNCH",
    "CUDA_DEVICE_MAX",
    "CUBLAS_",
    "OMP_",
    "MKL_",
    "NVIDIA_TF32",
    "NCCL_",
)
#: Prefixes of caches, of what effbench sets, and of what changes no figure: NCCL's logs, and the
#: version that containers state.
NOT_FLAGS = (
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "TORCH_HOME",
    "TORCH_WARM_POOL",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
    "NCCL_DEBUG",
    "NCCL_TOPO_DUMP",
    "NCCL_GRAPH_DUMP",
    "NCCL_VERSION",
)


def run_task(payload: Json, pipe: MessagePipe) -> Json:
    """Run the probe of a ProbeRequest as JSON, and return its ProbeAnswer as JSON."""
    request = ProbeRequest(**payload)
    errors: list[str] = []

    def attempt(target: str, check: Callable[[], T]) -> T | None:
        """Return what a check of this target returns, or None after an error."""
        pipe.send(phase=f"import {target}")
        try:
            return check()
        except ConfigError as error:
            errors.append(str(error))
            return None

    for target, names in request.modules.items():
        attempt(target, partial(check_model, target, names, request.inputs.get(target, ())))
    for network in request.networks:
        attempt(network["library"], partial(libraries.check, **network))
    for loss in request.losses:
        attempt(loss, partial(resolve_target, loss, setting="training.loss"))
    settings = {
        text: attempt(mode["_target_"], partial(check_mode, mode))
        for text, mode in request.modes.items()
    }
    starts_cuda = torch.cuda.is_initialized()
    pipe.send(phase=PROBE_PHASE)
    gpus: list[ProbedGpu] = []
    if request.device != "cpu":
        gpus = visible_gpus()
    return ProbeAnswer(
        environment=asdict(environment(gpus)),
        details=details(),
        gpus=gpus,
        errors=errors,
        settings=settings,
        starts_cuda=starts_cuda,
    ).to_json()


def check_model(target: str, names: Iterable[str], inputs: Iterable[Mapping[str, bool]]) -> None:
    """Check a model, the names of its arguments, and the ways in which inputs are passed. Raises
    ConfigError."""
    model = resolve_target(target)
    known = names_of(model)
    for name in names:
        if known is not None and name not in known:
            raise ConfigError(
                f"unknown setting 'model.module.{name}'{suggest(name, known)}; {target} has"
                f" {', '.join(known) or 'none'}"
            )
    for passed in inputs:
        reason = mismatch(model, passed)
        if reason is not None:
            raise ConfigError(f"{target}: {reason}")


def check_mode(mode: dict[str, Any]) -> list[str] | None:
    """Return the names of a mode's settings, or None if it accepts any name. Raises ConfigError if
    it is no mode, or a value is wrong. Unknown settings are reported elsewhere."""
    constructor = resolve_target(mode["_target_"])
    try:
        made = constructor(**mode_settings(mode))
    except ConfigError as error:
        raise ConfigError(f"mode {mode['name']}: {error}") from error
    except Exception:  # the cell reports any other exception of a user's constructor
        return names_of(constructor)
    if not isinstance(made, Mode):
        raise ConfigError(
            f"mode {mode['name']}: derive {type(made).__name__} from effbench.modes.base.Mode"
        )
    return names_of(constructor)


def names_of(constructor: Callable[..., Any]) -> list[str] | None:
    """Return the names of a constructor's arguments, or None if it accepts any name or does not
    tell."""
    try:
        parameters = inspect.signature(constructor).parameters
    except ValueError:  # of a compiled extension
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    return list(parameters)


def visible_gpus() -> list[ProbedGpu]:
    """Return the GPUs that torch may use here."""
    if not torch.cuda.is_available():
        return []
    named = re.findall(r"[^,\s]+", os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    gpus = []
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        uuid = f"GPU-{gpu.uuid}"
        visible = named[index] if index < len(named) else uuid
        gpus.append(ProbedGpu(index, uuid, visible, gpu.name, gpu.total_memory, near_cores(gpu)))
    return gpus


def near_cores(properties: Any) -> str | None:
    """Return the CPU cores near the GPU in the kernel's notation, such as `0-15`; None if
    unknown."""
    try:
        bus = (
            f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}"
            f":{properties.pci_device_id:02x}.0"
        )
        return Path(f"/sys/bus/pci/devices/{bus}/local_cpulist").read_text().strip() or None
    except (AttributeError, OSError):
        return None


def environment(gpus: list[ProbedGpu]) -> Environment:
    """Return the fingerprint. Several GPUs of the same kind are one environment; each trial records
    its GPU."""
    names = sorted({gpu.name for gpu in gpus})
    flags = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(FLAGS) and not name.startswith(NOT_FLAGS)
    }
    return Environment(
        gpu_name=" + ".join(names) or None,
        gpu_memory_bytes=max((gpu.memory_bytes for gpu in gpus), default=None),
        driver_version=Nvml().ask("nvmlSystemGetDriverVersion") if gpus else None,
        cuda_version=torch.version.cuda,
        torch_version=torch.__version__,
        triton_version=version("triton"),
        python=platform.python_version(),
        cpu_name=cpu_name(),
        platform=f"{platform.system()} {platform.machine()}",
        flags=flags,
    )


def details() -> dict[str, Any]:
    """Return facts that describe the machine but do not define the environment."""
    versions = {name: version(name) for name in PACKAGES}
    return {
        "packages": {name: value for name, value in versions.items() if value},
        "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
        "nccl": nccl_version(),
        "cpu_count": os.cpu_count(),
        "cpu_usable": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "compilers": {name: bool(shutil.which(name)) for name in ("gcc", "g++", "clang", "nvcc")},
    }


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def nccl_version() -> str | None:
    """Return the version of NCCL that torch uses, such as `2.27.5`; None without NCCL."""
    if not dist.is_nccl_available():
        return None
    return ".".join(map(str, torch.cuda.nccl.version()))


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
