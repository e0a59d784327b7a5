"""Environments: every fact of the machines and software seen, side by side."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from effbench.environments import SOFTWARE, hardware_of
from effbench.labels import ABSENT, flatten
from effbench.report.columns import value_text
from effbench.report.data import ReportData
from effbench.report.site.page import Page, PageFolder
from effbench.table import Column, Shown, Table

PARTS = ("environment", "flags", "details", "ceilings", "noise", "record")
CAPTION = "A column for each environment, those used last first. Filter by differs to see what changed."


def context(folder: PageFolder) -> Mapping[str, Any]:
    seen = seen_environments(folder.report)
    if not seen:
        return {"lead": "No environment is recorded yet: nothing ran.", "sections": []}
    return {"sections": [folder.table("facts", facts_table(seen, folder.report), CAPTION, linked=True)]}


def seen_environments(report: ReportData) -> list[dict[str, Any]]:
    """Return all environments, those used last first, each with its calibration, `title` (tells it from the others) and
    `sweeps` (ids of those that ran in it, oldest first)."""
    used = report.history.sweeps_of_environment if report.history else {}
    names = titles(report.environments)
    seen = [
        {**row, **(report.calibrations.get(row["id"]) or {})}
        | {"title": names[row["id"]], "sweeps": used.get(row["id"], [])}
        for row in report.environments
    ]
    rank = {sweep["id"]: place for place, sweep in enumerate(report.sweeps)}  # newest first
    return sorted(seen, key=lambda one: min((rank.get(sweep, len(rank)) for sweep in one["sweeps"]), default=len(rank)))


def titles(environments: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return hardware and torch of each; if that is the same for two the start of the id as well."""
    plain = {row["id"]: f"{hardware_of(row)} · torch {row['torch_version']}" for row in environments}
    names = list(plain.values())
    return {key: f"{name} · {key[:8]}" if names.count(name) > 1 else name for key, name in plain.items()}


def facts_table(seen: Sequence[Mapping[str, Any]], report: ReportData) -> Table:
    """Return every fact with a column for each environment."""
    names = {sweep["id"]: sweep.get("name") or sweep["id"] for sweep in report.sweeps}
    slugs = {one.sweep["id"]: one.slug for one in report.device_sweeps}
    known = [facts_of(one) | {("record", "last sweep"): last_sweep(one, names, slugs)} for one in seen]
    columns = [Column("part", filter=True), Column("fact"), Column("differs", filter=True)]
    columns += [Column(one["id"], one["title"], wide=True) for one in seen]
    rows = []
    for part, name in sorted(
        dict.fromkeys(key for facts in known for key in facts), key=lambda key: PARTS.index(key[0])
    ):
        values = [facts.get((part, name), ABSENT) for facts in known]
        rows.append([part, name, "yes" if len(set(values)) > 1 else "no", *values])
    return Table.of(columns, rows, "Machines and software seen")


def last_sweep(one: Mapping[str, Any], names: Mapping[str, str], slugs: Mapping[str, str]) -> Any:
    """Return the name of the last sweep that ran here, with a link if the site has pages about it."""
    if not one["sweeps"]:
        return ABSENT
    last = one["sweeps"][-1]
    name = names.get(last, last)
    return Shown(last, name, link=f"{slugs[last]}/speedups.html" if last in slugs else "")


def facts_of(one: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """Return (part, name) -> the shown value of everything that is stored about the machine and its software."""
    columns = {"gpu_name": "GPU", "gpu_memory_bytes": "GPU memory", **SOFTWARE}
    found = {("environment", title): shown(name, one[name]) for name, title in columns.items()}
    for part in ("flags", "details", "ceilings", "noise"):
        facts = flatten(one[part]) if isinstance(one.get(part), Mapping) else {}
        found |= {(part, name): shown(name, value) for name, value in facts.items()}
    times = {"first seen (UTC)": "first_seen_at", "calibrated (UTC)": "measured_at"}
    found |= {("record", title): time_text(one.get(name)) for title, name in times.items()}
    return found | {("record", "id"): one["id"], ("record", "sweeps"): len(one["sweeps"])}


def time_text(value: Any) -> str:
    return f"{value:%Y-%m-%d %H:%M}" if hasattr(value, "strftime") else str(value or ABSENT)


def shown(name: str, value: Any) -> Any:
    """Return a fact in the unit that its name ends with, with the exact value to copy."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        for start, unit in (("flops_per_s", "TFLOP/s"), ("copy_bytes_per_s", "TB/s")):
            if name.startswith(start):
                return Shown(value, f"{value / 1e12:.4g} {unit}")
        return Shown(value if abs(value) < 2**53 else str(value), value_text(name, value))
    return value_text(name, value if value is None or isinstance(value, str | bool) else json.dumps(value, default=str))


PAGE = Page("environments", "Environments", 90, context, of_device_sweep=False)
