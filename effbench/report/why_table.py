"""What bounds each cell, as a table of texts: the terminal, the page and `--format` draw the same one."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from effbench.analysis.swept import SweptRow, plain_rows, swept_rows
from effbench.analysis.why import why
from effbench.metrics import METRICS
from effbench.printable import one_line

#: shown beside the sentence, which has the rest
SHOWN = ("latency_ms", "period_ms")
FIGURES = ("latency_ms", "period_ms", "gpu_busy_ms", "enqueue_ms", "kernels")
NOT_PROFILED = "not profiled: no CUDA, protocol.profile=false, or it failed (profile_failed in trial.extra)"


@dataclass(frozen=True)
class WhyTable:
    """Texts under headings, a row a cell; `numeric[i]` says that column i is aligned as numbers; `data` is exact."""

    headings: list[str]
    rows: list[list[str]]
    numeric: list[bool]
    data: list[dict[str, Any]]

    def render(self, how: str) -> str:
        """`markdown`, `csv` or `json`."""
        if how == "json":
            return json.dumps(self.data, indent=2)
        if how == "csv":
            text = io.StringIO()
            writer = csv.DictWriter(text, list(self.data[0]) if self.data else self.headings)
            writer.writeheader()
            writer.writerows(self.data)
            return text.getvalue()
        rule = ["---:" if numeric else "---" for numeric in self.numeric]
        heads, *rows = ([one_line(cell).replace("|", "\\|") for cell in row] for row in (self.headings, *self.rows))
        return "".join(f"| {' | '.join(line)} |\n" for line in (heads, rule, *rows))


def why_table(rows_or_frame: Any) -> WhyTable:
    """Of rows of the view `results` of one sweep."""
    return table_of(swept_rows(plain_rows(rows_or_frame)))


def table_of(swept: Sequence[SweptRow]) -> WhyTable:
    """The same of rows that are labelled already."""
    names = list(dict.fromkeys(name for row in swept for name in row.labels))
    headings = [*names, "mode", *(METRICS[name].title for name in SHOWN), "bound", "why"]
    rows, data = [], []
    for row in swept:
        found = row.source
        ok = found["status"] == "ok"
        reason = why(found) if ok else None
        said = reason or (NOT_PROFILED if ok else f"{found['status']}: {found['reason'] or 'no reason recorded'}")
        labels = [str(row.labels.get(name, "")) for name in names]
        figures = [METRICS[name].format(found.get(name)) if ok else "—" for name in SHOWN]
        rows.append([*labels, row.mode, *figures, (ok and found.get("bound")) or "—", said])
        data.append(
            dict(zip(names, labels, strict=True))
            | {"mode": row.mode, "status": found["status"]}
            | {name: found.get(name) for name in (*FIGURES, "gpu_idle_fraction", "roofline_fraction", "bound")}
            | {"why": said}
        )
    numeric = [name == "bs" for name in names] + [False] + [True] * len(SHOWN) + [False, False]
    return WhyTable(headings, rows, numeric, data)
