"""Find what causes a difference between two configurations: the smallest set of settings by delta
debugging (ddmin of Zeller and Hildebrandt, 2002), a commit by binary search."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from effbench.analysis.duet import FLOOR
from effbench.core.cell import SEVERITY, Trial
from effbench.core.metrics import METRICS
from effbench.core.quantities import significant
from effbench.run.duets import Duets
from effbench.stats.significance import ALPHA, RatioTest, is_decided

Names: TypeAlias = tuple[str, ...]
#: Tells whether these settings, or a commit, explain a difference; None: it cannot decide.
Judge: TypeAlias = Callable[[Names], bool | None]


def minimal_set(settings: Names, explains: Judge) -> Names:
    """Return a subset of the settings that explains the difference and of which none can be
    omitted. All settings together explain it."""
    explains = cache(explains)
    kept = settings
    parts = 2
    while len(kept) > 1:
        chunks = [kept[start::parts] for start in range(parts)]
        others = [tuple(name for name in kept if name not in chunk) for chunk in chunks]
        smaller = next(filter(explains, chunks + others), None)
        if smaller is not None:
            parts = max(2, parts - 1) if smaller in others else 2
            kept = smaller
        elif parts == len(kept):
            break
        else:
            parts = min(2 * parts, len(kept))
    return kept


def suspects(commits: Names, explains: Judge) -> Names:
    """Return the commits of which one brought the difference, which the last one has: a single one,
    unless commits next to it were skipped. A probe that cannot decide is repeated once; then its
    commit is skipped."""
    first = 0
    last = len(commits) - 1
    skipped = set()
    while True:
        between = [number for number in range(first, last) if number not in skipped]
        if not between:
            return commits[first : last + 1]
        middle = between[len(between) // 2]
        commit = commits[middle : middle + 1]
        verdict = explains(commit)
        if verdict is None:
            verdict = explains(commit)
        if verdict is None:
            skipped.add(middle)
        elif verdict:
            last = middle
        else:
            first = middle + 1


@dataclass(frozen=True)
class Probe:
    """The result of duets of A and a changed A. `names`: the changed settings or the commit;
    `before`, `after`: the worst trial of each side; `test`: tests the metric's ratio changed ÷ A,
    None without figures; `is_marked`: whether the host was disturbed."""

    names: Names
    before: Trial
    after: Trial
    test: RatioTest | None = None
    is_marked: bool = False
    sweep_id: str = ""

    @classmethod
    def of(cls, names: Names, duets: Duets, metric: str, sweep_id: str) -> Probe:
        """Return what these duets show about the metric."""
        test = None
        if duets.rounds:
            test = duets.test(metric, FLOOR)
        return cls(
            names,
            worst(duets.before),
            worst(duets.after),
            test,
            is_marked=not duets.quiet,
            sweep_id=sweep_id,
        )

    @property
    def log(self) -> float:
        """The logarithm of the ratio; 0 without figures."""
        return math.log(self.test.ratio) if self.test else 0.0


def worst(trials: Iterable[Trial]) -> Trial:
    """Return the trial with the worst status."""
    return min(trials, key=lambda trial: SEVERITY.index(trial.status))


@dataclass(frozen=True)
class Difference:
    """The difference of B from A in a metric, or in their statuses if one of them fails. `whole`:
    the probe of B; `share`: the part of the difference that explains it."""

    metric: str
    share: float
    whole: Probe

    @property
    def is_of_status(self) -> bool:
        return not (self.whole.before.status.is_measured and self.whole.after.status.is_measured)

    @property
    def floor(self) -> float:
        """The relative change that explains the difference."""
        return math.expm1(self.share * abs(self.whole.log))

    @property
    def why_none(self) -> str | None:
        """Why there is no difference to explain; None if there is one."""
        if self.is_of_status:
            after = self.whole.after
            if self.whole.before.status != after.status:
                return None
            return f"A and B are both {after.status}: {after.reason}"
        title = METRICS[self.metric].title
        test = self.whole.test
        if test is None or test.p_value is None:
            return f"{title}: A and B have too few figures to compare"
        if test.p_value < ALPHA and abs(self.whole.log) > FLOOR:
            return None
        return f"{title}: A and B do not differ beyond the noise"

    def explained_by(self, probe: Probe) -> bool | None:
        """Return whether the change of a probe explains the difference; None if the probe cannot
        decide."""
        if self.is_of_status:
            if probe.after.status == self.whole.after.status:
                return True
            return False if probe.after.status == self.whole.before.status else None
        if probe.test is None or not is_decided(probe.test.low, probe.test.high, self.floor):
            return None
        return self.part_of(probe) >= self.share

    def part_of(self, probe: Probe) -> float:
        """Return which part of the difference of figures a probe explains: 0 none, 1 all of it."""
        return probe.log / self.whole.log

    def sentence(self, cause: str, probe: Probe, everything: str) -> str:
        """Return the answer: what the cause makes, by its probe. `everything`: all changes, such as
        `all 4 settings`; empty if the cause is all of them."""
        if self.is_of_status:
            text = f"{cause} makes it {probe.after.status} ({probe.after.reason or 'no reason'})"
            if everything:
                text += ", without the others"
            return text
        metric = METRICS[self.metric]
        what = "it" if metric.name == "latency_ms" else metric.title
        is_larger = self.whole.log > 0
        word = "larger" if is_larger else "smaller"
        if metric.unit == "ms":
            word = "slower" if is_larger else "faster"
        text = f"{cause} makes {what} {times(probe)} {word}"
        if everything:
            text += f"; {everything} make it {times(self.whole)}"
        return text


def times(probe: Probe) -> str:
    """Return the factor of a probe's ratio, 1 or more: `1.25×`."""
    return f"{significant(math.exp(abs(probe.log)), 3)}×"
