"""The answer first: which mode is fastest where, how each mode does over all models, and on what machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from effbench.cell import Status
from effbench.comparison.verdicts import Verdict
from effbench.environments import SOFTWARE
from effbench.labels import ABSENT, LabelledRow
from effbench.metrics import METRICS
from effbench.report.colors import glyph_of
from effbench.report.mode_scores import NO_INTERVAL, ModeSummary, severity, share_bounds
from effbench.stats.intervals import ModeScore
from effbench.table import Column, Shown, Table

if TYPE_CHECKING:
    from effbench.report.data import Changes, DeviceSweep
    from effbench.report.tables import SpeedupTable

#: Changes that a reader takes in at a glance.
MOST_CHANGES = 10


def count_statuses(rows: Iterable[LabelledRow]) -> dict[str, int]:
    """Return status -> results, the worst first."""
    found = Counter(str(row.source["status"]) for row in rows)
    return {status: found[status] for status in sorted(found, key=severity)}


def worst_first(rows: Iterable[LabelledRow]) -> list[LabelledRow]:
    """Return the results that are not ok."""
    bad = (row for row in rows if row.source["status"] != Status.OK)
    return sorted(bad, key=lambda row: severity(row.source["status"]))


def headline(table: SpeedupTable, modes: Sequence[ModeSummary]) -> str:
    """Return which mode wins most points (model × batch size), among those with at least two ok modes."""
    if not any(mode.score.passed for mode in modes):
        return "No result of this sweep is ok."
    if len({mode.mode for mode in modes}) < 2:
        return f"Only the mode {modes[0].mode} was run: there is nothing to compare it with."
    rows = [row for row in table.rows if row.compares]
    if not rows:
        return "At no point (model × batch size) are two modes ok, so there is nothing to compare."
    wins = Counter(row.winner for row in rows)
    ties = wins.pop(None, 0)
    points = f"{len(rows)} point{'s' * (len(rows) != 1)} (model × batch size)"
    if not wins:
        return f"No significant winner in {ties} of {points}."
    means = {mode.mode: mode for mode in modes}
    best = max(wins, key=lambda mode: (wins[mode], means[mode].score.value or 0))
    open_points = f"; no significant winner in {ties}" if ties else ""
    sentence = f"{best} is the fastest mode in {wins[best]} of {points}{open_points}."
    if means[best].group or not means[best].score.clear:
        return sentence
    return f"{sentence} Its geometric-mean speedup is {means[best].speedup_text}."


def modes_table(modes: Sequence[ModeSummary]) -> Table:
    """Return each mode with its figures over all cells; below each figure its interval or what is known instead."""
    columns = [
        Column("mode"),
        Column("speedup", "geometric-mean speedup (×)", numeric=True),
        Column("pass_rate", "pass rate", numeric=True),
        Column("not_ok", "not ok"),
        Column("memory_ratio", "memory ratio (×)", numeric=True),
        Column("compile_cold_s", "compile, cold (s, median)", numeric=True),
    ]
    rows = []
    for one in modes:
        score = one.score
        words = [one.interval or (NO_INTERVAL if score.averaged and score.low is None else "")]
        words += [f"of {score.averaged}"] if score.averaged < score.passed else []
        hint = "" if score.clear else f"measured {METRICS['speedup'].format(score.value)}"
        passed = score.passed / score.total
        (ratio, ratios), (seconds, interval) = one.memory, one.compiled
        cells = (
            Shown(one.mode, one.mode, "mode", one.group, glyph=glyph_of(one.mode)),
            Shown(score.value, one.speedup_text, "strong", ", ".join(filter(None, words)), hint=hint),
            Shown(passed, f"{100 * passed:.0f} %", sub=f"{score.passed} of {score.total} · {percents(score)}"),
            Shown(one.not_ok, one.not_ok or ABSENT, "status" if one.not_ok else "absent"),
            Shown(ratio, METRICS["memory_ratio"].format(ratio), sub=ratios),
            Shown(seconds, METRICS["compile_cold_s"].format(seconds), sub=interval),
        )
        rows.append(cells)
    return Table.of(columns, rows, "Each mode over all models and batch sizes")


def percents(score: ModeScore) -> str:
    """Return the interval of the pass rate: `92–98 %`, of thousands `99.6–99.8 %`."""
    low, high = share_bounds(score.passed, score.total)
    digits = 0 if high - low > 0.02 else 1
    return f"{100 * low:.{digits}f}–{100 * high:.{digits}f} %"


def environment_line(device_sweep: DeviceSweep) -> str:
    """Return machine and software on one line."""
    parts = [device_sweep.hardware]
    for key in ("driver_version", "cuda_version", "torch_version", "triton_version", "python"):
        if found := {str(environment[key]) for environment in device_sweep.environments if environment.get(key)}:
            parts.append(f"{SOFTWARE[key]} {' and '.join(sorted(found))}")
    return " · ".join(parts)


def sure_changes(changes: Changes) -> list[Any]:
    """Return what surely differs from the sweep before; an open question is only counted."""
    return [one for one in changes.compared.changes if one.verdict not in (Verdict.SAME, Verdict.AMBIGUOUS)]
