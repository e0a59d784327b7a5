"""Say which side of a duet is faster, by how much, and how sure that is: `sentence_of` says it,
`DuetAnswer.is_slower` decides whether `--fail-above` fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from effbench.core.cell import Trial
from effbench.core.printable import count
from effbench.core.quantities import change_text, significant
from effbench.run.duets import Duets
from effbench.run.plan import is_of_duet
from effbench.stats.significance import RatioTest

#: The largest relative difference that counts as no difference.
FLOOR = 0.01
#: Compared metrics.
TIMES = ("latency_ms", "period_ms")


@dataclass(frozen=True)
class DuetAnswer:
    """The comparison of two sides of a cell. `cell`: its name; `first`, `second`: those of the
    sides, such as `mode=default`. `cause`: of the difference of their latencies, if it is
    known."""

    cell: str
    first: str
    second: str
    duets: Duets
    cause: str | None = None

    @cached_property
    def tests(self) -> dict[str, RatioTest]:
        """Metric -> its test, for the times that both sides have; of the ratio second ÷ first."""
        tests = {}
        for metric in TIMES:
            test = self.duets.test(metric, FLOOR)
            if test is not None:
                tests[metric] = test
        return tests

    @property
    def difference_ms(self) -> float | None:
        """The difference of the latencies, second - first; None if it is not significant, or if
        the host was disturbed."""
        test = self.tests.get("latency_ms")
        if test is None or self.is_marked or test.low is None or test.high is None:
            return None
        if test.low <= 1 <= test.high:
            return None
        return (test.after or 0.0) - (test.before or 0.0)

    @property
    def is_marked(self) -> bool:
        """Whether the host was disturbed in all rounds."""
        return not self.duets.quiet

    @property
    def sides(self) -> Mapping[str, Sequence[Trial]]:
        """Name of a side -> its trials."""
        return {self.first: self.duets.before, self.second: self.duets.after}

    @property
    def sentence(self) -> str:
        """The answer: `mode=default is 1.310× as fast as mode=eager (1.290–1.330; 3 duets)`."""
        duets = self.duets
        for name, trials in self.sides.items():
            for trial in trials:
                if not trial.status.is_measured:
                    return f"{name} has no figures to compare: {trial.status}: {trial.reason}"
        # the sides may have been timed one after the other
        unit = "duet" if any(map(is_of_duet, duets.trials)) else "round"
        if not self.tests:
            return f"{self.first} and {self.second} have no complete {unit} to compare"
        test, *_ = self.tests.values()
        text = sentence_of(
            self.first,
            self.second,
            test,
            count(len(duets.counted), unit),
        )
        if self.is_marked:
            text += "; the host was busy"
        return text

    @property
    def notes(self) -> list[str]:
        """What limits the answer."""
        notes = []
        for name, trials in self.sides.items():
            reasons = dict.fromkeys(
                f"{trial.status}: {trial.reason}" for trial in trials if trial.reason
            )
            notes += [f"{name} is {reason}" for reason in reasons]
        for reason in self.duets.reasons_alone:
            notes.append(f"some rounds were not timed in turn: {reason}")
        return notes

    def is_slower(self, fraction: float) -> bool:
        """Return whether the second side is significantly slower than the first one by more than
        this fraction."""
        if self.is_marked:
            return False
        return any((test.low or 0.0) > 1 + fraction for test in self.tests.values())


def sentence_of(
    first: str,
    second: str,
    test: RatioTest,
    duets: str,
) -> str:
    """Return which side is faster. `test`: of the ratio second ÷ first of their times; `duets`: `3
    duets`."""
    ratio = test.ratio
    low = test.low
    high = test.high
    if low is None or high is None:
        times = f"{significant(ratio, 4)}×"
        return f"{second} takes {times} the time of {first} ({duets}; one has no interval)"
    is_inside = low >= 1 / (1 + FLOOR) and high <= 1 + FLOOR
    if is_inside or low <= 1 <= high:
        difference = "significant difference"
        if is_inside:
            difference = f"difference beyond {FLOOR * 100:g} %"
        bounds = f"{change_text(low)} to {change_text(high)}"
        how = f"{second} takes {change_text(ratio)} ({bounds}; {duets})"
        return f"no {difference} between {first} and {second}: {how}"
    if ratio < 1:
        first, second = second, first
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    bounds = f"{significant(low, 4)}–{significant(high, 4)}"
    return f"{first} is {significant(ratio, 4)}× as fast as {second} ({bounds}; {duets})"
