"""The answer first: how many results are good, which mode is fastest where, and how each mode does over all models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from effbench.cell import SEVERITY, Status
from effbench.comparison.verdicts import Verdict
from effbench.labels import ABSENT, LabelledRow, mode_order
from effbench.metrics import METRICS, ratio_text
from effbench.report import comparison
from effbench.report.colors import glyph_of
from effbench.report.data import Changes, DeviceSweep
from effbench.report.mode_scores import (
    UNCLEAR,
    CellFigure,
    interval_text,
    least,
    mean_ratio,
    median,
    score,
    share,
)
from effbench.report.tables import NO_INTERVAL, speedup_text
from effbench.stats.intervals import ModeScore
from effbench.table import Column, Shown, Table

#: Changes that a reader takes in at a glance.
MOST_CHANGES = 10
TONES = {Verdict.BROKEN: "status", Verdict.SLOWER: "status", Verdict.MISSING: "status", Verdict.AMBIGUOUS: "unsure"}
_SEVERITY = {str(status): place for place, status in enumerate(SEVERITY)}


def severity(status: Any) -> int:
    """The place of a status among all, the worst first; an unknown one comes before all."""
    return _SEVERITY.get(str(status), -1)


def count_statuses(rows: Iterable[LabelledRow]) -> dict[str, int]:
    """Return status -> results, the worst first."""
    found = Counter(str(row.source["status"]) for row in rows)
    known = [status for status in _SEVERITY if status in found]
    return {name: found[name] for name in [*known, *(name for name, _ in found.most_common() if name not in known)]}


def worst_first(rows: Iterable[LabelledRow]) -> list[LabelledRow]:
    """Return the results that are not ok."""
    bad = (row for row in rows if row.source["status"] != Status.OK)
    return sorted(bad, key=lambda row: severity(row.source["status"]))


# --- the fastest mode of each point ---


@dataclass(frozen=True)
class Fastest:
    """The ok mode with the least latency at one case and bs. `tied`: modes that it is not significantly faster than;
    `others`: how many other ok modes there are.
    """

    case: str
    bs: int
    series: str
    speedup: float | None
    speedup_text: str
    latency_ms: float
    tied: tuple[str, ...]
    others: int
    baseline: bool = False

    @property
    def wins(self) -> bool:
        """Whether it may be called the fastest."""
        return bool(self.others) and not self.tied


def fastest(rows: Sequence[LabelledRow], baseline_mode: str = "eager") -> dict[str, dict[int, Fastest | None]]:
    """Return case → bs → the fastest ok mode, None if none is ok; both in the order of the rows."""
    points: dict[tuple[str, int], list[LabelledRow]] = {(row.case, row.labels["bs"]): [] for row in rows}
    for row in _by_mode(rows):
        if row.source["status"] == Status.OK and (row.source["latency_ms"] or 0) > 0:
            points[row.case, row.labels["bs"]].append(row)
    found: dict[str, dict[int, Fastest | None]] = {}
    for (case, bs), ok in points.items():
        found.setdefault(case, {})[bs] = _fastest(case, bs, ok, baseline_mode) if ok else None
    return found


def _fastest(case: str, bs: int, ok: list[LabelledRow], baseline_mode: str) -> Fastest:
    place, ties = least([row.source for row in ok])
    best, source = ok[place], ok[place].source
    text = speedup_text(source["speedup"], source["speedup_ci_low"], source["speedup_ci_high"])
    tied = tuple(ok[other].mode for other in ties)
    is_baseline = best.base_mode == baseline_mode
    return Fastest(case, bs, best.mode, source["speedup"], text, source["latency_ms"], tied, len(ok) - 1, is_baseline)


def _by_mode(rows: Sequence[LabelledRow]) -> list[LabelledRow]:
    rank = {name: place for place, name in enumerate(mode_order((row.mode, row.base_mode) for row in rows))}
    return sorted(rows, key=lambda row: rank[row.mode])


# --- each mode over all points ---


@dataclass(frozen=True)
class ModeSummary:
    """A mode over all its results (model × bs and whatever else was swept), in one phase and environment: a training
    step is not averaged with a call. `phase` names them if there are several."""

    series: str
    phase: str
    score: ModeScore
    passed: CellFigure
    memory: CellFigure
    compiled: CellFigure
    not_ok: str

    @property
    def speedup_text(self) -> str:
        return METRICS["speedup"].format(self.score.value) if self.score.clear else UNCLEAR

    @cached_property
    def notes(self) -> dict[str, str]:
        """What stands next to each figure: its interval, or what is known instead."""
        found = self.score
        words = []
        if found.low is not None:
            words = [interval_text(found.low, found.high)] if found.low < found.high else []
            words = words or (["by definition"] if found.low == found.high == 1 else [])
        elif found.averaged:
            words = [NO_INTERVAL]
        words += [f"of {found.averaged}"] if found.averaged < found.passed else []
        return {
            "speedup": ", ".join(words),
            "pass_rate": percents(self.passed),
            "memory_ratio": self.memory.note("{:.2f}".format),
            "compile_cold_s": self.compiled.note(METRICS["compile_cold_s"].format).replace(" s–", "–"),
        }


def by_mode(rows: Sequence[LabelledRow]) -> list[ModeSummary]:
    """Return a summary for each mode, in canonical order, phase and environment."""
    several = len({row.source["phase"] for row in rows}) > 1
    groups: dict[tuple[str, str], list[LabelledRow]] = {}
    for row in _by_mode(rows):
        phase = f"{row.source['phase'] if several else ''} {row.where}".strip()
        groups.setdefault((row.mode, phase), []).append(row)
    found = []
    for (series, phase), own in groups.items():
        ok = [row.source for row in own if row.source["status"] == Status.OK]
        bad = count_statuses(worst_first(own))
        found.append(
            ModeSummary(
                series,
                phase,
                score(row.source for row in own),
                share(len(ok), len(own)),
                mean_ratio(source["memory_ratio"] for source in ok),
                median(source["compile_cold_s"] for source in ok),
                ", ".join(f"{number} {status}" for status, number in bad.items()) or ABSENT,
            )
        )
    return found


def modes_table(modes: Sequence[ModeSummary]) -> Table:
    """Each mode with its figures over all cells, and below each figure its interval or what is known instead."""
    columns = [
        Column("mode"), Column("speedup", "geometric-mean speedup (×)", numeric=True),
        Column("pass_rate", "pass rate", numeric=True), Column("not_ok", "not ok"),
        Column("memory_ratio", "memory ratio (×)", numeric=True),
        Column("compile_cold_s", "compile, cold (s, median)", numeric=True),
    ]  # fmt: skip
    rows = []
    for one in modes:
        passed, total = one.score.passed, one.score.total
        unclear = f"measured {METRICS['speedup'].format(one.score.value)}"
        row = {
            "mode": Shown(one.series, one.series, "mode", one.phase, glyph=glyph_of(one.series)),
            "speedup": Shown(one.score.value, one.speedup_text, "strong", hint="" if one.score.clear else unclear),
            "pass_rate": Shown(passed / total, f"{100 * passed / total:.0f} %", sub=f"{passed} of {total} · "),
            "not_ok": Shown(total - passed, one.not_ok, "absent" if passed == total else "status"),
            "memory_ratio": Shown(one.memory.value, METRICS["memory_ratio"].format(one.memory.value)),
            "compile_cold_s": Shown(one.compiled.value, METRICS["compile_cold_s"].format(one.compiled.value)),
        }
        rows.append(row | {name: row[name]._replace(sub=row[name].sub + note) for name, note in one.notes.items()})
    return Table(columns, rows, caption="Each mode over all models and batch sizes")


def percents(found: CellFigure) -> str:
    """Return the interval of a share in per cent: `92–98 %`, of thousands `99.6–99.8 %`."""
    if found.low is None:
        return ""
    digits = 0 if found.high - found.low > 0.02 else 1
    return f"{100 * found.low:.{digits}f}–{100 * found.high:.{digits}f} %"


class Lead(NamedTuple):
    """The mode that wins most points (model × batch size), among the points with at least two ok modes. `ties`: points
    without a significant winner; `series` is empty if no point has one."""

    series: str
    wins: int
    points: int
    ties: int

    @property
    def sentence(self) -> str:
        """What follows the name of the mode; without a winner a sentence of its own."""
        points = f"{self.points} {'point' if self.points == 1 else 'points'} (model × batch size)"
        if not self.points:
            return "At no point (model × batch size) are two modes ok, so there is nothing to compare."
        if not self.wins:
            return f"No significant winner in {self.ties} of {points}."
        ties = f"; no significant winner in {self.ties}" if self.ties else ""
        return f"is the fastest mode in {self.wins} of {points}{ties}."


def lead(best: dict[str, dict[int, Fastest | None]], modes: Sequence[ModeSummary]) -> Lead | None:
    """Return the mode that wins most points; None if only one mode was run."""
    if len({mode.series for mode in modes}) < 2:
        return None
    points = [item for row in best.values() for item in row.values() if item is not None and item.others]
    wins = Counter(item.series for item in points if item.wins)
    ties = len(points) - wins.total()
    if not wins:
        return Lead("", 0, len(points), ties)
    speedup = {mode.series: mode.score.value or 0 for mode in modes}
    name = max(wins, key=lambda series: (wins[series], speedup[series]))
    return Lead(name, wins[name], len(points), ties)


def environment_line(device_sweep: DeviceSweep) -> str:
    """Return machine and software on one line."""
    names = {"driver_version": "driver", "cuda_version": "CUDA", "torch_version": "torch", "triton_version": "triton",
             "python": "Python"}  # fmt: skip
    parts = [device_sweep.hardware]
    for key, title in names.items():
        if found := {str(environment[key]) for environment in device_sweep.environments if environment.get(key)}:
            parts.append(f"{title} {' and '.join(sorted(found))}")
    return " · ".join(parts)


# --- what changed since the sweep before ---


def sure_changes(changes: Changes) -> list[Any]:
    """What surely differs from the sweep before; an open question is only counted."""
    return [one for one in changes.compared.changes if one.verdict not in (Verdict.SAME, Verdict.AMBIGUOUS)]


def changes_table(changes: Sequence[Any], cell_page: str = "") -> Table:
    """Changes since the sweep before. `cell_page`: where links to cells lead."""
    columns = [
        Column("verdict"), Column("cell"), Column("metric"), Column("before", numeric=True),
        Column("after", numeric=True), Column("ratio", "after ÷ before (95 %)", numeric=True),
        Column("reason", "why", optional=True, wide=True),
    ]  # fmt: skip
    rows = []
    for one in changes:
        metric = METRICS.get(one.metric)
        link = "" if one.verdict is Verdict.MISSING else f"{cell_page}#cell={one.key}"
        rows.append({
            "verdict": Shown(str(one.verdict), comparison.word_of(one), f"nowrap {TONES.get(one.verdict, '')}".strip()),
            "cell": Shown(one.name, one.name, "name linked" if link else "name", link=link),
            "metric": Shown(one.metric, metric.title if metric else one.metric, "nowrap"),
            "before": comparison.figure(one.metric, one.before) or ABSENT,
            "after": comparison.figure(one.metric, one.after) or ABSENT,
            "ratio": ratio_text(one.ratio, one.low, one.high) or ABSENT,
            "reason": one.reason or "",
        })  # fmt: skip
    return Table(columns, rows, caption="What changed most")


def changed_modes(lines: Sequence[Any]) -> Table:
    """Each phase and mode against the sweep before: geometric means of after ÷ before with their bounds if known."""
    several = len({line.phase for line in lines}) > 1
    metrics = list(dict.fromkeys(line.metric for line in lines))
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for line in lines:
        mode = Shown(line.mode, line.mode, "mode", line.phase if several else "", glyph=glyph_of(line.mode))
        row = rows.setdefault((line.phase, line.mode), {"mode": mode, "cells": 0})
        text, _, interval = comparison.mean_text(line.ratio, line.low, line.high).partition(" (")
        row[line.metric] = Shown(line.ratio, ABSENT if text == "–" else text, sub=interval[:-1])
        row["cells"] = max(row["cells"], line.cells)
    columns = [Column(name, METRICS[name].title, numeric=True, format=lambda _: ABSENT) for name in metrics]
    columns = [Column("mode"), *columns, Column("cells", numeric=True)]
    return Table(columns, list(rows.values()), caption="Each mode against the sweep before")
