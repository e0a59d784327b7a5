"""The mode aot-inductor: torch.export, then AOTInductor, which makes a package that is called
without Dynamo."""

from __future__ import annotations

import importlib
import os
import subprocess
import tempfile
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from effbench.measure.gradients import outside_inference_mode
from effbench.models.inputs import Args, Kwargs
from effbench.modes.base import Mode, Prepared, needs_compiler
from effbench.modes.inductor import autotunes, checked_options

PACKAGE = "aot-inductor"
#: Modules that torch imports with its first package; compile seconds exclude imports. They are
#: private and may vanish.
IMPORTED_LATE = ("torch._inductor.package", "torch._dynamo.repro.aoti")
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
    with other weights makes another one, which replaces it. Without a shared folder the package is
    temporary and always cold.
    """

    strict: bool = False
    options: dict[str, Any] | None = None

    compiles = True
    uses_dynamo = False
    static_shape = True
    writes_state = False  # the package has copies of the buffers
    phases = ("inference",)
    wraps_in_cpp = True
    stores_weights = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.options = checked_options(self.options)
        self.autotunes = autotunes(self.options)
        for name in IMPORTED_LATE:
            with suppress(ImportError):
                importlib.import_module(name)

    def missing(self, device: torch.device) -> str | None:
        reason = needs_compiler(torch.device("cpu"))  # the wrapper is C++ on all devices
        if reason is not None or device.type != "cuda":
            return reason
        if cuda_home() is None:
            return "AOTInductor needs CUDA's headers: install the CUDA toolkit or set CUDA_HOME"
        return needs_compiler(device)

    def prepare(self, module: nn.Module, args: Args, kwargs: Kwargs) -> Prepared:
        """Load the package of these weights from the shared folder, or make it there; without a
        shared folder in a temporary one."""
        place: AbstractContextManager[str]
        place = nullcontext(self.cache_dir) if self.cache_dir else tempfile.TemporaryDirectory()
        with place as path:
            folder = Path(path)
            package = folder / f"{PACKAGE}-{self.weights[:16]}.pt2"
            if package.is_file():
                return self.load(package, "warm")
            folder.mkdir(parents=True, exist_ok=True)
            others = list(folder.glob(f"{PACKAGE}-*.pt2"))
            self.make(
                module,
                args,
                kwargs,
                package,
            )
            prepared = self.load(package, "cold")
            for other in others:
                other.unlink(missing_ok=True)
            if others:
                prepared.facts["weights_differ"] = WEIGHTS_DIFFER
            return prepared

    def make(
        self,
        module: nn.Module,
        args: Args,
        kwargs: Kwargs,
        package: Path,
    ) -> None:
        """Export and compile the module, and write the package atomically."""
        unfinished = package.with_name(f"{os.getpid()}.{package.name}")
        # a graph exported in inference mode contains tensors that Inductor's passes must not write
        # to
        with outside_inference_mode():
            torch._inductor.aoti_compile_and_package(
                torch.export.export(
                    module,
                    args,
                    kwargs,
                    strict=self.strict,
                ),
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
    for folder in Path(torch.__file__).parent.parent.glob("nvidia/*"):
        headers = (folder / "include" / name for name in ("cuda.h", "cuda_runtime_api.h"))
        if all(header.is_file() for header in headers):
            os.environ["CUDA_HOME"] = cpp_extension.CUDA_HOME = str(folder)
            return str(folder)
    return None
