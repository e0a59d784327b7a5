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

#: Where libraries define modules -> the names of their attributes with a probability of dropout.
NAMES = {
    "torch.nn.modules.dropout": re.compile("p"),
    "torch.nn.modules.activation": re.compile("dropout"),
    "torch.nn.modules.rnn": re.compile("dropout"),
    "torchvision.models.": re.compile("dropout|attention_dropout|drop_rate"),
    "torchvision.ops.": re.compile("p"),
    "timm.": re.compile("prob|drop_prob|drop_rate|attn_drop_p"),
    "transformers.": re.compile(
        r".*(dropout|dropout_p|dropout_prob|dropout_rate|dropout_ratio|dropout_value"
        r"|layer_?drop|drop_?path|drop_path_rate|drop_prob|drop_rate|pdrop)"
    ),
}


def switch_off(module: nn.Module) -> list[str]:
    """Set what libraries define as dropout to 0, in the module, its parts and their configurations.

    Return what was changed, such as `Dropout.p=0.1 (24 modules)`.
    """
    counts = Counter[str]()
    for part in module.modules():
        for owner in (part, vars(part).get("config")):
            for name in list(known_names(owner)):
                value = vars(owner)[name]
                if isinstance(value, float) and 0 < value <= 1:
                    setattr(owner, name, 0.0)
                    counts[f"{type(owner).__name__}.{name}={value:g}"] += 1
    return [
        title if number == 1 else f"{title} ({number} modules)" for title, number in counts.items()
    ]


def known_names(owner: Any) -> Iterator[str]:
    """Yield the names of the attributes that a library defines as probabilities of dropout."""
    for base in type(owner).__mro__:
        for place, names in NAMES.items():
            if base.__module__.startswith(place):
                yield from filter(names.fullmatch, vars(owner))
