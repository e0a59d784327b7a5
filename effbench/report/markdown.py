"""The report as Markdown, for a pull request or a job's summary: the answer, each mode, the speedups, what failed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from effbench.metrics import METRICS
from effbench.report import summary
from effbench.report.site.changed import changed
from effbench.report.site.material import Subject
from effbench.report.site.pages.index import environment_line, not_ok
from effbench.report.speedup_table import speedup_table
from effbench.table import markdown_text as escape

HEADLINES = (
    "In brackets 95 % intervals: of the speedup over these very results, of the others over cells like these; "
    "where that cannot be known, what there is instead."
)


def report(subjects: Iterable[Subject]) -> str:
    """A section for each sweep and hardware."""
    sections = [section(subject) for subject in subjects]
    return "\n".join(sections) if sections else "There is no result yet.\n"


def section(subject: Subject) -> str:
    tidy = subject.tidy
    best = summary.fastest(tidy, subject.baseline_mode)
    modes = summary.by_mode(tidy)
    counted = summary.counts(tidy)
    lead = summary.lead(best, modes)
    bad = ", ".join(f"{number} {status}" for status, number in counted.by_status.items() if status != "ok")
    lines = [f"## {escape(subject.name)} on {escape(subject.hardware)}", ""]
    if lead and counted.ok:
        lines += [(f"**{escape(lead.series)}** " if lead.wins else "") + lead.sentence, ""]
    lines += [f"{counted.ok} of {counted.total} results ok{f'; {escape(bad)}' if bad else ''}.", ""]
    state = subject.sweep.get("state") or "completed"
    waiting = len(subject.unmeasured)
    if state != "completed" or waiting:
        said = "is still running" if state == "running" else f"is {state}"
        lines += [f"**This sweep {escape(said)}: {waiting} planned cells have no result.**", ""]
    lines += table(
        ["mode", "speedup (×)", "pass rate", "memory ratio (×)", "compile, cold"],
        [mode_line(row) for row in modes.to_dict("records")],
        numeric=4,
    )
    lines += ["", HEADLINES]
    speedups = speedup_table(subject.rows, "speedup", subject.baseline_mode)
    lines += ["", speedups.render("markdown")]
    legend = "; ".join(speedups.legend("bold:"))
    lines += [f"× against {escape(subject.baseline_mode)}, whose column shows its latency; {legend}."]
    failures = not_ok(tidy, most=20)
    if failures["rows"]:
        lines += ["", "### Not ok", ""]
        lines += [
            f"- {escape(row['status'])}: {escape(row['case'])} bs {row['bs']} {escape(row['series'])}: "
            f"{escape((row['reason'] or 'no reason recorded')[:300])}"
            for row in failures["rows"]
        ]
        lines += [f"- and {failures['more']} more"] if failures["more"] else []
    lines += since(subject)
    return "\n".join([*lines, "", f"<sub>{escape(environment_line(subject))}</sub>", ""])


def since(subject: Subject) -> list[str]:
    """What changed since the sweep before; nothing where there is none."""
    found = changed(subject.changes)
    if found["previous"] is None:
        return []
    previous = found["previous"]
    name = previous["name"] or previous["label"] or previous["id"]
    lines = ["", f"### Since sweep {escape(str(name))}", ""]
    if found["why"]:
        return [*lines, f"The two cannot be compared: {escape(found['why'])}"]
    lines += [", ".join(f"{number} {verdict}" for verdict, number in found["counts"].items()) + "."]
    if found["rows"]:
        headings = ["verdict", "cell", "metric", "before", "after", "after ÷ before"]
        names = ("word", "cell", "metric", "before", "after", "ratio")
        lines += ["", *table(headings, [[row[name] or "—" for name in names] for row in found["rows"]], numeric=3)]
    if found["more"]:
        lines += ["", f"{found['more']} more: `{found['command']}`"]
    return lines


def mode_line(row: dict[str, Any]) -> list[str]:
    notes = summary.notes(row)
    name = f"{row['series']} {row['phase']}".strip()
    texts = {key: METRICS[key].format(row[key]) for key in ("speedup", "memory_ratio", "compile_cold_s")}
    texts["speedup"] = row["speedup_text"]
    texts["pass_rate"] = f"{row['ok']} of {row['results']}"
    shown = ("speedup", "pass_rate", "memory_ratio", "compile_cold_s")
    return [name, *(f"{texts[key]} ({notes[key]})" if notes[key] else texts[key] for key in shown)]


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], numeric: int) -> list[str]:
    """Lines of a table whose last `numeric` columns are aligned as numbers."""
    rule = ["---"] * (len(headings) - numeric) + ["---:"] * numeric
    return [f"| {' | '.join(line)} |" for line in (headings, rule, *(list(map(escape, row)) for row in rows))]
