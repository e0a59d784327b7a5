"""Bring the tables of measured results in line with results/reference/: `python docs/reference_tables.py` (`--check`
only looks).

A table stands between `<!-- reference NAME -->` and `<!-- end -->` in README.md, docs/reference.md and docs/claims.md.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from effbench.labels import label_rows  # noqa: E402
from effbench.metrics import METRICS  # noqa: E402
from effbench.report.claims import figure_text  # noqa: E402
from effbench.report.tables import SpeedupTable, speedup_table  # noqa: E402

PAGES = (ROOT / "README.md", ROOT / "docs" / "reference.md", ROOT / "docs" / "claims.md")
ROWS = ROOT / "results" / "reference" / "h200.jsonl"
CLAIMS = ROOT / "results" / "reference" / "claims-h200.json"
CLAIM_ROWS = ROOT / "results" / "reference" / "claims-rows-h200.jsonl"
TABLE = re.compile(r"<!-- reference (\S+) -->\n(.*?)<!-- end -->", re.S)


def rows() -> list[dict]:
    return [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]


def without_intervals(table: SpeedupTable) -> SpeedupTable:
    """For a narrow table: `n.s.` stays if the interval includes 1."""
    for row in table.rows:
        for entry in row.cells.values():
            entry.text = re.sub(r" \([^)]*\)", "", entry.text)
    return table


def latency_and_period() -> str:
    """Microseconds of one call as a request sees it, and back to back."""
    lines = ["| model | bs | mode | latency | period | latency − period |", "| --- | ---: | --- | ---: | ---: | ---: |"]
    for row in rows():
        if (row["model"], row["bs"]) in {("mlp", 8), ("lin3", 8), ("attention", 8)}:
            ms = METRICS["latency_ms"].format
            lines.append(
                f"| {row['model']} | {row['bs']} | {row['mode']} | {ms(row['latency_ms'])} | {ms(row['period_ms'])} "
                f"| {ms(max(0.0, row['latency_ms'] - row['period_ms']))} |"
            )
    return "\n".join(lines) + "\n"


def claims() -> str:
    """The claims as they were exported, with the published figures that stand beside ours."""
    lines = ["| claim | statement | verdict | measured | why | also |", "| --- | --- | --- | --- | --- | --- |"]
    found = json.loads(CLAIMS.read_text(encoding="utf-8"))
    for row in found:
        measured = row["measured"]
        figure = figure_text(
            measured.get("value"), measured.get("low"), measured.get("high"), measured.get("unit") or ""
        )
        also = "; ".join(f"{name}: {shown(value)}" for name, value in measured.get("also", {}).items())
        texts = (row["claim"], row["statement"], row["verdict"], figure, row["reason"], also)
        lines.append("| " + " | ".join(" ".join(text.split()).replace("|", "\\|") for text in texts) + " |")
    lines += ["", "Published figures, measured by others on other machines, never part of ours:", ""]
    lines += [f"- {row['claim']}: {row['published']}" for row in found if row["published"]]
    return "\n".join(lines) + "\n"


def shown(value: Any) -> str:
    """A fact of a check, for a person."""
    if isinstance(value, dict):
        return figure_text(value.get("value"), value.get("low"), value.get("high"), "")
    if isinstance(value, list):
        return ", ".join(map(shown, value)) or "none"
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return figure_text(value, None, None, "") if isinstance(value, int | float) else str(value)


MAKERS: dict[str, Callable[[], str]] = {
    "speedup": lambda: speedup_table(label_rows(rows())).render("markdown"),
    "speedup-short": lambda: without_intervals(speedup_table(label_rows(rows()))).render("markdown"),
    "compile": lambda: speedup_table(label_rows(rows()), "compile_cold_s").render("markdown"),
    "memory": lambda: speedup_table(label_rows(rows()), "peak_reserved_bytes").render("markdown"),
    "latency-and-period": latency_and_period,
    "claims": claims,
}


def refreshed(text: str) -> str:
    return TABLE.sub(lambda found: f"<!-- reference {found[1]} -->\n{MAKERS[found[1]]()}<!-- end -->", text)


def main() -> None:
    stale = [page for page in PAGES if refreshed(page.read_text(encoding="utf-8")) != page.read_text(encoding="utf-8")]
    for page in stale:
        if "--check" not in sys.argv[1:]:
            page.write_text(refreshed(page.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{len(stale)} pages {'are stale' if '--check' in sys.argv[1:] else 'rewritten'}")
    sys.exit(1 if stale and "--check" in sys.argv[1:] else 0)


if __name__ == "__main__":
    main()
