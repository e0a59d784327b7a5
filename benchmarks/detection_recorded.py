"""The recording as it is, without a model of it: pairs of its unchanged sweeps, and its real delays."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from detection_rules import CONFIRMED, PEERS, SCREENED, TRIALS, Case, confirmed, peers, screened, slower
from noise_model import CONSTANT, FIGURES, Drawn, delayed, figures_of, sweeps_of

SHOWN = (SCREENED, PEERS[0], PEERS[1], PEERS[3], PEERS[4])
DELAYED = (SCREENED, CONFIRMED, PEERS[0], PEERS[1], PEERS[3])


def repeated_rows(trials: Sequence[dict[str, Any]]) -> tuple[list[list[str]], int, int]:
    """Every ordered pair of sweeps of a database: rows (rule, pairs without an alarm, cells called slower), the number
    of pairs and of cells compared."""
    cells = sweeps_of(list(trials))
    alarmed: Counter[str] = Counter()
    false: Counter[str] = Counter()
    compared: Counter[str] = Counter()
    pairs = 0
    for tag in sorted({tag for tag, _ in cells}):
        here = {cell: sweeps for (db, cell), sweeps in cells.items() if db == tag}
        numbers = sorted(set.intersection(*(set(sweeps) for sweeps in here.values())))
        for old, new in itertools.permutations(numbers, 2):
            cases = [recorded_case(sweeps, old, new) for sweeps in here.values()]
            answers = [{SCREENED: False, **peers(case)} for case in cases]
            for change in slower(screened(cases)):
                answers[int(change.key)][SCREENED] = True
            pairs += 1
            for rule in SHOWN:
                called = [answer[rule] for answer in answers if rule in answer]
                compared[rule] += len(called)
                false[rule] += sum(called)
                alarmed[rule] += any(called)
    rows = [
        [rule, f"{1 - alarmed[rule] / pairs:.1%}", f"{false[rule]} of {compared[rule]}",
         f"{false[rule] / compared[rule]:.2%}"]
        for rule in SHOWN
    ]  # fmt: skip
    return rows, pairs, compared[SCREENED]


def recorded_case(sweeps: dict[int, list[dict[str, Any]]], old: int, new: int) -> Case:
    """With the other sweeps as history, but for the new one. Sides of unequal length are cut to the shorter one."""
    n = min(len(sweeps[old]), len(sweeps[new]))
    before, after = (figures_of(sweeps[number][:n]) for number in (old, new))
    history = np.stack(
        [np.exp(np.nanmean(np.log(figures_of(sweeps[number]).figures), axis=0)) for number in sweeps if number != new]
    )
    first = sweeps[old][0]
    return Case(first["kind"], before, after, {key: first[key] for key in CONSTANT}, history)


def delayed_rows(trials: Sequence[dict[str, Any]], draws: int, seed: int) -> tuple[list[str], list[list[str]]]:
    """Real delays: five trials of the unchanged cell and five of the delayed one, drawn from a sweep in which all ran
    in turns; five other rounds are the re-run. Headings, and rows: rule, shares called slower in % by delay."""
    rng = np.random.default_rng(seed)
    headings = ["rule"]
    columns: list[list[str]] = []
    for kind, levels in sorted(delayed(list(trials)).items()):
        base, *others = levels.values()
        found = [shares_found(rng, kind, base, slowed, draws) for slowed in others]
        effects = ", ".join(f"{100 * (geometric(slowed) / geometric(base) - 1):.1f}" for slowed in others)
        headings.append(f"{kind}, by {effects} %")
        columns.append([", ".join(f"{100 * shares[rule]:.0f}" for shares in found) for rule in DELAYED])
    return headings, [[rule, *cells] for rule, *cells in zip(DELAYED, *columns, strict=True)]


def shares_found(rng, kind: str, base: list[dict], slowed: list[dict], draws: int) -> dict[str, float]:
    counts: Counter[str] = Counter()
    for _ in range(draws):
        case, again = drawn_rounds(rng, kind, base, slowed)
        found = slower(screened([case]))
        counts[SCREENED] += bool(found)
        counts[CONFIRMED] += bool(confirmed(found, *again))
        counts.update(rule for rule, alarm in peers(case).items() if alarm)
    return {rule: counts[rule] / draws for rule in DELAYED}


def drawn_rounds(rng, kind: str, base: list[dict], slowed: list[dict]) -> tuple[Case, tuple[Drawn, Drawn]]:
    """Rounds of both for the two sweeps, drawn apart, and five rounds that neither used, in pairs."""
    by_round = [{trial["round"]: trial for trial in side} for side in (base, slowed)]
    shared = sorted(by_round[0].keys() & by_round[1].keys())
    order = [shared[i] for i in rng.permutation(len(shared))]
    again, rest = order[:TRIALS], order[TRIALS:]
    sides = [[side[number] for number in rng.permutation(rest)[:TRIALS]] for side in by_round]
    before, after = map(figures_of, sides)
    case = Case(kind, before, after, {})
    old, new = (figures_of([side[number] for number in again]) for side in by_round)
    return case, (old, new)


def geometric(trials: list[dict[str, Any]]) -> float:
    return math.exp(statistics.fmean(math.log(trial[FIGURES[0]]) for trial in trials))
