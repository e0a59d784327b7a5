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
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
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

    @property
    def title(self) -> str:
        return f"{type(self.owner).__name__}.{self.name}={self.value:g}"


def is_probability(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value <= 1


def known_names(owner: Any) -> Iterator[str]:
    """Yield the names of the attributes that a library defines as probabilities of dropout."""
    for base in type(owner).__mro__:
        package = base.__module__.partition(".")[0]
        yield from OF_CLASSES.get((package, base.__name__), ())
        if package == "timm":
            yield from OF_TIMM
        if package == "transformers":
            yield from filter(OF_TRANSFORMERS.search, vars(owner))


def owners(module: nn.Module, is_owner: Callable[[Any], bool]) -> list[Any]:
    """Return the module, its parts, and objects in their attributes that `is_owner` accepts, each
    once."""
    by_id: dict[int, Any] = {}
    waiting = deque[Any](module.modules())
    while waiting:
        owner = waiting.popleft()
        if id(owner) not in by_id:
            by_id[id(owner)] = owner
            waiting.extend(filter(is_owner, vars(owner).values()))
    return list(by_id.values())


def is_configuration(value: Any) -> bool:
    """Return whether a value is a configuration of transformers."""
    kinds = type(value).__mro__
    return any(base.__module__ == "transformers.configuration_utils" for base in kinds)


def holds_settings(value: Any) -> bool:
    """Return whether a value is a changeable object of settings, such as a dataclass."""
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return False
    parameters = getattr(type(value), "__dataclass_params__", None)
    is_changeable = parameters is not None and not parameters.frozen
    return is_changeable or isinstance(value, SimpleNamespace)


def known(module: nn.Module) -> list[Probability]:
    """Return the probabilities above 0 that libraries define as dropout, in the module and its
    parts."""
    probabilities = []
    for owner in owners(module, is_configuration):
        for name in dict.fromkeys(known_names(owner)):
            value = vars(owner).get(name)
            if is_probability(value):
                probabilities.append(Probability(owner, name, value))
    return probabilities


def suspects(module: nn.Module) -> list[list[Probability]]:
    """Return further attributes that may be probabilities of dropout by their name or their
    module's, in groups of the same class and name."""
    groups: dict[tuple[type, str], list[Probability]] = defaultdict(list)
    for owner in owners(module, holds_settings):
        for name, value in vars(owner).items():
            title = f"{type(owner).__name__}.{name}"
            is_named = "drop" in title.lower()
            if is_named and isinstance(value, float) and is_probability(value):
                group = groups[type(owner), name]
                group.append(Probability(owner, name, value))
    return list(groups.values())


def switch(probabilities: Iterable[Probability], *, on: bool) -> None:
    """Set these attributes to their values before effbench changed them, or to 0."""
    for probability in probabilities:
        setattr(probability.owner, probability.name, probability.value if on else 0.0)


def describe_changes(probabilities: Iterable[Probability]) -> list[str]:
    """Return what was changed, such as `Dropout.p=0.1 (24 modules)`."""
    counts = Counter(probability.title for probability in probabilities)
    changes = []
    for title, number in counts.items():
        changes.append(title if number == 1 else f"{title} ({number} modules)")
    return changes


# --- suspects


@dataclass(frozen=True)
class Observed:
    """A module to observe. `start`: restores its state, and seeds all generators with the usual
    seed plus a number; `call`: calls it once and returns the loss of its output."""

    module: nn.Module
    start: Callable[[int], None]
    call: Callable[[], float]

    def loss(self, seed: int) -> float:
        self.start(seed)
        return self.call()

    def loss_in(self, training: bool) -> float | None:
        """Return the loss of a call in training or in eval mode, or None if the module has none in
        it."""
        self.start(0)  # which restores the mode, too
        self.module.train(training)
        try:
            return self.call()
        except torch.OutOfMemoryError:
            raise
        # a module may return no loss, or raise anything, in eval mode or for an unexpected value
        except Exception:
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
        loss = self.loss_in(training=True)
        if loss is None or not math.isfinite(loss):
            return False
        without = self.loss_in(training=False)
        return without is not None and is_same_loss(without, eval_loss)


def random_state() -> bytes:
    """Return the states of all random generators as a value to compare."""
    states: list[Any] = [
        random.getstate(),
        np.random.get_state(),
        torch.get_rng_state().numpy(),
    ]
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
    eval_loss = module.loss_in(training=False)
    if eval_loss is None:
        return []
    zeroed: list[list[Probability]] = []
    for group in groups:
        switch(group, on=False)
        if module.lacks_only_dropout(eval_loss):
            zeroed.append(group)
        else:
            switch(group, on=True)
    is_still_random = bool(zeroed) and module.is_random()
    guilty: list[Probability] = []
    for group in zeroed:
        switch(group, on=True)
        if not is_still_random and module.is_random():
            switch(group, on=False)
            guilty += group
    return guilty
