"""All checks of the doctor in the order in which it shows them, and the checks of the software."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from effbench.doctor import calibration, gpu, host
from effbench.doctor.finding import Finding, Machine, good, note, problem, warning
from effbench.errors import WorkerError
from effbench.message import ProbeRequest
from effbench.sweeping.client import ForkServer

PROBE_TIMEOUT_S = 120.0
UNCOMPILED = "torch.compile modes are unsupported"
#: Package of the extra `models` -> a target of effbench that imports it, and the models that need it.
EXTRA = {
    "torchvision": ("effbench.models.vision.torchvision_model", "resnet18, resnet50, mobilenetv3 and vit-b"),
    "transformers": ("effbench.models.bert.Bert", "bert-base"),
}
#: Variables that spoil measurements -> their effect. A value that is off (empty, 0, false) spoils nothing.
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
OFF = ("", "0", "false", "no", "off")
#: Variables that a trial sets itself.
REPLACED = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def examine(server: ForkServer, machine: Machine) -> tuple[list[Finding], Machine]:
    """Run every check; also return the machine with the probe's answer, None if no worker runs.

    `server`: a fork server that may still be starting.
    """
    on_host = run(HOST_CHECKS, machine)  # before the probe is a load
    request = ProbeRequest(modules=[target for target, _ in EXTRA.values()])
    try:
        answer = server.call("probe", request.to_json(), PROBE_TIMEOUT_S)
    except WorkerError as error:
        why = problem(str(error), "nothing can be measured", "python -c 'import torch' shows why")
        return [replace(why, area="software"), *on_host, *run(STORAGE_CHECKS, machine)], machine
    machine = replace(machine, answer=answer)
    findings = [*run(WORKER_CHECKS, machine), *on_host, *run(STORAGE_CHECKS, machine), *run(LAST_CHECKS, machine)]
    return findings, machine


def run(checks: tuple[tuple[str, Any], ...], machine: Machine) -> list[Finding]:
    return [replace(finding, area=area) for area, check in checks for finding in check(machine)]


def packages(machine: Machine) -> Iterator[Finding]:
    environment, installed = machine.answer["environment"], machine.answer["details"]["packages"]
    cuda = f"CUDA {environment['cuda_version']}" if environment["cuda_version"] else "no CUDA"
    triton = environment["triton_version"] or "none"
    yield good(f"torch {environment['torch_version']}, {cuda}, Triton {triton}, Python {environment['python']}")
    for package, (target, models) in EXTRA.items():
        if package not in installed:
            yield note(f"{package} is not installed", f"no {models}", 'pip install "effbench[models]"')
        elif error := next((error for error in machine.answer["errors"] if target in error), None):
            unfit = "torchvision" if "torchvision::" in error else package  # which transformers imports too
            yield warning(
                f"{package} {installed[package]} does not load with torch {environment['torch_version']}: "
                + error.partition(": ")[2],
                f"{models} cannot be built",
                f"install the release of {unfit} that fits this torch, from the same package index as torch",
            )


def compilers(machine: Machine) -> Iterator[Finding]:
    found, environ = machine.answer["details"]["compilers"], machine.environ
    on_gpu = bool(machine.answer["gpus"])
    missing = []
    if not found["g++"] and not environ.get("CXX"):
        missing.append(warning("no C++ compiler (g++)", f"{UNCOMPILED} on the CPU", "apt-get install g++"))
    if on_gpu and not (found["gcc"] or found["clang"] or environ.get("CC")):
        missing.append(warning("no C compiler", f"{UNCOMPILED} on CUDA", "apt-get install gcc"))
    if on_gpu and not machine.answer["environment"]["triton_version"]:
        missing.append(warning("no Triton", f"{UNCOMPILED} on CUDA", "pip install triton"))
    names = [name for name, exists in found.items() if exists]
    names += [f"{name}={value}" for name in ("CC", "CXX") if (value := environ.get(name))]
    yield from missing or [good(f"compilers: {', '.join(names)}")]


def variables(machine: Machine) -> Iterator[Finding]:
    """Environment variables that change how torch runs."""
    environ = machine.environ
    spoiling = {name: environ[name] for name in SPOILS if name in environ}
    for name, value in (machine.answer["environment"]["flags"] | spoiling).items():
        if name in SPOILS and value.lower() not in OFF:
            yield warning(f"{name}={value} is set", SPOILS[name], f"unset {name}")
        else:
            yield note(
                f"{name}={value} is set", "it belongs to the environment: results compare only with the same value"
            )
    for name in REPLACED:
        if value := environ.get(name):
            yield note(f"{name}={value} is set", "no effect: each cell has its own compile cache", f"unset {name}")
    if value := environ.get("LD_PRELOAD"):
        yield note(
            f"LD_PRELOAD={value} is set", "another allocator or OpenMP changes launch-bound cells without a record"
        )


#: (area, check); a check takes the Machine and yields findings.
WORKER_CHECKS = (
    ("software", packages),
    ("software", compilers),
    ("software", variables),
    ("GPU", gpu.visible),
    ("GPU", gpu.driver),
    ("GPU", gpu.exclusive),
    ("GPU", gpu.processes),
    ("GPU", gpu.clocks),
    ("GPU", gpu.power),
    ("GPU", gpu.memory_errors),
)
HOST_CHECKS = (
    ("CPU", host.load),
    ("CPU", host.cores),
    ("CPU", host.governor),
    ("CPU", host.virtual_machine),
    ("memory", host.memory),
)
STORAGE_CHECKS = (("storage", host.disk_space), ("storage", host.database), ("storage", host.compile_caches))
LAST_CHECKS = (("calibration", calibration.stored),)
