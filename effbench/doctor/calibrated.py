"""What is known of this machine from `effbench doctor --calibrate`, and how it is told."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.table import Table

from effbench.doctor.finding import Finding, good, note, warning
from effbench.doctor.noise import KINDS, STANDARD_TRIALS
from effbench.errors import StoreError
from effbench.metrics import significant
from effbench.store.store import Store
from effbench.terminal import escape

OLD = timedelta(days=30)
#: A smallest slowdown beyond this (relative) says more about the machine than about cells.
USELESS = 1.0
HOW = "effbench doctor --calibrate (some minutes; keep the machine free meanwhile)"
WORDS = {"launch_bound": "launch-bound cells", "gpu_bound": "GPU-bound cells"}
#: On the CPU the launch-bound kind is all there is.
ON_CPU = "small cells on the CPU"


def load(db: str, environment_id: str) -> dict[str, Any] | None:
    """The newest calibration of this environment, None where the database has none or cannot be read."""
    try:
        with Store.open(db, mode="read") as store:
            return store.calibration(environment_id)
    except StoreError:  # it has a finding of its own
        return None


def findings(found: dict[str, Any] | None, has_gpu: bool) -> Iterator[Finding]:
    """`found`: as Store.calibration() gives it."""
    if found is None:
        yield note(
            "this machine has not been calibrated",
            "what it can do, and what a sweep can show on it, is unknown: results cannot be read against it",
            HOW,
        )
        return
    when = found["measured_at"]
    day = f"calibrated on {when:%Y-%m-%d %H:%M} UTC"
    noise, ceilings = found["noise"], found["ceilings"]
    if noise and any(noise[kind]["smallest_slowdown"] > USELESS for kind in KINDS if noise[kind]):
        yield warning(
            f"{day}: {shown(noise)}",
            "most changes are lost in the spread between processes",
            "calibrate again on a quiet machine; more rounds narrow what sweeps show",
        )
    else:
        yield good(f"{day}: {shown(noise)}" if noise else day)
    if not noise:
        yield note("its noise has not been measured", "the smallest slowdown that a sweep can show is unknown", HOW)
    elif noise["protocol"] != "standard":
        yield note(f"its noise comes from a quick look ({noise['rounds']} rounds)", "a rough figure", HOW)
    for kind in KINDS:
        measured = (noise or {}).get(kind)
        yield from (drift(cell) for cell in (measured["cells"] if measured else ()) if drifts(cell))
    if ceilings:
        yield note(f"ceilings: {ceilings_in_words(ceilings)}")
    elif has_gpu:
        yield note(
            "its ceilings have not been measured", "how near a cell comes to what the GPU can do is unknown", HOW
        )
    if datetime.now(UTC) - when > OLD:
        yield note(
            f"the calibration is {(datetime.now(UTC) - when).days} days old", "the machine may have changed", HOW
        )


def drifts(cell: dict[str, Any]) -> bool:
    """Whether odd and even rounds of the very same cell differ, by the interval of their ratio."""
    low, high = cell["ratio_low"], cell["ratio_high"]
    return low is not None and not low <= 1 <= high


def drift(cell: dict[str, Any]) -> Finding:
    return warning(
        f"{cell['cell']}: odd and even rounds of the same cell differ ({interval(cell)})",
        "by chance 1 cell in 20 does so; else the machine moved in step with the rounds",
        "calibrate again on a quiet machine",
    )


def shown(noise: dict[str, Any]) -> str:
    """One sentence: what a standard sweep can show here."""
    parts = [
        f"of {words(noise, kind)} from {slowdown(noise[kind]['smallest_slowdown'])} on" for kind in KINDS if noise[kind]
    ]
    sentence = f"a standard sweep ({STANDARD_TRIALS} trials a cell) shows a slowdown {', '.join(parts)}"
    if noise["device"] == "cpu":
        sentence += "; without a GPU no cell is GPU-bound"
    return sentence


def words(noise: dict[str, Any], kind: str) -> str:
    return ON_CPU if noise["device"] == "cpu" else WORDS[kind]


def slowdown(fraction: float) -> str:
    """`0.34` is `34 %`, `1.5` is `2.5×`."""
    return f"{significant(100 * fraction, 2)} %" if fraction <= USELESS else f"{significant(1 + fraction, 2)}×"


def spread(sd: float) -> str:
    """A standard deviation of logarithms: `0.19` is `19 %`, `1.2` is `× or ÷ 3.3`."""
    return f"{significant(100 * sd, 2)} %" if sd < 1 else f"× or ÷ {significant(math.exp(sd), 2)}"


def interval(cell: dict[str, Any]) -> str:
    """`1.012 [0.981, 1.044]`: odd rounds ÷ even rounds."""
    value, low, high = (
        f"{cell[name]:.3f}" if 0.1 < cell[name] < 10 else f"{cell[name]:.2g}"
        for name in ("ratio", "ratio_low", "ratio_high")
    )
    return f"{value} [{low}, {high}]"


def ceilings_in_words(ceilings: dict[str, Any]) -> str:
    """`copies 4.02 TB/s, bfloat16 745 TFLOP/s, a launch 4.1 µs, a graph replay 6.2 µs`."""
    parts = []
    if (speed := ceilings.get("copy_bytes_per_s")) is not None:
        parts.append(f"copies {significant(speed / 1e12, 3)} TB/s")
    for dtype, speed in (ceilings.get("flops_per_s") or {}).items():
        if speed is not None:
            parts.append(f"{dtype} {significant(speed / 1e12, 3)} TFLOP/s")
    for key, name in (("launch_ms", "a launch"), ("graph_replay_ms", "a graph replay")):
        if (ms := ceilings.get(key)) is not None:
            parts.append(f"{name} {significant(1000 * ms, 2)} µs")
    return ", ".join(parts)


def table(noise: dict[str, Any]) -> Table:
    """One row a cell."""
    drawn = Table(header_style="bold", pad_edge=False, box=None)
    for column, justify in (
        ("cell", "left"),
        ("kind", "left"),
        ("trials", "right"),
        ("median", "right"),
        ("spread between processes", "right"),
        ("odd ÷ even rounds", "right"),
    ):
        drawn.add_column(column, justify=justify, overflow="fold")
    for kind in KINDS:
        for cell in noise[kind]["cells"] if noise[kind] else ():
            drawn.add_row(escape(cell["cell"]), words(noise, kind).removesuffix(" cells"), *figures(cell))
    return drawn


def figures(cell: dict[str, Any]) -> list[str]:
    if cell["sd"] is None:
        statuses = ", ".join(f"{number} {status}" for status, number in cell["statuses"].items())
        return [str(cell["trials"]), "—", statuses or "not run", "—"]
    what = cell["metric"].removesuffix("_ms")
    median = f"{what} {significant(cell['median_ms'], 3)} ms"
    return [str(cell["trials"]), median, spread(cell["sd"]), interval(cell)]
