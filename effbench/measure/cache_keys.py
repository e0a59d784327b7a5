"""Why compiled code of an earlier process is not used again: what differs between the keys of
Inductor's cache, then and now.

Inductor logs what each key consists of, a line for each detail, such as
`[hash] example_inputs[0]: TensorMetadata(dtype=torch.float32, shape=torch.Size([8, 16]), …)`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

INDUCTOR_LOGGER = "torch._inductor.codecache"
AUTOGRAD_LOGGER = "torch._functorch._aot_autograd.autograd_cache"
#: Beginnings of the messages about what a key consists of, and about why there is no key.
DETAILS, BYPASSES = "FX graph cache hash details for key", "Bypassing"
DETAIL = re.compile(r"^(\[[0-9a-z]+\]) (\w+(?:\[[^\]]*\])?): (.*)$")
#: Fields of the description of a tensor that a reader understands.
FIELD = re.compile(
    r"\b(dtype|shape|stride|device)=((?:torch\.Size\()?\[[^\]]*\]\)?|\([^)]*\)|[^,]+)"
)
DEVICE = re.compile(r"\bdevice=device\(type='(\w+)'(?:, index=(\d+))?\)")
#: Longest text of a detail that is kept; the code of a graph is longer.
MOST_CHARACTERS = 400
#: Name of a detail -> what it is called. Others keep their name.
NAMES = {
    "gm": "code of the graph",
    "torch_version": "torch's code",
    "system_info": "GPU, driver or Triton",
    "cpp_runtime_thread_count": "number of threads",
    "cuda_matmul_settings": "precision of matrix products",
    "deterministic_algorithms_settings": "deterministic algorithms",
    "default_dtype": "default dtype",
}


#: What the key of a graph consists of: the name of a detail, such as `example_inputs[0]`, and its
#: hash with its text, if that is short.
CacheKey = dict[str, str]


class KeyObserver(logging.Handler):
    """Context manager that collects what the keys of Inductor's cache consist of, a one for
    each graph that is looked up there, and why torch bypassed a cache. torch composes these
    messages anyway."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.keys: list[CacheKey] = []
        self.bypasses: list[str] = []

    @contextmanager
    def observing(self) -> Iterator[None]:
        loggers = [logging.getLogger(INDUCTOR_LOGGER), logging.getLogger(AUTOGRAD_LOGGER)]
        before = [(logger.level, logger.propagate) for logger in loggers]
        # composing the details of AOTAutograd's keys takes long, and torch does it only for DEBUG
        for logger, level in zip(loggers, (logging.DEBUG, logging.INFO), strict=True):
            logger.setLevel(level)
            logger.propagate = False  # not on stderr
            logger.addHandler(self)
        try:
            yield
        finally:
            for logger, (level, propagate) in zip(loggers, before, strict=True):
                logger.setLevel(level)
                logger.propagate = propagate
                logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message.startswith(DETAILS):
            self.keys.append(key_of(message))
        elif message.startswith(BYPASSES):
            self.bypasses.append(message.splitlines()[0])


def key_of(message: str) -> CacheKey:
    """Return the key that a message of Inductor describes."""
    key: CacheKey = {}
    for line in message.splitlines()[1:]:
        match = DETAIL.match(line)
        if match is not None:
            hash, name, text = match.groups()
            key[name] = f"{hash} {text}" if len(text) <= MOST_CHARACTERS else hash
    return key


def differences(made: Sequence[CacheKey], now: Sequence[CacheKey]) -> list[str]:
    """Return what differs between the keys that were looked up now and the most similar ones of
    when the cache was made, each reason once. torch does not look up all keys: those of graphs that
    AOTAutograd's cache has are missing."""
    reasons: dict[str, None] = {}
    for key in now:
        similar = min(made, key=lambda other: len(differing(other, key)), default={})
        for name in differing(similar, key):
            reasons |= dict.fromkeys(changes(name, similar.get(name, ""), key.get(name, "")))
    return list(reasons)


def differing(before: CacheKey, after: CacheKey) -> list[str]:
    """Return the names of the details that are not the same in two keys."""
    names = {**before, **after}
    return [name for name in names if hash_of(before.get(name)) != hash_of(after.get(name))]


def hash_of(detail: str | None) -> str:
    """Return the hash of a detail, whose text may contain an address."""
    return (detail or "").partition(" ")[0]


def changes(name: str, before: str, after: str) -> list[str]:
    """Return how a detail changed, such as `input 0 of the graph: shape (8, 16), now (16, 16)`."""
    kind, _, position = name.partition("[")
    position = position.rstrip("]")
    title = NAMES.get(kind, kind)
    if kind == "example_inputs":
        title = f"input {position} of the graph"
    elif position:
        title = f"{title}: {position}"
    then, now = fields_of(before), fields_of(after)
    changed = [key for key in then if now.get(key, then[key]) != then[key]]
    if "shape" in changed and "stride" in changed:  # which follows from the shape
        changed.remove("stride")
    if not changed:
        return [title]
    return [f"{title}: {key} {then[key]}, now {now[key]}" for key in changed]


def fields_of(text: str) -> dict[str, str]:
    """Return the fields of the description of a tensor as a reader writes them."""
    found: dict[str, str] = {}
    for key, value in FIELD.findall(text):
        value = value.removeprefix("torch.").removeprefix("Size(").rstrip(")")
        found[key] = value.replace("[", "(").replace("]", ")")
    device = DEVICE.search(text)
    if device is not None:
        type, index = device.groups()
        found["device"] = type if index is None else f"{type}:{index}"
    return found
