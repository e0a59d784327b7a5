"""Switch dropout off for training, because compilers draw other masks than eager.

What torch, torchvision, timm and transformers define as dropout is known by the type of the module.
Attributes of other modules are only suspects: one is set to 0 if eager's loss then no longer
depends on the random seed, and if its output in eval mode, which has no dropout, stays the same.
"""

from __future__ import annotations

import math
import pickle
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

#: Modules of torch -> their attribute with the probability of dropout.
OF_TORCH: dict[type[nn.Module], str] = {
    nn.modules.dropout._DropoutNd: "p",
    nn.MultiheadAttention: "dropout",
    nn.RNNBase: "dropout",
}
#: Modules of torchvision and timm by package and class -> such attributes.
OF_CLASSES = {
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
#: Most seeds that a loss is compared for: a mask of a small probability changes it for few.
MOST_SEEDS = 8
#: Losses that differ by less are equal: some kernels add in another order in each call.
SAME_LOSS = 1e-6


@dataclass(frozen=True)
class Probability:
    """An attribute `name` of a module or of its configuration, and its `value` before effbench
    changes it."""

    owner: Any
    name: str
    value: float

    def set(self, value: float) -> None:
        setattr(self.owner, self.name, value)

    @property
    def title(self) -> str:
        return f"{type(self.owner).__name__}.{self.name}={self.value:g}"


def is_probability(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1


def packages_of(kind: type) -> set[str]:
    """Return the top-level packages that define a class and its base classes."""
    return {base.__module__.partition(".")[0] for base in kind.__mro__}


def known_names(owner: Any) -> Iterator[str]:
    """Yield the names of the attributes that a library defines as probabilities of dropout."""
    kind = type(owner)
    for base, name in OF_TORCH.items():
        if isinstance(owner, base):
            yield name
    for base in kind.__mro__:
        package = base.__module__.partition(".")[0]
        yield from OF_CLASSES.get((package, base.__name__), ())
    packages = packages_of(kind)
    if "timm" in packages:
        yield from OF_TIMM
    if "transformers" in packages:
        yield from filter(OF_TRANSFORMERS.search, vars(owner))


def configurations(part: nn.Module) -> list[Any]:
    """Return the configurations of transformers in the attributes of a module, with those inside
    them."""
    configs: dict[int, Any] = {}
    holders: list[Any] = [part]
    while holders:
        for value in vars(holders.pop(0)).values():
            if is_configuration(value) and id(value) not in configs:
                configs[id(value)] = value
                holders.append(value)
    return list(configs.values())


def is_configuration(value: Any) -> bool:
    return any(
        base.__module__ == "transformers.configuration_utils" for base in type(value).__mro__
    )


def owners(module: nn.Module) -> list[Any]:
    """Return the module, its parts and their configurations, each once."""
    by_id: dict[int, Any] = {}
    for part in module.modules():
        for owner in (part, *configurations(part)):
            by_id[id(owner)] = owner
    return list(by_id.values())


def known(module: nn.Module) -> list[Probability]:
    """Return the probabilities above 0 that libraries define as dropout, in the module and its
    parts."""
    probabilities = []
    for owner in owners(module):
        for name in dict.fromkeys(known_names(owner)):
            value = vars(owner).get(name)
            if is_probability(value):
                probabilities.append(Probability(owner, name, value))
    return probabilities


def suspects(module: nn.Module) -> list[list[Probability]]:
    """Return further attributes that may be probabilities of dropout by their name or their
    module's, in groups of the same class and name."""
    owners: dict[int, Any] = {}
    for part in module.modules():
        owners[id(part)] = part
        owners |= {id(value): value for value in vars(part).values() if holds_settings(value)}
    groups: dict[tuple[type, str], list[Probability]] = defaultdict(list)
    for owner in owners.values():
        for name, value in vars(owner).items():
            is_named = "drop" in name.lower() or "drop" in type(owner).__name__.lower()
            if is_named and isinstance(value, float) and is_probability(value):
                groups[type(owner), name].append(Probability(owner, name, value))
    return list(groups.values())


def holds_settings(value: Any) -> bool:
    """Return whether a value is a changeable object of settings, such as a dataclass."""
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return False
    parameters = getattr(type(value), "__dataclass_params__", None)
    is_changeable = parameters is not None and not parameters.frozen
    return is_changeable or isinstance(value, SimpleNamespace)


def switch_off(probabilities: Iterable[Probability]) -> None:
    for probability in probabilities:
        probability.set(0.0)


def put_back(probabilities: Iterable[Probability]) -> None:
    for probability in probabilities:
        probability.set(probability.value)


def describe_changes(probabilities: Iterable[Probability]) -> list[str]:
    """Return what was changed, such as `Dropout.p=0.1 (24 modules)`."""
    counts = Counter(probability.title for probability in probabilities)
    return [
        title if number == 1 else f"{title} ({number} modules)" for title, number in counts.items()
    ]


# --- suspects


@dataclass(frozen=True)
class Observed:
    """A module to observe. `start`: restores its state, and seeds all generators with the usual
    seed plus a number; `call`: calls it once and returns the loss of its output."""

    module: nn.Module
    start: Callable[[int], None]
    call: Callable[[], float]

    def loss(self, seed: int = 0) -> float:
        self.start(seed)
        return self.call()

    def eval_loss(self) -> float | None:
        """Return the loss of a call in eval mode, or None if the module has none in it."""
        self.start(0)  # which restores the mode, too
        self.module.eval()
        try:
            return self.call()
        except torch.OutOfMemoryError:
            raise
        except Exception:  # a module may return no loss, or raise anything, in eval mode
            return None
        finally:
            self.module.train()

    def is_random(self) -> bool:
        """Return whether the loss depends on the seed. Try further seeds only if the first call
        draws random numbers."""
        self.start(0)
        before = random_state()
        loss = self.call()
        if random_state() == before:
            return False
        return any(not is_same_loss(self.loss(seed), loss) for seed in range(1, MOST_SEEDS))

    def lacks_only_dropout(self, eval_loss: float) -> bool:
        """Return whether only dropout may be missing: in eval mode, which has none, the loss is
        still the same."""
        try:
            if not math.isfinite(self.loss()):
                return False
            without = self.eval_loss()
            return without is not None and is_same_loss(without, eval_loss)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # the module may raise anything for a value that it does not expect
            return False


def random_state() -> bytes:
    """Return the states of all random generators as a value to compare."""
    states: list[Any] = [random.getstate(), np.random.get_state(), torch.get_rng_state().numpy()]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state().numpy())
    return pickle.dumps(states)


def is_same_loss(loss: float, other: float) -> bool:
    return math.isclose(loss, other, rel_tol=SAME_LOSS)


def find_guilty(groups: Iterable[list[Probability]], module: Observed) -> list[Probability]:
    """Return those suspects that make the loss depend on the seed; all others get their values
    back.

    A suspect is cleared if the module fails with 0, or has another output in eval mode. All are
    cleared if the module fails in eval mode, or if the loss depends on the seed without them, too.
    """
    if not module.is_random():
        return []
    eval_loss = module.eval_loss()
    if eval_loss is None:
        return []
    zeroed: list[list[Probability]] = []
    for group in groups:
        switch_off(group)
        if module.lacks_only_dropout(eval_loss):
            zeroed.append(group)
        else:
            put_back(group)
    is_still_random = bool(zeroed) and module.is_random()
    guilty: list[Probability] = []
    for group in zeroed:
        put_back(group)
        if not is_still_random and module.is_random():
            switch_off(group)
            guilty += group
    return guilty
