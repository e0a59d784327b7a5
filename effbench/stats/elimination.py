"""Successive elimination: after each round of trials, leave out what is significantly slower than
the best."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from effbench.stats.intervals import PRIOR_DF, LogEstimate, log_difference, log_mean, t_tail
from effbench.stats.significance import ALPHA, FLOOR

#: Assumed standard deviation of log times between processes, which counts like PRIOR_DF further
#: degrees of freedom: one or two trials say little about it. Of 557 series on H100s and H200s, two
#: thirds had less, and 95 % less than 0.07.
PROCESS_SD = 0.025
#: Least ratio to the best after one trial, which may be an outlier: of 1,697 recorded ones, 9 took
#: longer than the median of their mode by more. Without a check of the host, the standard deviation
#: between processes may be 20 %.
FAR, UNWATCHED_FAR = 1.15, 1.5
#: A race ends if none of those left is likely to be faster than the best one by more than this
#: ratio.
CLOSE = 1.05
#: Times of each candidate.
Times = Mapping[Hashable, Sequence[float]]


@dataclass
class Race:
    """The state of a race. `estimates`: the mean log time of each candidate with a figure, when it
    was last compared. `eliminated`: candidate -> number of rounds after which it was. `risk`:
    p-value of the test that none of those left is faster than the best one by more than CLOSE; 1 if
    unknown. `is_tie`: the times of all that are left are within FLOOR of the best one's. `is_over`:
    one is left, or they tie, or the risk is at most ALPHA."""

    estimates: dict[Hashable, LogEstimate] = field(default_factory=dict)
    eliminated: dict[Hashable, int] = field(default_factory=dict)
    risk: float = 1.0
    is_tie: bool = False
    is_over: bool = False

    @property
    def leader(self) -> Hashable | None:
        """The fastest of those left."""
        left = self.estimates.keys() - self.eliminated.keys()
        return self.fastest(left) if left else None

    def fastest(self, names: Iterable[Hashable]) -> Hashable:
        return min(names, key=lambda name: self.estimates[name].value)

    def gap(self, name: Hashable, best: Hashable) -> LogEstimate:
        return log_difference(self.estimates[name], self.estimates[best])


def race(
    times: Mapping[Hashable, Sequence[float | None]],
    variation: Mapping[Hashable, float],
    candidates: int,
    rounds: int,
    far: float = FAR,
) -> Race:
    """Return the state of a race by the rounds that every candidate left has ended; earlier rounds
    are judged first, so the result does not depend on when this is called.

    `times`: the time in each ended round of each candidate; None: no figure that counts.
    `variation`: standard deviation of the log time between compilations, which further rounds do
    not reduce. `candidates`, `rounds`: numbers at the start. A candidate is eliminated if a t-test
    with one side at the level ALPHA ÷ ((candidates - 1) · rounds) shows that it is slower than the
    best so far, by `far` if either has one trial. In simulations of 4 and 6 candidates that differ
    by 0 to 50 %, with a standard deviation between processes of up to 7 %, at most ALPHA of the
    races eliminate the best one, and at most ALPHA are over with one that is slower than the best
    by more than CLOSE.
    """
    state = Race()
    level = ALPHA / max(1, candidates - 1) / rounds
    for ended in range(1, rounds + 1):
        left = [name for name in times if name not in state.eliminated]
        if state.is_over or any(len(times[name]) < ended for name in left):
            break
        known = {name: _figures(times[name][:ended]) for name in left}
        measured = {name: values for name, values in known.items() if values}
        if measured:
            state.estimates |= moderated(measured, variation)
            best = state.fastest(measured)
            _eliminate(state, measured, best, ended, level, far)
            _judge_rest(state, known, best)
    return state


def _figures(times: Sequence[float | None]) -> list[float]:
    return [time for time in times if time]


def _eliminate(
    state: Race, known: Times, best: Hashable, ended: int, level: float, far: float
) -> None:
    """Eliminate the candidates that are slower than the best one at this level. `known`: times."""
    for name, values in known.items():
        if name == best:
            continue
        gap = state.gap(name, best)
        trials = min(len(values), len(known[best]))
        is_far = trials > 1 or gap.value > math.log(far)
        is_slower = _tail(gap, 0.0) < level
        if is_far and is_slower:
            state.eliminated[name] = ended


def _judge_rest(state: Race, known: Times, best: Hashable) -> None:
    """Set risk, tie and end of a race by the candidates that are left. `known`: their times."""
    left = {name: known[name] for name in known if name not in state.eliminated}
    rest = [name for name in left if name != best]
    if min(map(len, left.values())) > 1:
        close = math.log(CLOSE)
        gaps = [state.gap(name, best) for name in rest]
        state.risk = math.fsum(_tail(gap, close) for gap in gaps)
        ties = [_is_tie(left[name], left[best]) for name in rest]
        state.is_tie = bool(ties) and all(ties)
    state.is_over = not rest or state.is_tie or state.risk <= ALPHA


def _is_tie(times: Sequence[float], best: Sequence[float]) -> bool:
    ratio = log_difference(log_mean(times), log_mean(best)).interval()
    return ratio.high is not None and ratio.high < 1 + FLOOR


def _tail(gap: LogEstimate, distance: float) -> float:
    """Return the p-value of the test, with one side, that a gap is not larger than -`distance`."""
    if gap.error is None:
        return 1.0
    t = (gap.value + distance) / gap.error
    return t_tail(t, gap.df) / 2


def moderated(
    times: Mapping[Hashable, Sequence[float]], variation: Mapping[Hashable, float]
) -> dict[Hashable, LogEstimate]:
    """Return the mean log time of each candidate from one or more trials. Its error comes from the
    common variance of all trials, which PROCESS_SD moderates but does not reduce, and from the
    `variation` between compilations."""
    squares = 0.0
    repeated = 0
    means: dict[Hashable, float] = {}
    for name, values in times.items():
        mean = means[name] = log_mean(values).value
        distances = [math.log(value) - mean for value in values]
        squares += math.fsum(distance**2 for distance in distances)
        repeated += len(values) - 1
    df = PRIOR_DF + repeated
    expected = PRIOR_DF * PROCESS_SD**2
    moderate = (expected + squares) / df
    variance = max(moderate, squares / max(1, repeated))
    estimates = {}
    for name, values in times.items():
        statistical = math.sqrt(variance / len(values))
        error = math.hypot(statistical, variation[name])
        estimates[name] = LogEstimate(means[name], error, df)
    return estimates
