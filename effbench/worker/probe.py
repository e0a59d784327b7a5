"""The task `probe`: describe the environment of this machine, and check which targets can be
imported."""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import platform
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from effbench.core.cell import Environment, mode_settings
from effbench.core.errors import ConfigError, suggest
from effbench.core.message import PROBE_PHASE, ProbedGpu, ProbeRequest
from effbench.measure.gpu import Nvml
from effbench.models import libraries
from effbench.models.build import resolve_target
from effbench.models.signature import mismatch
from effbench.modes.base import Mode
from effbench.worker.tasks import Json, SayPhase

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


def run_task(payload: Json, say_phase: SayPhase) -> Json:
    """Return errors, settings, environment, details and gpus, by these names. `settings` has for
    each mode the names of its constructor's arguments, None if it accepts any name."""
    request = ProbeRequest(**payload)
    say_phase(PROBE_PHASE)
    gpus: list[ProbedGpu] = []
    if request.device != "cpu":
        gpus = visible_gpus()
    machine = {
        "gpus": [asdict(gpu) for gpu in gpus],
        "environment": asdict(environment(gpus)),
        "details": details(),
    }
    targets = Targets(say_phase)
    for target, names in request.modules.items():
        inputs = [given["passed"] for given in request.inputs if given["target"] == target]
        targets.check_model(target, names, inputs)
    for network in request.networks:
        targets.check_network(network)
    for target in request.others:
        targets.resolve(target)
    for loss in request.losses:
        targets.resolve(loss, partial(resolve_target, setting="training.loss"))
    settings = [targets.check_mode(mode) for mode in request.modes]
    return {"errors": targets.errors, "settings": settings, **machine}


@dataclass
class Targets:
    """Imports the targets of a probe, and collects what is wrong with them."""

    say_phase: SayPhase
    errors: list[str] = field(default_factory=list)

    def resolve(self, target: str, resolve: Callable[[str], Any] = resolve_target) -> Any:
        """Return what the target names, or None after an error."""
        self.say_phase(f"import {target}")
        try:
            return resolve(target)
        except ConfigError as error:
            self.errors.append(str(error))
            return None

    def check_model(
        self, target: str, names: Iterable[str], inputs: Iterable[Mapping[str, bool]]
    ) -> None:
        """Check a model, the names of its arguments, and the ways in which inputs are passed."""
        model = self.resolve(target)
        if model is None:
            return
        known = names_of(model)
        if known is not None:
            self.errors += [unknown(target, name, known) for name in names if name not in known]
        for passed in inputs:
            reason = mismatch(model, passed)
            if reason is not None:
                self.errors.append(f"{target}: {reason}")

    def check_network(self, network: dict[str, Any]) -> None:
        """Check a network of a library. `network`: arguments of `libraries.check`."""
        self.resolve(network["library"], lambda _: libraries.check(**network))

    def check_mode(self, mode: dict[str, Any]) -> list[str] | None:
        """Return the names of a mode's settings, or None if it accepts any name, or after an
        error."""
        constructor = self.resolve(mode["_target_"])
        if self.errors:
            return None
        reason = invalid_mode(mode, constructor)
        if reason is not None:
            self.errors.append(reason)
        return names_of(constructor)


def unknown(target: str, name: str, known: Sequence[str]) -> str:
    """Return that a model has no argument of this name."""
    return (
        f"unknown setting 'model.module.{name}'{suggest(name, known)}; {target} has"
        f" {', '.join(known) or 'none'}"
    )


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


def invalid_mode(mode: dict[str, Any], constructor: Callable[..., Any]) -> str | None:
    """Return what is wrong with a mode or its settings' values, or None. Unknown settings are
    reported elsewhere."""
    name = mode["name"]
    try:
        made = constructor(**mode_settings(mode))
    except ConfigError as error:
        return f"mode {name}: {error}"
    except Exception:  # the cell reports any other exception of a user's constructor
        return None
    if isinstance(made, Mode):
        return None
    return f"mode {name}: derive {type(made).__name__} from effbench.modes.base.Mode"


def visible_gpus() -> list[ProbedGpu]:
    """Return the GPUs that torch may use here."""
    if not torch.cuda.is_available():
        return []
    listed = map(str.strip, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))
    named = [item for item in listed if item]
    gpus = []
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        uuid = f"GPU-{gpu.uuid}"
        visible = named[index] if index < len(named) else uuid
        near = near_cores(gpu)
        gpus.append(ProbedGpu(index, uuid, visible, gpu.name, gpu.total_memory, near))
    return gpus


def near_cores(properties: Any) -> str | None:
    """Return the CPU cores near the GPU in the kernel's notation, such as `0-15`; None if
    unknown."""
    try:
        domain = f"{properties.pci_domain_id:04x}"
        bus = f"{domain}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
        return Path(f"/sys/bus/pci/devices/{bus}/local_cpulist").read_text().strip() or None
    except (AttributeError, OSError):
        return None


def environment(gpus: list[ProbedGpu]) -> Environment:
    """Return the fingerprint. Several GPUs of the same kind are one environment; each trial records
    its GPU."""
    names = sorted({gpu.name for gpu in gpus})
    flags = {}
    for name, value in sorted(os.environ.items()):
        if name.startswith(FLAGS) and name not in NOT_FLAGS:
            flags[name] = value
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
