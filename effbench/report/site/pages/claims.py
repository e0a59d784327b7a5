"""Published claims: what is written about CUDA graphs and torch.compile, and what measuring says of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from effbench.report.claims import ABSENT, Entry
from effbench.report.data import DeviceSweep
from effbench.report.site.page import GRIDS, Page, PageFolder
from effbench.store.decisions import ClaimVerdict
from effbench.table import Column, Shown, Table

#: Verdict -> a sign beside the word (not by colour alone) and a class of the style sheet.
LOOKS = {
    ClaimVerdict.CONFIRMED: ("✓", "good"), ClaimVerdict.REFUTED: ("✗", "status"), ClaimVerdict.DEPENDS: ("◐", None),
    ClaimVerdict.UNDECIDED: ("?", None), ClaimVerdict.NOT_MEASURABLE: ("–", "absent"),
    ClaimVerdict.NOT_MEASURED: ("·", "absent"),
}  # fmt: skip
NOT_HERE = "not measured"


def context(folder: PageFolder) -> Mapping[str, Any]:
    entries = folder.report.claims
    machines = list(dict.fromkeys(entry.machine for entry in entries if entry.machine))
    return {
        "claims": len({(entry.experiment, entry.claim.id) for entry in entries}),
        "counts": counts(entries),
        "machines": machines,
        "looks": {str(verdict): look for verdict, look in LOOKS.items()},
        "grid": folder.grid("ledger", grid_of(entries, folder.report.device_sweeps)) if entries else None,
    }


def counts(entries: Sequence[Entry]) -> dict[str, int]:
    """Verdict -> entries (a claim on a machine), in the order of `ClaimVerdict`; unknown ones come last."""
    found = Counter(entry.verdict for entry in entries)
    return {name: found[name] for name in [*map(str, ClaimVerdict), *found] if found[name]}


def grid_of(entries: Sequence[Entry], device_sweeps: Sequence[DeviceSweep]) -> Table:
    columns = [
        Column("claim", help="its id, in docs/claims.md and the experiment"),
        Column("statement", wide=True),
        Column("verdict", filter=True),
        Column("measured", numeric=True, help="the figure that the verdict rests on, with its 95 % interval"),
        Column("published", wide=True, help="what others published, measured on their machines: not by effbench"),
        Column("why", wide=True),
        Column("experiment", filter=True),
        Column("machine", filter=True),
    ]
    pages = {one.sweep["id"]: one for one in device_sweeps}
    return Table.of(columns, [row_of(entry, pages) for entry in entries], "Claims with their verdicts")


def row_of(entry: Entry, pages: Mapping[str, DeviceSweep]) -> list[Any]:
    sign, tone = LOOKS.get(entry.verdict, ("·", None))
    claim = entry.claim
    return [
        claim.id,
        claim.text,
        # plain text: what a filter offers
        Shown(entry.verdict, entry.verdict, tone or "", glyph=("inherit", sign)),
        measured_cell(entry),
        claim.published or ABSENT,
        entry.reason,
        experiment_cell(entry, pages),
        Shown(
            None,
            entry.machine or NOT_HERE,
            sub=f"judged {entry.judged_at[:16].replace('T', ' ')} UTC" if entry.judged_at else "",
        ),
    ]


def measured_cell(entry: Entry) -> Shown:
    text, bracket, interval = entry.figure.partition(" [")
    value = entry.measured.get("value")
    finite = isinstance(value, int | float) and math.isfinite(value)
    return Shown(value if finite else None, text, sub=f"[{interval}" if bracket else "")


def experiment_cell(entry: Entry, pages: Mapping[str, DeviceSweep]) -> Shown:
    """With the sweeps that the verdict rests on; a link where this site has pages of one."""
    rests_on = [str(one) for one in entry.measured.get("sweeps") or ()]
    if not rests_on:
        return Shown(None, entry.experiment, sub="evidence" if entry.measured.get("evidence") else "")
    here = next((one for one in rests_on if one in pages), None)
    more = f" and {len(rests_on) - 1} more" if len(rests_on) > 1 else ""
    return Shown(
        None,
        entry.experiment,
        sub=f"sweep {here or rests_on[-1]}{more}",
        link=f"{pages[here].slug}/speedups.html" if here else "",
        hint="the sweep that it rests on" if here else "",
    )


PAGE = Page("claims", "Claims", 70, context, of_device_sweep=False, scripts=GRIDS)
