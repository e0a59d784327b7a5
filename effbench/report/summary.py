"""The answer first: how many results are good, which mode is fastest where, and how each mode does over all models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from effbench.analysis import headline as headlines
from effbench.analysis.headline import Headline
from effbench.analysis.scores import UNCLEAR, interval_text, least, score
from effbench.analysis.swept import ABSENT
from effbench.cell import SEVERITY, Status
from effbench.metrics import METRICS
from effbench.report.speedup_table import NO_INTERVAL, speedup_text


@dataclass(frozen=True)
class Counts:
    """Results by outcome; `by_status` worst first. `other` are answers that are no failures: oom, unsupported, …"""

    total: int
    ok: int
    failed: int
    other: int
    by_status: dict[str, int]


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


class Lead(NamedTuple):
    """The mode that wins most points (model × batch size), among the points where at least two modes are ok. `ties`:
    points without a significant winner; `series` is empty if no point has one."""

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


def counts(frame: pd.DataFrame) -> Counts:
    found = frame["status"].value_counts().to_dict()
    by_status = {str(status): int(found.pop(str(status))) for status in SEVERITY if str(status) in found}
    by_status |= {str(status): int(number) for status, number in found.items()}
    failed = sum(number for name, number in by_status.items() if name in list(Status) and Status(name).is_failure)
    ok = by_status.get(Status.OK, 0)
    return Counts(len(frame), ok, failed, len(frame) - ok - failed, by_status)


def fastest(frame: pd.DataFrame, baseline_mode: str = "eager") -> dict[str, dict[int, Fastest | None]]:
    """case → bs → the fastest ok mode, None where none is ok; both in the frame's order."""
    names = ("case", "bs", "status", "mode", "series", "latency_ms", "latency_ci_low_ms", "latency_ci_high_ms",
             "speedup", "speedup_ci_low", "speedup_ci_high", "trials")  # fmt: skip
    points: dict[tuple[str, int], list[_Row]] = {}
    for values in zip(*(frame[name].tolist() for name in names), strict=True):
        row = _Row(*values)
        ok = points.setdefault((str(row.case), int(row.bs)), [])
        if row.status == Status.OK and row.latency_ms > 0:
            ok.append(row)
    out: dict[str, dict[int, Fastest | None]] = {}
    for (case, bs), rows in points.items():
        out.setdefault(case, {})[bs] = _fastest(case, bs, rows, baseline_mode) if rows else None
    return out


class _Row(NamedTuple):
    """What of a result decides; figures are NaN where there are none."""

    case: str
    bs: int
    status: str
    mode: str
    series: str
    latency_ms: float
    latency_ci_low_ms: float
    latency_ci_high_ms: float
    speedup: float
    speedup_ci_low: float
    speedup_ci_high: float
    trials: float


def _fastest(case: str, bs: int, ok: list[_Row], baseline_mode: str) -> Fastest:
    place, ties = least([row._asdict() for row in ok])
    best, tied = ok[place], tuple(str(ok[other].series) for other in ties)
    speedup = None if math.isnan(best.speedup) else best.speedup
    text = speedup_text(speedup, best.speedup_ci_low, best.speedup_ci_high)
    baseline = best.mode == baseline_mode
    return Fastest(case, bs, str(best.series), speedup, text, best.latency_ms, tied, len(ok) - 1, baseline)


def by_mode(frame: pd.DataFrame) -> pd.DataFrame:
    """One row a mode, in canonical order, over all its results (model × bs and whatever else was swept); one for each
    phase and environment where there are several: a training step is not averaged with a call.

    Columns: series, phase (with the environment; empty where there is only one), results, ok, pass_rate (ok ÷ results),
    speedup (geometric mean over the `speedup_results` ok ones that have one) with speedup_low and speedup_high (95 %,
    None where not known; `speedup_text` shows it, or `unclear`), memory_ratio (geometric mean), compile_cold_s
    (median), both NaN over none; `passed`, `memory` and `compiled` are the last three with their intervals
    (analysis.headline), not_ok (text: what the others are).
    """
    rows = []
    several = frame["phase"].nunique() > 1
    phase = (frame["phase"] if several else "") + (" " + frame["where"]).str.rstrip()
    ordered = frame.assign(phase=phase.str.strip()).sort_values("series_rank", kind="stable")
    for (phase, series), group in ordered.groupby(["phase", "series"], sort=False):
        ok = group[group["status"] == Status.OK]
        found = score(group.to_dict("records"))
        bad = counts(group[group["status"] != Status.OK]).by_status
        memory, compiled = headlines.mean_ratio(ok["memory_ratio"]), headlines.median(ok["compile_cold_s"])
        rows.append(
            {
                "series": str(series),
                "phase": str(phase),
                "results": len(group),
                "ok": len(ok),
                "pass_rate": len(ok) / len(group),
                "speedup": math.nan if found.value is None else found.value,
                "speedup_low": found.low,
                "speedup_high": found.high,
                "speedup_text": METRICS["speedup"].format(found.value) if found.clear else UNCLEAR,
                "speedup_results": found.averaged,
                "memory_ratio": math.nan if memory.value is None else memory.value,
                "compile_cold_s": math.nan if compiled.value is None else compiled.value,
                "passed": headlines.share(len(ok), len(group)),
                "memory": memory,
                "compiled": compiled,
                "not_ok": ", ".join(f"{number} {status}" for status, number in bad.items()) or ABSENT,
            }
        )
    return pd.DataFrame(rows)


def notes(row: Mapping[str, Any]) -> dict[str, str]:
    """What stands beside each figure of a row of `by_mode`, by its name: its interval, or what is known instead."""
    low, high = row["speedup_low"], row["speedup_high"]
    known = low is not None and not math.isnan(low) and low < high
    words = [interval_text(low, high)] if known else ["by definition"] if low == high == 1 else []
    words += [NO_INTERVAL] if low is None and row["speedup_results"] else []
    words += [f"of {row['speedup_results']}"] if row["speedup_results"] < row["ok"] else []
    return {
        "speedup": ", ".join(words),
        "pass_rate": percents(row["passed"]),
        "memory_ratio": row["memory"].note("{:.2f}".format),
        "compile_cold_s": row["compiled"].note(METRICS["compile_cold_s"].format).replace(" s–", "–"),
    }


def percents(found: Headline) -> str:
    """The interval of a share in per cent: `92–98 %`, of thousands `99.6–99.8 %`."""
    if found.low is None:
        return ""
    digits = 0 if found.high - found.low > 0.02 else 1
    return f"{100 * found.low:.{digits}f}–{100 * found.high:.{digits}f} %"


def lead(best: dict[str, dict[int, Fastest | None]], modes: pd.DataFrame) -> Lead | None:
    """Return the mode that wins most points; None if only one mode was run."""
    if modes["series"].nunique() < 2:
        return None
    points = [item for row in best.values() for item in row.values() if item is not None and item.others]
    wins: dict[str, int] = {}
    for item in points:
        if item.wins:
            wins[item.series] = wins.get(item.series, 0) + 1
    ties = len(points) - sum(wins.values())
    if not wins:
        return Lead("", 0, len(points), ties)
    speedup = dict(zip(modes["series"], modes["speedup"].fillna(0), strict=True))
    name = max(wins, key=lambda series: (wins[series], speedup[series]))
    return Lead(name, wins[name], len(points), ties)
