"""Made-up results of fresh processes: cells of phase=coldstart with given seconds."""

from typing import Any

from made_sweeps import a_cell, steps

from effbench.core.cell import Cell

#: Seconds of the parts of a cold start in which nothing compiles.
PLAIN = {
    "cold_interpreter_s": 0.1,
    "cold_imports_s": 1.5,
    "cold_device_s": 0.3,
    "cold_build_s": 0.4,
    "cold_first_call_s": 0.1,
}


def a_start(mode: str = "eager", cache: str = "none", change: str = "none", **more: Any) -> Cell:
    """A cell that starts with this cache after this change."""
    settings = {"change": change, "processes": 1, "sizes": 1}
    return a_cell(mode, phase="coldstart", coldstart=settings, cache=cache, **more)


def started(cold_s: float, latency_ms: float, spread: float = 0.001, **more: Any) -> dict[str, Any]:
    """The figures of a start: its seconds, of which what PLAIN lacks is spent on compiling, and the
    latency of later calls."""
    parts = PLAIN | {"cold_compile_s": max(0.0, cold_s - sum(PLAIN.values()))}
    times = {"cold_s": steps(cold_s, spread), "latency_ms": steps(latency_ms, spread)}
    return {"period_ms": None, **times, **parts, **more}


#: `default` compiles for 20 s, or loads a bundle, and saves 1 ms a call.
STARTS = {
    a_start(): started(2.4, 4.0),
    a_start("default"): started(22.4, 3.0),
    a_start("default", "folder"): started(
        7.4, 3.0, cache_bytes=3 * 2**20, cache_reuse="whole", cache_hits=2, cache_misses=0
    ),
    a_start("default", "bundle"): started(
        6.4, 3.0, cache_bytes=2 * 2**20, cache_reuse="whole", cache_hits=2, cache_misses=0
    ),
}
