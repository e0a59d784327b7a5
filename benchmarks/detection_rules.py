"""One cell of two sweeps, put to effbench's own rules and to those of its peers.

effbench's are the functions that `effbench compare` and `check` call (effbench.analysis.screen, .confirm, .fence, with
the metrics and floors that a configuration starts from), on all metrics; the peers' see latencies, as their projects
would. Only `slower` counts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import peers_rules
from noise_model import FIGURES, Drawn

from effbench.analysis.limits import limits_of
from effbench.comparison.verdicts import Change, Pair, Verdict, change_of, decided, judge
from effbench.stats.significance import LEAST_PAIRS, compare_pairs, confirms, noise_threshold, significant
from effbench.store.sides import CellResult

SCREENED = "effbench, screened"
AGAIN, CONFIRMED, FENCED = "effbench, run again", "effbench, in turns", "effbench, in turns, with history"
EFFBENCH = (SCREENED, AGAIN, CONFIRMED, FENCED)
PEERS = ("TorchBench 7 %", "pyperf t-test", "pyperf, 20 processes", "asv U test, × 1.1", "Conbench z = 5")
RULES = (*EFFBENCH, *PEERS)
#: What `conf/check/default.yaml` says of the metrics that were recorded.
LIMITS = limits_of(
    {
        "metrics": [*FIGURES, "peak_allocated_bytes", "kernels"],
        "limits": {"peak_allocated_bytes": {"least": 1 << 20}},
    }
)
#: Processes and values of each: five, as effbench has, with pyperf's usual 60 values and twice asv's ten; and pyperf's
#: own 20 processes, four times the work.
TRIALS = 5
PYPERF, PYPERF_OWN, ASV = (TRIALS, 12), (20, 3), (TRIALS, 4)
MOST = PYPERF_OWN[0]


@dataclass(frozen=True)
class Case:
    """A cell before and after. `history` (S, M): geometric means of earlier sweeps, oldest first, or None.

    `before` and `after` hold the sweep's five trials first, and may go on for whoever takes more of that session.
    """

    kind: str
    before: Drawn
    after: Drawn
    constant: Mapping[str, float]
    history: np.ndarray | None = None


def pair_of(key: str, case: Case) -> Pair:
    bound = "launch" if case.kind == "launch-bound" else "compute"
    sides = [CellResult("ok", None, bound, figures_of(one.first(TRIALS), case.constant))
             for one in (case.before, case.after)]  # fmt: skip
    return Pair(key, key, {}, *sides)


def figures_of(drawn: Drawn, constant: Mapping[str, float]) -> dict[str, dict[int, float]]:
    """Metric -> round -> figure."""
    figures = {
        name: {number: float(value) for number, value in enumerate(column) if not math.isnan(value)}
        for name, column in zip(FIGURES, drawn.figures.T, strict=True)
    }
    return figures | {name: dict.fromkeys(range(len(drawn.figures)), value) for name, value in constant.items()}


def fences_of(case: Case) -> dict[str, float]:
    """Metric -> relative change that its history shows to be noise."""
    if case.history is None:
        return {}
    return {name: noise_threshold(column.tolist()) for name, column in zip(FIGURES, case.history.T, strict=True)}


def screened(cases: Sequence[Case], fenced: bool = False) -> list[Change]:
    """Every verdict of a comparison of these cells; keys are their indices."""
    fences = [fences_of(case) if fenced else {} for case in cases]
    pairs = [pair_of(str(index), case) for index, case in enumerate(cases)]
    return judge(pairs, LIMITS, lambda key, metric: fences[int(key)].get(metric, 0.0))


def p_values(changes: Sequence[Change], but: str | None = None) -> list[float]:
    """Of the tests that a comparison made, without those of the cell `but`."""
    tested = (change for change in changes if change.p_value is not None and change.metric in FIGURES)
    return [change.p_value for change in tested if change.key != but]


def screened_among(case: Case, others: Sequence[float], fenced: bool = False) -> list[Change]:
    """Verdicts on one cell in a comparison whose other tests gave these p-values.

    What `screen` says of it when all cells are given together, without testing the others again.
    """
    pair = pair_of("0", case)
    fences = fences_of(case) if fenced else {}
    found = []
    for metric in FIGURES:
        # as `screen` does
        limit = LIMITS.of(pair.about, metric)
        change, comparison = change_of(pair, metric, limit, False, fences.get(metric, 0.0))
        if comparison is not None:
            found.append((change, comparison))
    own = [comparison.p_value for _, comparison in found]
    significant = significant([*own, *others], LIMITS.q)[: len(own)]
    bounds = (pair.before.bound, pair.after.bound)
    return [decided(*one, sure, bounds, LIMITS) for one, sure in zip(found, significant, strict=True)]


def slower(changes: Sequence[Change]) -> list[Change]:
    return [change for change in changes if change.gates and change.verdict is Verdict.SLOWER]


def confirmed(found: Sequence[Change], before: Drawn, after: Drawn) -> list[Change]:
    """Of the slowdowns `found` those that a re-run in turns shows: the pairs' interval clears each one's limit."""
    kept = []
    for change in found:
        old, new = (figures_of(one, {})[change.metric] for one in (before, after))
        pairs = len(old.keys() & new.keys())
        if pairs >= LEAST_PAIRS and confirms(compare_pairs(old, new, change.limit), pairs, change.limit):
            kept.append(change)
    return kept


def shown_again(found: Sequence[Change], before: Drawn, again: Drawn, case: Case) -> list[Change]:
    """The same where the old side cannot be run any more: the new one alone is, and compared with the old figures."""
    said = {change.metric for change in slower(screened([replace(case, before=before, after=again)]))}
    return [change for change in found if change.metric in said]


def peers(case: Case) -> dict[str, bool]:
    """Which of the peers' rules call the cell slower; those that need a history or more trials, if given."""
    old, new = case.before, case.after
    answers = [
        # one process a side
        peers_rules.torchbench(float(old.figures[0, 0]), float(new.figures[0, 0])),
        peers_rules.pyperf(pooled(old, *PYPERF), pooled(new, *PYPERF)),
        None,
        peers_rules.asv(pooled(old, *ASV), pooled(new, *ASV)),
        None,
    ]
    if min(len(old.figures), len(new.figures)) >= MOST:
        answers[2] = peers_rules.pyperf(pooled(old, *PYPERF_OWN), pooled(new, *PYPERF_OWN))
    if case.history is not None:
        result = statistics.fmean(new.first(TRIALS).of("latency_ms"))
        answers[4] = peers_rules.conbench(case.history[:, 0].tolist(), result)
    return {rule: answer for rule, answer in zip(PEERS, answers, strict=True) if answer is not None}


def pooled(drawn: Drawn, processes: int, each: int) -> np.ndarray:
    """(n, V) -> (`processes` × `each`,): means of consecutive values, so of a longer inner loop."""
    values = drawn.values_ms[:processes]
    return values[:, : values.shape[1] // each * each].reshape(processes, each, -1).mean(axis=2).ravel()
