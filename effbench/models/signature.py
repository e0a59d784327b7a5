"""Compare the inputs of a model with the signature of its forward, before anything runs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import nn

from effbench.errors import nearest, suggest
from effbench.models.inputs import Step

#: Packages whose decorators, such as `torch.no_grad()`, pass all arguments on.
TRANSPARENT = ("torch", "transformers")
#: Similarity from which a name is another one with a typing error.
SIMILAR = 0.75
SITE_PACKAGES = Path(torch.__file__).parents[1]


@dataclass
class Arguments:
    """The arguments that a forward accepts. `accepts_any`, `accepts_any_name`: it has `*args`,
    `**kwargs`."""

    by_position: list[str] = field(default_factory=list)
    by_name: list[str] = field(default_factory=list)
    required: list[str] = field(default_factory=list)
    accepts_any: bool = False
    accepts_any_name: bool = False

    def add(self, parameter: inspect.Parameter) -> None:
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            self.accepts_any = True
            return
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            self.accepts_any_name = True
            return
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            self.by_position.append(parameter.name)
        if parameter.kind is not inspect.Parameter.POSITIONAL_ONLY:
            self.by_name.append(parameter.name)
        if parameter.default is inspect.Parameter.empty:
            self.required.append(parameter.name)

    @property
    def names(self) -> list[str]:
        """All named arguments, in the order of forward as far as they have a position."""
        return list(dict.fromkeys([*self.by_position, *self.by_name]))

    def __str__(self) -> str:
        return ", ".join(self.names) or "none"

    def mismatch(self, inputs: Mapping[str, bool]) -> str | None:
        """Return why these inputs cannot be passed, or None. `inputs`: whether each is passed by
        name, in order."""
        positional = [name for name, is_keyword in inputs.items() if not is_keyword]
        keywords = [name for name, is_keyword in inputs.items() if is_keyword]
        return (
            self.unknown(keywords)
            or self.too_many(positional)
            or self.misplaced(positional)
            or self.given_twice(positional, keywords)
            or self.missing(positional, keywords)
        )

    def unknown(self, keywords: Sequence[str]) -> str | None:
        for name in keywords:
            if name not in self.by_name and not self.accepts_any_name:
                near = suggest(name, self.by_name)
                return f"model.inputs.{name} is no argument of forward{near}; allowed: {self}"
        return None

    def too_many(self, positional: Sequence[str]) -> str | None:
        count = len(self.by_position)
        if self.accepts_any or len(positional) <= count:
            return None
        extra = positional[count]
        fix = f"remove model.inputs.{extra}"
        if extra in self.by_name:
            fix = f"set model.inputs.{extra}.keyword=true"
        return (
            f"model.inputs has {len(positional)} inputs by position ({', '.join(positional)}), but"
            f" forward takes {count} by position ({self}); {fix}"
        )

    def misplaced(self, positional: Sequence[str]) -> str | None:
        """Return which input takes the place of another argument. Names that resemble none are the
        user's own."""
        known = self.names
        for name, taken_as in zip(positional, self.by_position, strict=False):
            if name == taken_as:
                continue
            near = nearest(name, known, cutoff=SIMILAR)
            if name in known:
                return (
                    f"model.inputs.{name} is passed by position, where forward expects {taken_as};"
                    f" list inputs in the order of forward ({self}), or set"
                    f" model.inputs.{name}.keyword=true"
                )
            if near is not None and near != taken_as:
                return (
                    f"model.inputs.{name} is passed by position as {taken_as}: did you mean"
                    f" {near}? List inputs in the order of forward ({self})"
                )
        return None

    def given_twice(self, positional: Sequence[str], keywords: Sequence[str]) -> str | None:
        taken = dict(zip(self.by_position, positional, strict=False))
        for name in keywords:
            if name in taken and name in self.by_name:
                return (
                    f"forward gets its argument {name} twice: by position from"
                    f" model.inputs.{taken[name]}, and by name; remove one"
                )
        return None

    def missing(self, positional: Sequence[str], keywords: Sequence[str]) -> str | None:
        given = {*self.by_position[: len(positional)], *keywords}
        lacking = [name for name in self.required if name not in given]
        if not lacking:
            return None
        has = ", ".join([*positional, *keywords]) or "none"
        return (
            f"forward requires {', '.join(lacking)}, but model.inputs has only {has}; describe"
            f" each, for example 'model.inputs.{lacking[0]}.shape=[16]'"
        )


def arguments_of(function: Step, has_self: bool) -> Arguments | None:
    """Return the arguments of a forward; None if they are unknown. `has_self`: its first argument
    is the module."""
    while hasattr(function, "__wrapped__") and is_transparent(function):
        function = function.__wrapped__
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return None
    parameters = list(signature.parameters.values())
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    # a function with only *args does not name it
    if has_self and parameters and parameters[0].kind in named:
        del parameters[0]
    arguments = Arguments()
    for parameter in parameters:
        arguments.add(parameter)
    return arguments


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
    """Return why these inputs do not fit a forward, or None; also if its arguments are unknown."""
    arguments = arguments_of(forward, has_self)
    if arguments is None:
        return None
    return arguments.mismatch(inputs)
