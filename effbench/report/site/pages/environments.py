"""Environments: all recorded facts of machines and software, side by side."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from effbench.environments import SOFTWARE, hardware_of
from effbench.labels import ABSENT, flatten
from effbench.report.columns import value_text
from effbench.report.data import ReportData
from effbench.report.site.page import HeldSweep, Page, PageFolder
from effbench.table import Column, Shown, Table

PARTS = ("environment", "flags", "details", "ceilings", "noise", "record")
CAPTION = (
    "One column per environment, the most recently used first. The filter differs=yes shows what"
    " changed."
)


def context(folder: PageFolder) -> Mapping[str, Any]:
    seen = seen_environments(folder.report)
    if not seen:
        return {"lead": "No environment is recorded yet: nothing ran.", "sections": []}
    caption = CAPTION if len(seen) > 1 else ""
    return {
        "sections": [
            folder.table(
                "facts", facts_table(seen, folder.report, folder.held), caption, linked=True
            )
        ]
    }


def seen_environments(report: ReportData) -> list[dict[str, Any]]:
    """Return all environments, the most recently used first, each with its calibration, a unique
    `title` and `sweeps` (ids, oldest first)."""
    used = report.history.sweeps_of_environment if report.history else {}
    names = titles(report.environments)
    seen = [
        {**row, **(report.calibrations.get(row["id"]) or {})}
        | {"title": names[row["id"]], "sweeps": used.get(row["id"], [])}
        for row in report.environments
    ]
    rank = {sweep["id"]: place for place, sweep in enumerate(report.sweeps)}  # newest first
    return sorted(
        seen,
        key=lambda row: min(
            (rank.get(sweep, len(rank)) for sweep in row["sweeps"]), default=len(rank)
        ),
    )


def titles(environments: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the hardware and torch version of each environment, with the start of its id if others
    share them."""
    plain = {
        row["id"]: f"{hardware_of(row)} · torch {row['torch_version']}" for row in environments
    }
    names = list(plain.values())
    return {
        key: f"{name} · {key[:8]}" if names.count(name) > 1 else name for key, name in plain.items()
    }


def facts_table(
    seen: Sequence[Mapping[str, Any]], report: ReportData, held: Sequence[HeldSweep] = ()
) -> Table:
    """Return a table of all facts, with one column per environment. `held`: the device sweeps with
    pages; without it those of the overview."""
    held = held or [HeldSweep.of(device_sweep) for device_sweep in report.device_sweeps]
    names = {sweep["id"]: sweep.get("name") or sweep["id"] for sweep in report.sweeps}
    slugs = {(sweep.sweep_id, sweep.hardware): sweep.slug for sweep in held}
    known = [
        facts_of(row) | {("record", "last sweep"): last_sweep(row, names, slugs)} for row in seen
    ]
    columns = [Column("part", filter=True), Column("fact"), Column("differs", filter=True)]
    columns += [Column(row["id"], row["title"], wide=True) for row in seen]
    rows = []
    facts_by_part = dict.fromkeys(key for facts in known for key in facts)
    for part, name in sorted(facts_by_part, key=lambda key: PARTS.index(key[0])):
        values = [facts.get((part, name), ABSENT) for facts in known]
        rows.append([part, name, "yes" if len(set(values)) > 1 else "no", *values])
    return Table.of(columns, rows, "Machines and software")


def last_sweep(
    row: Mapping[str, Any], names: Mapping[str, str], slugs: Mapping[tuple[str, str], str]
) -> Any:
    """Return the name of an environment's last sweep, linked if the site has its pages for this
    hardware."""
    if not row["sweeps"]:
        return ABSENT
    last = row["sweeps"][-1]
    name = names.get(last, last)
    slug = slugs.get((last, hardware_of(row)))
    return Shown(last, name, link=f"{slug}/speedups.html" if slug else "")


def facts_of(row: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """Return (part, name) -> displayed value of every stored fact about the machine and its
    software."""
    columns = {"gpu_name": "GPU", "gpu_memory_bytes": "GPU memory", **SOFTWARE}
    known = {("environment", title): shown(name, row[name]) for name, title in columns.items()}
    for part in ("flags", "details", "ceilings", "noise"):
        facts = flatten(row[part]) if isinstance(row.get(part), Mapping) else {}
        known |= {(part, name): shown(name, value) for name, value in facts.items()}
    times = {"first seen (UTC)": "first_seen_at", "calibrated (UTC)": "measured_at"}
    for title, name in times.items():
        known["record", title] = f"{row[name]:%Y-%m-%d %H:%M}" if row.get(name) else ABSENT
    return known | {("record", "id"): row["id"], ("record", "sweeps"): len(row["sweeps"])}


def shown(name: str, value: Any) -> Any:
    """Return a fact with the unit of its name's suffix, and the exact value for copying."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        for start, unit in (("flops_per_s", "TFLOP/s"), ("copy_bytes_per_s", "TB/s")):
            if name.startswith(start):
                return Shown(value, f"{value / 1e12:.4g} {unit}")
        return Shown(value if abs(value) < 2**53 else str(value), value_text(name, value))
    return value_text(
        name,
        value if value is None or isinstance(value, str | bool) else json.dumps(value, default=str),
    )


PAGE = Page("environments", "Environments", context, of_device_sweep=False)
