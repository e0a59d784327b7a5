"""Compare the inputs of a model with the signature of its forward, before anything runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from effbench.errors import nearest, suggest

#: Packages whose decorators, such as `torch.no_grad()`, pass all arguments on.
TRANSPARENT = ("torch", "transformers")
#: Similarity from which a name is another one with a typing error.
SIMILAR = 0.75
SITE_PACKAGES = Path(torch.__file__).parents[1]


@dataclass(frozen=True)
class Arguments:
    """The arguments that a forward accepts. `accepts_any`, `accepts_any_name`: it has `*args`,
    `**kwargs`."""

    parameters: Sequence[inspect.Parameter]

    @cached_property
    def by_position(self) -> list[str]:
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return [it.name for it in self.parameters if it.kind in kinds]

    @cached_property
    def by_name(self) -> list[str]:
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        return [it.name for it in self.parameters if it.kind in kinds]

    @cached_property
    def required(self) -> list[str]:
        named = {*self.by_position, *self.by_name}
        return [
            it.name
            for it in self.parameters
            if it.name in named and it.default is inspect.Parameter.empty
        ]

    @cached_property
    def accepts_any(self) -> bool:
        return any(it.kind is inspect.Parameter.VAR_POSITIONAL for it in self.parameters)

    @cached_property
    def accepts_any_name(self) -> bool:
        return any(it.kind is inspect.Parameter.VAR_KEYWORD for it in self.parameters)

    def __str__(self) -> str:
        return ", ".join(dict.fromkeys([*self.by_position, *self.by_name])) or "none"

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
        if self.accepts_any or len(positional) <= len(self.by_position):
            return None
        extra = positional[len(self.by_position)]
        takes = f"forward takes {len(self.by_position)} by position ({self})"
        how = (
            f"set model.inputs.{extra}.keyword=true"
            if extra in self.by_name
            else f"remove model.inputs.{extra}"
        )
        return (
            f"model.inputs has {len(positional)} inputs by position ({', '.join(positional)}), but"
            f" {takes}; {how}"
        )

    def misplaced(self, positional: Sequence[str]) -> str | None:
        """Return which input takes the place of another argument. Names that resemble none are the
        user's own."""
        known = list(dict.fromkeys([*self.by_position, *self.by_name]))
        for name, taken_as in zip(positional, self.by_position, strict=False):
            near = nearest(name, known, cutoff=SIMILAR)
            if near not in (None, name, taken_as):
                where = f"model.inputs.{name} is passed by position as {taken_as}"
                return f"{where}: did you mean {near}? List inputs in the order of forward ({self})"
            if name != taken_as and name in known:
                where = (
                    f"model.inputs.{name} is passed by position, where forward expects {taken_as}"
                )
                return (
                    f"{where}; list inputs in the order of forward ({self}), or set"
                    f" model.inputs.{name}.keyword=true"
                )
        return None

    def given_twice(self, positional: Sequence[str], keywords: Sequence[str]) -> str | None:
        taken = dict(zip(self.by_position, positional, strict=False))
        for name in keywords:
            if name in taken and name in self.by_name:
                twice = f"by position from model.inputs.{taken[name]}, and by name"
                return f"forward gets its argument {name} twice: {twice}; remove one"
        return None

    def missing(self, positional: Sequence[str], keywords: Sequence[str]) -> str | None:
        given = {*self.by_position[: len(positional)], *keywords}
        lacking = [name for name in self.required if name not in given]
        if not lacking:
            return None
        has = ", ".join([*positional, *keywords]) or "none"
        how = f"describe each, for example 'model.inputs.{lacking[0]}.shape=[16]'"
        return f"forward requires {', '.join(lacking)}, but model.inputs has only {has}; {how}"


def arguments_of(function: Callable[..., Any], has_self: bool) -> Arguments | None:
    """Return the arguments of a forward; None if they are unknown. `has_self`: its first argument
    is the module."""
    while hasattr(function, "__wrapped__") and is_transparent(function):
        function = function.__wrapped__
    try:
        parameters = list(inspect.signature(function, follow_wrapped=False).parameters.values())
    except (TypeError, ValueError):
        return None
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    # a function with only *args does not name it
    if has_self and parameters and parameters[0].kind in named:
        del parameters[0]
    return Arguments(parameters)


def is_transparent(function: Any) -> bool:
    """Return whether a decorator passes all arguments on, because its code is torch's or
    transformers'."""
    code = getattr(function, "__code__", None)
    return code is not None and any(
        Path(code.co_filename).is_relative_to(SITE_PACKAGES / it) for it in TRANSPARENT
    )


def class_mismatch(kind: Any, inputs: Mapping[str, bool]) -> str | None:
    """Return why these inputs do not fit the class of a module, or None; also if only its instances
    could tell."""
    # a function that returns a module
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        return None
    forward = inspect.getattr_static(kind, "forward")
    if forward is nn.Module.forward or kind.__call__ is not nn.Module.__call__:
        return None
    is_static = isinstance(forward, staticmethod)
    arguments = arguments_of(forward.__func__ if is_static else forward, has_self=not is_static)
    return arguments and arguments.mismatch(inputs)


def module_mismatch(module: nn.Module, inputs: Mapping[str, bool]) -> str | None:
    """Return why these inputs do not fit a module, or None; also if it has hooks that may change
    its inputs."""
    if module._forward_pre_hooks or type(module).__call__ is not nn.Module.__call__:
        return None
    is_method = inspect.ismethod(module.forward)
    arguments = arguments_of(
        module.forward.__func__ if is_method else module.forward, has_self=is_method
    )
    return arguments and arguments.mismatch(inputs)
