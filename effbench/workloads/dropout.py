"""Switch dropout off for training, because compilers draw other masks than eager."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from torch import nn

#: Ends of the names of probabilities of dropout, such as `attn_pdrop` and `drop_path_rate`.
ATTRIBUTE = re.compile(r"(dropout|drop_?path|drop)(_?(p|prob|rate|ratio|value))?$", re.I)
#: In the names of classes that may call their probability `p`, `prob` or `rate`.
CLASS = re.compile(r"drop(out|_?path|_?block|_?connect)|stochastic_?depth", re.I)
SHORT_NAMES = ("p", "prob", "rate")


def switch_off(module: nn.Module) -> list[str]:
    """Set the probabilities of dropout to 0 in the module, its parts and their settings. Return
    what was changed, such as `Dropout.p=0.1 (24 modules)`.

    A probability is a float above 0, up to 1, in an attribute that is named after dropout, or in
    `p`, `prob` or `rate` of a class that is.
    """
    changes: Counter[str] = Counter()
    for owner in owners(module):
        for name, value in list(vars(owner).items()):
            if is_named_after_dropout(owner, name) and isinstance(value, float) and 0 < value <= 1:
                setattr(owner, name, 0.0)
                changes[f"{type(owner).__name__}.{name}={value:g}"] += 1
    described = []
    for title, number in changes.items():
        if number > 1:
            title = f"{title} ({number} modules)"
        described.append(title)
    return described


def is_named_after_dropout(owner: Any, name: str) -> bool:
    if ATTRIBUTE.search(name):
        return True
    return name in SHORT_NAMES and bool(CLASS.search(type(owner).__name__))


def owners(module: nn.Module) -> Iterator[Any]:
    """Yield the parts of a module and the settings that they hold, also inside others, each
    once."""
    seen: set[int] = set()
    found: list[Any] = list(module.modules())
    while found:
        owner = found.pop(0)
        if id(owner) not in seen:
            seen.add(id(owner))
            yield owner
            found += [value for value in vars(owner).values() if holds_settings(value)]


def holds_settings(value: Any) -> bool:
    """Return whether a value is an object of settings: of a dataclass, a namespace, or a
    configuration of transformers."""
    if isinstance(value, SimpleNamespace):
        return True
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        is_frozen: bool = type(value).__dataclass_params__.frozen  # type: ignore[attr-defined]
        return hasattr(value, "__dict__") and not is_frozen
    kinds = type(value).__mro__
    return any(kind.__module__ == "transformers.configuration_utils" for kind in kinds)
