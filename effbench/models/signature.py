"""Compare the inputs of a model with the signature of its forward, before anything runs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import nn

from effbench.models.inputs import Step

#: Packages whose decorators, such as `torch.no_grad()`, pass all arguments on.
TRANSPARENT = ("torch", "transformers")
SITE_PACKAGES = Path(torch.__file__).parents[1]


def signature_of(function: Step, has_self: bool) -> inspect.Signature | None:
    """Return the signature of a forward; None if it is unknown. `has_self`: its first argument is
    the module."""
    while hasattr(function, "__wrapped__") and is_transparent(function):
        function = function.__wrapped__
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return None
    parameters = list(signature.parameters.values())
    # a function with only *args does not name it
    if has_self and parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        del parameters[0]
    return signature.replace(parameters=parameters)


def is_transparent(function: Step) -> bool:
    """Return whether a decorator passes all arguments on, because its code is torch's or
    transformers'."""
    code: CodeType | None = getattr(function, "__code__", None)
    if code is None:
        return False
    path = Path(code.co_filename)
    return any(path.is_relative_to(SITE_PACKAGES / package) for package in TRANSPARENT)


def class_mismatch(kind: Any, inputs: Mapping[str, bool]) -> str | None:
    """Return why these inputs do not fit the class of a module, or None; also if only its instances
    could tell."""
    # a function that returns a module
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        return None
    forward = inspect.getattr_static(kind, "forward")
    if forward is nn.Module.forward or kind.__call__ is not nn.Module.__call__:
        return None
    if isinstance(forward, staticmethod):
        return mismatch(forward.__func__, False, inputs)
    return mismatch(forward, True, inputs)


def module_mismatch(module: nn.Module, inputs: Mapping[str, bool]) -> str | None:
    """Return why these inputs do not fit a module, or None; also if it has hooks that may change
    its inputs."""
    if module._forward_pre_hooks or type(module).__call__ is not nn.Module.__call__:
        return None
    if inspect.ismethod(module.forward):
        return mismatch(module.forward.__func__, True, inputs)
    return mismatch(module.forward, False, inputs)


def mismatch(forward: Step, has_self: bool, inputs: Mapping[str, bool]) -> str | None:
    """Return why these inputs do not fit a forward, or None; also if its arguments are unknown.
    `inputs`: whether each is passed by name, in order."""
    signature = signature_of(forward, has_self)
    if signature is None:
        return None
    # an argument is bound to the name of the input that it gets
    positional = [name for name, is_keyword in inputs.items() if not is_keyword]
    named = {name: name for name, is_keyword in inputs.items() if is_keyword}
    try:
        bound = signature.bind(*positional, **named)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "nothing"
        return (
            f"model.inputs does not fit forward: {error}; forward takes {takes}, and model.inputs"
            f" has {', '.join(inputs) or 'nothing'}"
        )
    return misplaced(bound)


def misplaced(bound: inspect.BoundArguments) -> str | None:
    """Return which input takes the place of another argument, or None. One that is passed by
    position may have any name but that of another argument."""
    for taken_as, name in bound.arguments.items():
        is_other = isinstance(name, str) and name != taken_as
        if is_other and name in bound.signature.parameters:
            return (
                f"model.inputs.{name} is passed by position, where forward expects {taken_as};"
                f" list inputs in the order of forward, or set model.inputs.{name}.keyword=true"
            )
    return None
