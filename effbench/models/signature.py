"""Compare the inputs of a model with the signature of its forward, before anything runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn


def mismatch(kind: Any, inputs: Mapping[str, bool]) -> str | None:
    """Return why these inputs do not fit the forward of a module's class, or None; also for a
    factory, and if a decorator or the class itself hides the arguments. `inputs`: whether each is
    passed by name, in order."""
    forward = own_forward(kind)
    if forward is None:
        return None
    signature = inspect.signature(forward, follow_wrapped=False)
    # an argument is bound to the name of the input that it gets
    positional = [name for name, is_keyword in inputs.items() if not is_keyword]
    named = {name: name for name, is_keyword in inputs.items() if is_keyword}
    try:
        bound = signature.bind(kind, *positional, **named)
    except TypeError as error:
        takes = ", ".join([*signature.parameters][1:]) or "nothing"
        return (
            f"model.inputs does not fit forward: {error}; forward takes {takes}, and model.inputs"
            f" has {', '.join(inputs)}"
        )
    # an input that is passed by position may have any name but that of another argument
    for taken_as, name in bound.arguments.items():
        is_other = isinstance(name, str) and name != taken_as
        if is_other and name in signature.parameters:
            return (
                f"model.inputs.{name} is passed by position, where forward expects {taken_as};"
                f" list inputs in the order of forward, or set model.inputs.{name}.keyword=true"
            )
    return None


def own_forward(kind: Any) -> Callable[..., Any] | None:
    """Return the forward of a module's class; None if something else is called instead."""
    if not inspect.isclass(kind) or kind.__call__ is not nn.Module.__call__:
        return None
    forward = inspect.getattr_static(kind, "forward")
    if not inspect.isfunction(forward) or forward is nn.Module.forward:
        return None
    return forward
