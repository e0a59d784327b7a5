"""Environments: machines and software seen, each in full, and two of them side by side."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from effbench.environments import hardware_of
from effbench.labels import ABSENT, flatten
from effbench.metrics import format_bytes, significant
from effbench.report.data import ReportData
from effbench.report.site.page import GRIDS, Page, PageFolder
from effbench.table import Column, Shown, Table

#: Columns of `environment` -> their titles, by the part that they belong to.
MACHINE = {"gpu_name": "GPU", "gpu_memory_bytes": "GPU memory", "cpu_name": "CPU", "platform": "platform"}
SOFTWARE = {"driver_version": "driver", "cuda_version": "CUDA", "torch_version": "torch", "triton_version": "triton",
            "python": "Python"}  # fmt: skip
#: Ends of names of facts that tell their unit -> (factor, unit).
UNITS = {"_bytes_per_s": (1e-12, "TB/s"), "_ms": (1.0, "ms"), "_s": (1.0, "s"), "_mhz": (1.0, "MHz"), "_w": (1.0, "W")}


@dataclass(frozen=True)
class SeenEnvironment:
    """`name` tells it from the others; `sweeps`: ids of those that ran in it, oldest first."""

    id: str
    name: str
    row: Mapping[str, Any]
    sweeps: Sequence[str]
    calibration: Mapping[str, Any]


def context(folder: PageFolder) -> Mapping[str, Any]:
    seen = seen_environments(folder.report)
    sources = [folder.grid(f"facts-{number}", facts_table(one)) for number, one in enumerate(seen)]
    return {
        "environments": list(zip(seen, sources, strict=True)),
        "grid": folder.grid("all", all_table(seen, folder.report)) if seen else None,
    }


def seen_environments(report: ReportData) -> list[SeenEnvironment]:
    """Return all environments, those used last first."""
    used = report.history.sweeps_of_environment if report.history else {}
    names = titles(report.environments)
    seen = [
        SeenEnvironment(
            row["id"], names[row["id"]], row, used.get(row["id"], ()), report.calibrations.get(row["id"]) or {}
        )
        for row in report.environments
    ]
    rank = {sweep["id"]: place for place, sweep in enumerate(report.sweeps)}  # newest first
    return sorted(seen, key=lambda one: min((rank.get(sweep, len(rank)) for sweep in one.sweeps), default=len(rank)))


def titles(environments: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return hardware and torch of each; if that is the same for two the start of the id as well."""
    plain = {row["id"]: f"{hardware_of(row)} · torch {row['torch_version']}" for row in environments}
    names = list(plain.values())
    return {key: f"{name} · {key[:8]}" if names.count(name) > 1 else name for key, name in plain.items()}


def all_table(seen: Sequence[SeenEnvironment], report: ReportData) -> Table:
    columns = [
        Column("hardware", filter=True),
        *(Column(name, title, filter=name != "triton_version") for name, title in SOFTWARE.items()),
        Column("first seen (UTC)"), Column("sweeps", numeric=True, help="below it the last one"),
        Column("copy", numeric=True, help="measured bandwidth of a copy on the device"),
        Column("matrix rate", numeric=True, help="measured, of matrix products; the fastest dtype, all in the details"),
        Column("noise", help="how figures of this machine spread, as `effbench doctor --calibrate` measured it"),
    ]  # fmt: skip
    sweeps = {sweep["id"]: sweep for sweep in report.sweeps}
    slugs = {one.sweep["id"]: one.slug for one in report.device_sweeps}
    rows = []
    for number, one in enumerate(seen):
        last = one.sweeps[-1] if one.sweeps else None
        named = f"last: {sweeps.get(last, {}).get('name') or last}" if last else ""
        link = f"{slugs[last]}/speedups.html" if last in slugs else ""
        hardware = hardware_of(one.row)
        rows.append([
            Shown(hardware, hardware, "", one.id[:8], f"#environment-{number}", "all that is known of it"),
            *(one.row[name] or ABSENT for name in SOFTWARE),
            Shown(None, time_text(one.row.get("first_seen_at")), "nowrap"),
            Shown(len(one.sweeps), str(len(one.sweeps)), "", named, link),
            *ceilings(one.calibration),
            "measured" if one.calibration.get("noise") else ABSENT,
        ])  # fmt: skip
    return Table.of(columns, rows, "Machines and software seen")


def ceilings(calibration: Mapping[str, Any]) -> list[Shown]:
    """Bandwidth of a copy, and the highest matrix rate with its dtype below it."""
    found = calibration.get("ceilings") or {}
    copy, rates = found.get("copy_bytes_per_s"), found.get("flops_per_s")
    known = {name: value for name, value in rates.items() if is_figure(value)} if isinstance(rates, Mapping) else {}
    best = max(known, key=lambda name: known[name]) if known else None
    return [
        Shown(copy, f"{copy / 1e12:.2f} TB/s") if is_figure(copy) else Shown(None, ABSENT),
        Shown(known[best], f"{known[best] / 1e12:.0f} TFLOP/s", sub=best) if best else Shown(None, ABSENT),
    ]


def is_figure(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def time_text(value: Any) -> str:
    return f"{value:%Y-%m-%d %H:%M}" if hasattr(value, "strftime") else str(value or ABSENT)


def facts_table(one: SeenEnvironment) -> Table:
    columns = [Column("part", filter=True), Column("fact"), Column("value", wide=True)]
    return Table.of(columns, list(facts_of(one)), f"All that is known of {one.name}")


def facts_of(one: SeenEnvironment) -> Iterator[tuple[str, str, Any]]:
    """Yield (part, name, value) of everything that is stored; the same fact has the same part and name everywhere."""
    for part, names in (("machine", MACHINE), ("software", SOFTWARE)):
        for name, title in names.items():
            yield part, title, value_shown(name, one.row[name])
    nested = {part: one.row[part] for part in ("flags", "details")}
    nested |= {part: one.calibration.get(part) for part in ("ceilings", "noise")}
    for part, values in nested.items():
        known = flatten(values) if isinstance(values, Mapping) else {} if values is None else {"": values}
        for name, value in known.items():
            yield part, name, value_shown(name, value)
    if one.calibration:
        yield "ceilings", "measured at (UTC)", time_text(one.calibration.get("measured_at"))
    yield "record", "id", one.id
    yield "record", "first seen (UTC)", time_text(one.row.get("first_seen_at"))
    yield "record", "sweeps", len(one.sweeps)


def value_shown(name: str, value: Any) -> Any:
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if is_figure(value):
        return Shown(value if abs(value) < 2**53 else str(value), figure_text(name, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def figure_text(name: str, value: float) -> str:
    """Return a figure in the unit that its name ends with."""
    if name.startswith("flops_per_s"):
        return f"{value / 1e12:.1f} TFLOP/s"
    if name.endswith("_bytes"):
        return f"{format_bytes(value)} ({value:.0f} bytes)"
    for end, (factor, unit) in UNITS.items():
        if name.endswith(end):
            return f"{significant(value * factor, 3)} {unit}"
    return str(value) if isinstance(value, int) else f"{value:.6g}"


PAGE = Page("environments", "Environments", 90, context, of_device_sweep=False, scripts=(*GRIDS, "environments.js"))
