"""What the installed torch.compile takes, for `effbench doctor --compile-options`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

WIDTH = 100


def lines(answer: dict[str, Any]) -> Iterator[str]:
    """`answer`: what the worker said; see effbench/worker/compile_options.py."""
    arguments = answer["arguments"]
    given = ", ".join(f"{name}={default}" for name, default in arguments.items())
    yield f"torch.compile of torch {answer['torch_version']} takes {given}"
    if "disable" in arguments:
        yield "  disable=True makes it return the function as it is (torch.compiler.disable keeps one part eager)"
    yield ""
    yield "modes and the options that each sets, torch._inductor.list_mode_options():"
    for mode, options in answer["modes"].items():
        yield f"  {mode}: {', '.join(f'{name}={value}' for name, value in options.items()) or 'none'}"
    yield ""
    public = {name: value for name, value in answer["options"].items() if not name.startswith("_")}
    yield f"{len(public)} options with their defaults, torch._inductor.list_options(); set by mode.options.NAME=:"
    for name, value in public.items():
        yield f"  {name}={value if len(value) <= WIDTH else value[: WIDTH - 1] + '…'}"
