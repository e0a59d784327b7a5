"""What else was different between two sweeps: software, machine, protocol. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

_SOFTWARE = {
    "torch_version": "torch",
    "triton_version": "Triton",
    "cuda_version": "CUDA",
    "driver_version": "driver",
    "python": "Python",
    "cpu_name": "CPU",
    "gpu_memory_bytes": "GPU memory",
    "platform": "platform",
}
#: A sweep and an environment in it.
Where = tuple[Mapping[str, Any], Mapping[str, Any]]
#: What a sweep compares within itself is part of the place of a series.
_COMPARED = ("interpreter", "folder")


def coinciding(
    before: Mapping[str, Any], after: Mapping[str, Any], old: Mapping[str, Any], new: Mapping[str, Any]
) -> list[str]:
    """One text a difference, such as `torch 2.11 -> 2.13` or `protocol rounds 5 -> 3`.

    `before`, `after`: the sweeps with `protocol` and `host`; `old`, `new`: the environments.
    """
    texts = [_text(name, old[key], new[key]) for key, name in _SOFTWARE.items() if old[key] != new[key]]
    flags, now = old["flags"] or {}, new["flags"] or {}
    texts += [
        _text(name, flags.get(name), now.get(name))
        for name in sorted(flags.keys() | now.keys())
        if name not in _COMPARED and flags.get(name) != now.get(name)
    ]
    protocol, changed = before["protocol"] or {}, after["protocol"] or {}
    texts += [
        _text("protocol" if name == "name" else f"protocol {name}", protocol.get(name), changed.get(name))
        for name in sorted(protocol.keys() | changed.keys(), key=lambda name: (name != "name", name))
        if protocol.get(name) != changed.get(name)
    ]
    host, other = before["host"] or {}, after["host"] or {}
    texts += [
        _text(label, host.get(name), other.get(name))
        for name, label in (("hostname", "host"), ("kernel", "kernel"), ("effbench", "effbench"))
        if host.get(name) != other.get(name)
    ]
    return texts


def separating(
    low: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
    high: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
) -> list[str]:
    """What is never the same on both levels of a series, such as `host a | b`; each side as (sweep, environment)."""
    texts = []
    for name, of in _SEPARATING.items():
        one, other = ({str(of(*where) or "none") for where in side} for side in (low, high))
        if not one & other:
            texts.append(f"{name} {', '.join(sorted(one))} | {', '.join(sorted(other))}")
    return texts


_SEPARATING: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Any]] = {
    "host": lambda sweep, environment: (sweep["host"] or {}).get("hostname"),
    **{name: lambda sweep, environment, key=key: environment[key] for key, name in _SOFTWARE.items()},
    "protocol": lambda sweep, environment: (sweep["protocol"] or {}).get("name"),
}


def _text(name: str, old: Any, new: Any) -> str:
    return f"{name} {'none' if old is None else old} -> {'none' if new is None else new}"
