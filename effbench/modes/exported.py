"""The mode aot-inductor: torch.export, then AOTInductor, which makes a package that is called
without Dynamo."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._inductor.runtime.cache_dir_utils import cache_dir

from effbench.measure.gradients import outside_inference_mode
from effbench.modes.base import Example, Mode, Prepared, needs_compiler
from effbench.modes.inductor import autotunes, checked_options

PACKAGE = "aot-inductor"
#: Fact of a trial that could not use the package of an earlier one.
WEIGHTS_DIFFER = (
    "the package of an earlier trial has other ones, so this trial compiled anew; seed what draws"
    " them"
)
LIBSTDCXX = "libstdc++.so.6"
#: Inductor's option for additional libraries of the package's code.
LIBRARIES = "aot_inductor.custom_op_libs"


@dataclass
class AotInductor(Mode):
    """A package made by AOTInductor. `strict`: strict mode of torch.export; `options`: Inductor's
    options by name.

    The cell's trials in a sweep share the package: the first trial exports, compiles and loads it
    ("cold"), later trials only load it ("warm"). The package contains the weights, so that a trial
    with other weights makes another one, which replaces it.
    """

    strict: bool = False
    options: dict[str, Any] | None = None

    compiles = True
    compiler_modules = ("torch.export", "torch._inductor.compile_fx")
    uses_dynamo = False
    static_shape = True
    writes_state = False  # the package has copies of the buffers
    phases = ("inference",)
    stores_weights = True
    splits = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.options = checked_options(self.options)
        self.autotunes = autotunes(self.options)

    def missing(self, device: torch.device) -> str | None:
        if device.type == "cuda" and cuda_home() is None:
            return "AOTInductor needs CUDA's headers: install the CUDA toolkit or set CUDA_HOME"
        # the wrapper is C++ on all devices
        return needs_compiler(torch.device("cpu")) or needs_compiler(device)

    def prepare(self, module: nn.Module, example: Example) -> Prepared:
        """Load the package of these weights from the shared folder, or make it there; without a
        shared folder from Inductor's cache."""
        folder = Path(example.cache_dir or cache_dir())
        package = folder / f"{PACKAGE}-{example.weights[:16]}.pt2"
        if package.is_file():
            return self.load(package, "warm")
        folder.mkdir(parents=True, exist_ok=True)
        others = list(folder.glob(f"{PACKAGE}-*.pt2"))
        self.make(module, example, package)
        prepared = self.load(package, "cold")
        for other in others:
            other.unlink(missing_ok=True)
            prepared.facts["weights_differ"] = WEIGHTS_DIFFER
        return prepared

    def make(self, module: nn.Module, example: Example, package: Path) -> None:
        """Export and compile the module, and write the package atomically."""
        unfinished = package.with_name(f"{os.getpid()}.{package.name}")
        # a graph exported in inference mode contains tensors that Inductor's passes must not write
        # to
        with outside_inference_mode():
            program = torch.export.export(
                module,
                example.args,
                example.kwargs,
                strict=self.strict,
            )
            torch._inductor.aoti_compile_and_package(
                program,
                package_path=str(unfinished),
                inductor_configs=with_standard_library(self.options or {}),
            )
        unfinished.replace(package)

    def load(self, package: Path, cache: str) -> Prepared:
        step = torch._inductor.aoti_load_package(str(package))
        return Prepared(step, compile_cache=cache, facts={"package_bytes": package.stat().st_size})


def with_standard_library(options: dict[str, Any]) -> dict[str, Any]:
    """Return Inductor's options with the shared standard library, unless the compiler does not find
    it. Otherwise the compiler would link libstdc++.a on some machines."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    command = [get_cpp_compiler(), f"-print-file-name={LIBSTDCXX}"]
    answer = subprocess.run(command, capture_output=True, text=True)
    # the compiler prints the bare name if it does not find the file
    if not Path(answer.stdout.strip()).is_absolute():
        return dict(options)
    libraries = options.get(LIBRARIES) or []
    return {**options, LIBRARIES: [*libraries, f":{LIBSTDCXX}"]}


def cuda_home() -> str | None:
    """Return the folder of CUDA's headers, from the toolkit or from the wheels that torch depends
    on, or None. torch does not search the wheels, so set CUDA_HOME to them in this process."""
    from torch.utils import cpp_extension

    if cpp_extension.CUDA_HOME is not None:
        return str(cpp_extension.CUDA_HOME)
    for header in Path(torch.__file__).parent.parent.glob("nvidia/*/include/cuda.h"):
        if header.with_name("cuda_runtime_api.h").is_file():
            home = str(header.parents[1])
            os.environ["CUDA_HOME"] = cpp_extension.CUDA_HOME = home
            return home
    return None
