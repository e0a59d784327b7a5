"""The task `probe`: describe the environment of this machine, and check which targets can be
imported."""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import platform
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from effbench.cell import Environment, mode_settings
from effbench.errors import ConfigError, suggest
from effbench.measure.gpu import Nvml
from effbench.message import PROBE_PHASE, ProbeRequest
from effbench.models import libraries
from effbench.models.build import resolve_model, resolve_target
from effbench.models.signature import class_mismatch
from effbench.modes.base import Mode

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
)
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_HOME")
NOT_FLAGS = (*CACHES, "TORCH_WARM_POOL", "PYTORCH_NVML_BASED_CUDA_CHECK")


def run(payload: dict[str, Any], say_phase: Callable[[str], None]) -> dict[str, Any]:
    """Return errors, settings, notes, environment, details and gpus, by these names. `settings` has
    for each mode the names of its constructor's arguments, None if it accepts any name."""
    request = ProbeRequest(**payload)
    say_phase(PROBE_PHASE)
    gpus = [] if request.device == "cpu" else visible_gpus()
    machine = {"gpus": gpus, "environment": asdict(environment(gpus)), "details": details()}
    errors: list[str] = []
    settings: list[list[str] | None] = []

    def resolved(target: str, resolve: Callable[[str], Any] = resolve_target) -> Any:
        say_phase(f"import {target}")
        try:
            return resolve(target)
        except ConfigError as error:
            errors.append(str(error))

    with warnings.catch_warnings(record=True) as caught:
        for target, names in request.modules.items():
            model = resolved(target, resolve_model)
            if model is None:
                continue
            errors += unknown(target, names, names_of(model))
            given = [one["passed"] for one in request.inputs if one["target"] == target]
            reasons = filter(None, (class_mismatch(model, passed) for passed in given))
            errors += [f"{target}: {reason}" for reason in reasons]
        for network in request.networks:
            resolved(network["library"], lambda _, network=network: libraries.check(**network))
    for target in request.others:
        resolved(target)
    for mode in request.modes:
        constructor = resolved(mode["_target_"])
        settings.append(None if errors else names_of(constructor))
        if not errors and (reason := refused(mode, constructor, settings[-1])):
            errors.append(reason)
    notes = [str(it.message) for it in caught if issubclass(it.category, libraries.LibraryWarning)]
    return {"errors": errors, "settings": settings, "notes": notes, **machine}


def unknown(target: str, names: Iterable[str], known: list[str] | None) -> Iterator[str]:
    """Yield what is wrong with the names of a model's arguments."""
    for name in names if known is not None else ():
        if name not in known:
            has = f"{target} has {', '.join(known) or 'none'}"
            yield f"unknown setting 'model.module.{name}'{suggest(name, known)}; {has}"


def names_of(constructor: Callable[..., Any]) -> list[str] | None:
    """Return the names of a constructor's arguments, or None if it accepts any name or does not
    tell."""
    try:
        parameters = inspect.signature(constructor).parameters
    except ValueError:  # of a compiled extension
        return None
    return None if any(p.kind is p.VAR_KEYWORD for p in parameters.values()) else list(parameters)


def refused(
    mode: dict[str, Any], constructor: Callable[..., Any], names: list[str] | None
) -> str | None:
    """Return what is wrong with a mode or its settings' values, or None. Unknown settings are
    reported elsewhere."""
    given = mode_settings(mode)
    if inspect.isabstract(constructor):
        return (
            f"mode {mode['name']}: {constructor.__name__} needs a method prepare(self, module,"
            " args, kwargs)"
        )
    if names is None or set(given) <= set(names):
        try:
            made = constructor(**given)
        except ConfigError as error:
            return f"mode {mode['name']}: {error}"
        except Exception:  # the cell reports any other exception of a user's constructor
            return None
        if not isinstance(made, Mode):
            return (
                f"mode {mode['name']}: derive {type(made).__name__} from effbench.modes.base.Mode"
            )
    return None


def visible_gpus() -> list[dict[str, Any]]:
    """Return the GPUs that torch may use here, with the value of CUDA_VISIBLE_DEVICES that selects
    each."""
    if not torch.cuda.is_available():
        return []
    named = [
        item.strip()
        for item in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        if item.strip()
    ]
    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [
        {
            "index": index,
            "uuid": f"GPU-{gpu.uuid}",
            "visible": named[index] if index < len(named) else f"GPU-{gpu.uuid}",
            "name": gpu.name,
            "memory_bytes": gpu.total_memory,
            "near_cores": near_cores(gpu),
        }
        for index, gpu in enumerate(gpus)
    ]


def near_cores(properties: Any) -> str | None:
    """Return the CPU cores near the GPU in the kernel's notation, such as `0-15`; None if
    unknown."""
    try:
        domain = f"{properties.pci_domain_id:04x}"
        bus = f"{domain}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
        return Path(f"/sys/bus/pci/devices/{bus}/local_cpulist").read_text().strip() or None
    except (AttributeError, OSError):
        return None


def environment(gpus: list[dict[str, Any]]) -> Environment:
    """Return the fingerprint. Several GPUs of the same kind are one environment; each trial records
    its GPU."""
    names = sorted({gpu["name"] for gpu in gpus})
    return Environment(
        gpu_name=" + ".join(names) or None,
        gpu_memory_bytes=max((gpu["memory_bytes"] for gpu in gpus), default=None),
        driver_version=Nvml().ask("nvmlSystemGetDriverVersion") if gpus else None,
        cuda_version=torch.version.cuda,
        torch_version=torch.__version__,
        triton_version=version("triton"),
        python=platform.python_version(),
        cpu_name=cpu_name(),
        platform=f"{platform.system()} {platform.machine()}",
        flags={name: value for name, value in sorted(os.environ.items()) if is_flag(name)},
    )


def is_flag(name: str) -> bool:
    return name.startswith(FLAGS) and name not in NOT_FLAGS


def details() -> dict[str, Any]:
    """Return facts that describe the machine but do not define the environment."""
    return {
        "packages": {name: installed for name in PACKAGES if (installed := version(name))},
        "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
        "cpu_count": os.cpu_count(),
        "cpu_usable": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "compilers": {name: bool(shutil.which(name)) for name in ("gcc", "g++", "clang", "nvcc")},
        "torch_threads": torch.get_num_threads(),
    }


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
