"""Successive elimination: after each round of trials, leave out what is significantly slower than
the best."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
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
        return min(left, key=lambda name: self.estimates[name].value, default=None)


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
    state, left = Race(), list(times)
    level = ALPHA / max(1, candidates - 1) / rounds
    for ended in range(1, rounds + 1):
        if any(len(times[name]) < ended for name in left):
            break
        known = {name: [time for time in times[name][:ended] if time] for name in left}
        known = {name: values for name, values in known.items() if values}
        if not known:
            continue
        state.estimates |= moderated(known, variation)
        best = min(known, key=lambda name: state.estimates[name].value)
        behind = {
            name: log_difference(state.estimates[name], state.estimates[best])
            for name in known
            if name != best
        }
        for name, gap in behind.items():
            is_far = min(len(known[name]), len(known[best])) > 1 or gap.value > math.log(far)
            if is_far and t_tail(gap.value / gap.error, gap.df) / 2 < level:
                state.eliminated[name] = ended
        left = [name for name in left if name not in state.eliminated]
        rest = [name for name in left if name != best]
        if all(len(known.get(name, [])) > 1 for name in left):
            gaps = [behind[name] for name in rest]
            state.risk = math.fsum(
                t_tail((gap.value + math.log(CLOSE)) / gap.error, gap.df) / 2 for gap in gaps
            )
            means = {name: log_mean(known[name]) for name in left}
            highs = [log_difference(means[name], means[best]).interval().high for name in rest]
            state.is_tie = bool(rest) and max(highs) < 1 + FLOOR
        state.is_over = not rest or state.is_tie or state.risk <= ALPHA
        if state.is_over:
            break
    return state


def moderated(
    times: Mapping[Hashable, Sequence[float]], variation: Mapping[Hashable, float]
) -> dict[Hashable, LogEstimate]:
    """Return the mean log time of each candidate from one or more trials. Its error comes from the
    common variance of all trials, which PROCESS_SD moderates but does not reduce, and from the
    `variation` between compilations."""
    means = {name: log_mean(values).value for name, values in times.items()}
    squares = math.fsum(
        (math.log(value) - means[name]) ** 2 for name, values in times.items() for value in values
    )
    repeated = sum(len(values) - 1 for values in times.values())
    df = PRIOR_DF + repeated
    variance = max((PRIOR_DF * PROCESS_SD**2 + squares) / df, squares / max(1, repeated))
    errors = {
        name: math.sqrt(variance / len(values) + variation[name] ** 2)
        for name, values in times.items()
    }
    return {name: LogEstimate(means[name], errors[name], df) for name in times}
