"""Environments: machines and software seen, each in full, and two of them side by side."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from effbench.analysis.swept import flatten
from effbench.metrics import format_bytes, significant
from effbench.report.site.grid import Column, Grid, cell
from effbench.report.site.material import Material
from effbench.report.site.pages.base import Page, PageFolder

ABSENT = "—"
#: Columns of `environment` -> what they are called, by the part that they stand under.
MACHINE = {"gpu_name": "GPU", "gpu_memory_bytes": "GPU memory", "cpu_name": "CPU", "platform": "platform"}
SOFTWARE = {"driver_version": "driver", "cuda_version": "CUDA", "torch_version": "torch", "triton_version": "triton",
            "python": "Python"}  # fmt: skip
#: Ends of names of facts that tell their unit -> (factor, unit).
UNITS = {"_bytes_per_s": (1e-12, "TB/s"), "_ms": (1.0, "ms"), "_s": (1.0, "s"), "_mhz": (1.0, "MHz"), "_w": (1.0, "W")}


@dataclass(frozen=True)
class Place:
    """An environment: `name` tells it from the others, `sweeps` are the ids of those that ran in it, oldest first."""

    id: str
    name: str
    row: Mapping[str, Any]
    sweeps: Sequence[str]
    calibration: Mapping[str, Any] | None


def context(folder: PageFolder) -> Mapping[str, Any]:
    places = places_of(folder.material)
    sources = [folder.grid(f"facts-{number}", facts_grid(place)) for number, place in enumerate(places)]
    return {
        "places": list(zip(places, sources, strict=True)),
        "grid": folder.grid("all", all_grid(places, folder.material)) if places else None,
    }


def places_of(material: Material) -> list[Place]:
    """Those that were used last come first."""
    used = material.history.sweeps_of_environment if material.history else {}
    names = titles(material.environments)
    found = [
        Place(row["id"], names[row["id"]], row, used.get(row["id"], ()), material.calibrations.get(row["id"]))
        for row in material.environments
    ]
    rank = {sweep["id"]: place for place, sweep in enumerate(material.sweeps)}  # newest first
    return sorted(found, key=lambda place: min((rank.get(one, len(rank)) for one in place.sweeps), default=len(rank)))


def titles(environments: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Hardware and torch; where that is the same for two the start of the id as well."""
    plain = {row["id"]: f"{row['gpu_name'] or row['cpu_name']} · torch {row['torch_version']}" for row in environments}
    several = [name for name in plain.values() if list(plain.values()).count(name) > 1]
    return {key: f"{name} · {key[:8]}" if name in several else name for key, name in plain.items()}


# --- the table of all ---


def all_grid(places: Sequence[Place], material: Material) -> Grid:
    columns = [
        Column("hardware", filter=True), Column("driver", filter=True),
        Column("CUDA", filter=True), Column("torch", filter=True), Column("triton"), Column("Python", filter=True),
        Column("first seen (UTC)"), Column("sweeps", numeric=True, help="below it the last one"),
        Column("copy", numeric=True, help="measured bandwidth of a copy on the device"),
        Column("matrix rate", numeric=True, help="measured, of matrix products; the fastest dtype, all in the details"),
        Column("noise", help="how figures of this machine spread, as `effbench doctor --calibrate` measured it"),
    ]  # fmt: skip
    sweeps = {sweep["id"]: sweep for sweep in material.sweeps}
    slugs = {subject.sweep["id"]: subject.slug for subject in material.subjects}
    rows = []
    for number, place in enumerate(places):
        row = place.row
        last = place.sweeps[-1] if place.sweeps else None
        named = f"last: {sweeps.get(last, {}).get('name') or last}" if last else None
        link = f"{slugs[last]}/speedups.html" if last in slugs else None
        rows.append([
            cell(row["gpu_name"] or row["cpu_name"], link=f"#environment-{number}", sub=place.id[:8],
                 title="all that is known of it"),
            *(row[name] or ABSENT for name in SOFTWARE),
            cell(time_text(row.get("first_seen_at")), tone="nowrap"),
            cell(str(len(place.sweeps)), len(place.sweeps), sub=named, link=link),
            *ceilings_cells(place.calibration),
        ])  # fmt: skip
    return Grid("Machines and software seen", columns, rows)


def ceilings_cells(calibration: Mapping[str, Any] | None) -> list[Any]:
    ceilings = (calibration or {}).get("ceilings") or {}
    noise = (calibration or {}).get("noise")
    copy = ceilings.get("copy_bytes_per_s")
    given = ceilings.get("flops_per_s")
    rates = {name: value for name, value in (given.items() if isinstance(given, Mapping) else ()) if is_figure(value)}
    best = max(rates, key=lambda name: rates[name]) if rates else None
    return [
        cell(f"{copy / 1e12:.2f} TB/s", copy) if is_figure(copy) else cell(ABSENT),
        cell(f"{rates[best] / 1e12:.0f} TFLOP/s", rates[best], sub=best) if best else cell(ABSENT),
        "measured" if noise else ABSENT,
    ]


def is_figure(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def time_text(value: Any) -> str:
    return f"{value:%Y-%m-%d %H:%M}" if hasattr(value, "strftime") else str(value or ABSENT)


# --- one in full ---


def facts_grid(place: Place) -> Grid:
    columns = [Column("part", filter=True), Column("fact"), Column("value", wide=True)]
    return Grid(f"All that is known of {place.name}", columns, [list(fact) for fact in facts_of(place)])


def facts_of(place: Place) -> Iterator[tuple[str, str, Any]]:
    """(part, name, text or cell) of everything that is stored; the same fact has the same part and name everywhere."""
    row = place.row
    for name, title in MACHINE.items():
        yield "machine", title, value_cell(name, row[name])
    for name, title in SOFTWARE.items():
        yield "software", title, value_cell(name, row[name])
    for part in ("flags", "details"):
        for name, value in flat(row[part]):
            yield part, name, value_cell(name, value)
    calibration = place.calibration or {}
    for part in ("ceilings", "noise"):
        for name, value in flat(calibration.get(part)):
            yield part, name, value_cell(name, value)
    if calibration:
        yield "ceilings", "measured at (UTC)", time_text(calibration.get("measured_at"))
    yield "record", "id", place.id
    yield "record", "first seen (UTC)", time_text(row.get("first_seen_at"))
    yield "record", "sweeps", len(place.sweeps)


def flat(value: Any) -> Iterator[tuple[str, Any]]:
    """Nested mappings by dotted names, in their order."""
    if isinstance(value, Mapping):
        yield from flatten(value).items()
    elif value is not None:
        yield "", value


def value_cell(name: str, value: Any) -> Any:
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if is_figure(value):
        return cell(figure_text(name, value), value if abs(value) < 2**53 else str(value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def figure_text(name: str, value: float) -> str:
    """By what its name says of its unit."""
    if name.startswith("flops_per_s"):
        return f"{value / 1e12:.1f} TFLOP/s"
    if name.endswith("_bytes"):
        return f"{format_bytes(value)} ({value:.0f} bytes)"
    for end, (factor, unit) in UNITS.items():
        if name.endswith(end):
            return f"{significant(value * factor, 3)} {unit}"
    return str(value) if isinstance(value, int) else f"{value:.6g}"


PAGE = Page(
    "environments", "Environments", 90, context, of_subject=False,
    scripts=("datatables.js", "grid.js", "environments.js"),
)  # fmt: skip
