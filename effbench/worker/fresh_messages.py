"""What a cold start and its fresh processes tell each other. Standard library only, because a fresh
process imports this module before its first answer.

A request is a file of JSON. The process writes messages to another file:

    {"v", "part", "ns"}: a part that has ended, and when by CLOCK_MONOTONIC, which processes share
    {"v", "result"}: a `FreshResult`, once
    {"v", "failed"}: a `failures.Failure`, once
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: The parts of a cold start that end one after the other, as figures name them.
INTERPRETER, IMPORTS, DEVICE, BUILD, LOAD, FIRST_CALL = PARTS = (
    "interpreter",
    "imports",
    "device",
    "build",
    "load",
    "first_call",
)


@dataclass(frozen=True)
class FreshFolder:
    """The files of a fresh process. `answer`: the first one, as `torch.save` writes it."""

    path: Path

    @property
    def request(self) -> Path:
        return self.path / "request.json"

    @property
    def messages(self) -> Path:
        return self.path / "messages"

    @property
    def answer(self) -> Path:
        return self.path / "answer.pt"


@dataclass(frozen=True)
class FreshRequest:
    """What a fresh process does.

    `module`, `attention`, `inputs`: those of the cell's model, with the inputs' specifications by
    name in order; `imports`: what to import for it; `mode`: its target; `settings`: the mode's;
    `batch_sizes`: those to prepare, the last one is answered first. `cache_dir`: the folder of its
    caches. `gpu_index`: among the visible GPUs; None: the first one. `rank`: of two in a process
    group, or None. `bundle`, `package`: a file to load, or None. `save_bundle`: write the bundle to
    this file instead of timing calls.
    """

    module: dict[str, Any]
    imports: list[str]
    inputs: dict[str, Any]
    mode: str
    settings: dict[str, Any]
    batch_sizes: list[int]
    dtype: str
    device: str
    numerics: dict[str, Any]
    grad_mode: str
    threads: int
    cache_dir: str
    protocol: dict[str, Any]
    gpu_index: int | None = None
    rank: int | None = None
    bundle: str | None = None
    package: str | None = None
    save_bundle: str | None = None
    attention: str | None = None

    @property
    def parts(self) -> list[str]:
        """The parts of this cold start, in order."""
        parts = list(PARTS)
        if self.device != "cuda":
            parts.remove(DEVICE)
        if self.bundle is None and self.package is None:
            parts.remove(LOAD)
        return parts


@dataclass
class PreparedSize:
    """A batch size that was prepared. `s`: seconds of preparing and the first call; `bytes`: device
    memory that it reserves; None on the CPU."""

    bs: int
    s: float
    bytes: int | None


@dataclass
class CacheUse:
    """What the compiler's caches answered until the first answer. `keys`: what the keys of
    Inductor's cache consist of, for each graph; `bypasses`: why a cache was not asked."""

    hits: int = 0
    misses: int = 0
    keys: list[dict[str, str]] = field(default_factory=list)
    bypasses: list[str] = field(default_factory=list)


@dataclass
class FreshResult:
    """What a fresh process found.

    `seconds`: those of the compiler within the last part, by name; `compiler_imports_s`: those of
    importing its modules there; `waited_s`: how long the main thread waited for a core until the
    answer; `cpu_s`: for how long the process and its descendants used cores; `calls_ms`: calls 2 to
    10; `steady_ms`: calls in the steady state; `degraded`: why it did not run as its mode's name
    says, or None.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    compiler_imports_s: float = 0.0
    waited_s: float = 0.0
    cpu_s: float = 0.0
    sizes: list[PreparedSize] = field(default_factory=list)
    cache: CacheUse | None = None
    calls_ms: list[float] = field(default_factory=list)
    steady_ms: list[float] = field(default_factory=list)
    degraded: str | None = None
    peak_host_bytes: int = 0
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    graph_pool_bytes: int | None = None
