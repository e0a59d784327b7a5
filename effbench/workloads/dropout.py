"""Switch dropout off for training, because compilers draw other masks than eager.

What torch, torchvision, timm and transformers define as dropout is known by the type of the module.
Attributes of other modules keep their values.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import nn

#: Modules of libraries by package and class -> their attributes with the probability of dropout.
OF_CLASSES = {
    ("torch", "_DropoutNd"): ("p",),
    ("torch", "MultiheadAttention"): ("dropout",),
    ("torch", "RNNBase"): ("dropout",),
    ("torchvision", "StochasticDepth"): ("p",),
    ("torchvision", "DropBlock2d"): ("p",),
    ("torchvision", "DropBlock3d"): ("p",),
    ("torchvision", "ShiftedWindowAttention"): ("attention_dropout", "dropout"),
    ("torchvision", "_DenseLayer"): ("drop_rate",),
    ("timm", "DropPath"): ("drop_prob",),
    ("timm", "DropBlock2d"): ("drop_prob",),
    ("timm", "PatchDropout"): ("prob",),
    ("timm", "PatchDropoutWithIndices"): ("prob",),
}
#: Names that all modules of timm give to such attributes.
OF_TIMM = ("drop_rate", "attn_drop_p")
#: Ends of the names that all modules and configurations of transformers give to such attributes.
OF_TRANSFORMERS = re.compile(
    r"(dropout|dropout_p|dropout_prob|dropout_rate|dropout_ratio|dropout_value"
    r"|layer_?drop|drop_?path|drop_path_rate|drop_prob|drop_rate|pdrop)$"
)


def switch_off(module: nn.Module) -> list[str]:
    """Set what libraries define as dropout to 0, in the module, its parts and their configurations.

    Return what was changed, such as `Dropout.p=0.1 (24 modules)`.
    """
    counts = Counter[str]()
    for owner in owners(module):
        for name in list(known_names(owner)):
            value = vars(owner).get(name)
            if is_probability(value):
                setattr(owner, name, 0.0)
                counts[f"{type(owner).__name__}.{name}={value:g}"] += 1
    changes = []
    for title, number in counts.items():
        changes.append(title if number == 1 else f"{title} ({number} modules)")
    return changes


def owners(module: nn.Module) -> list[Any]:
    """Return the module, its parts, and the configurations of transformers in their attributes,
    each once."""
    by_id: dict[int, Any] = {}
    waiting: list[Any] = list(module.modules())
    for owner in waiting:  # configurations, which may hold further ones, are appended
        if id(owner) not in by_id:
            by_id[id(owner)] = owner
            waiting.extend(filter(is_configuration, vars(owner).values()))
    return list(by_id.values())


def is_configuration(value: Any) -> bool:
    """Return whether a value is a configuration of transformers."""
    kinds = type(value).__mro__
    return any(base.__module__ == "transformers.configuration_utils" for base in kinds)


def known_names(owner: Any) -> Iterator[str]:
    """Yield the names of the attributes that a library defines as probabilities of dropout."""
    for base in type(owner).__mro__:
        package = base.__module__.partition(".")[0]
        yield from OF_CLASSES.get((package, base.__name__), ())
        if package == "timm":
            yield from OF_TIMM
        if package == "transformers":
            yield from filter(OF_TRANSFORMERS.search, vars(owner))


def is_probability(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value <= 1
