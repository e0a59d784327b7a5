"""Successive elimination: after each round of trials, leave out what is significantly slower than the best."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from effbench.stats.intervals import PRIOR_DF, LogEstimate, log_difference, log_mean, t_tail
from effbench.stats.significance import ALPHA, FLOOR

#: Assumed standard deviation of log times between processes, which counts like PRIOR_DF further degrees of freedom: one
#: or two trials say little about it. 95 % of 46 series on an H200 had less.
PROCESS_SD = 0.04
#: Least ratio to the best after one round, because a single trial may be an outlier.
FAR = 1.5


@dataclass
class Race:
    """The state of a race. `estimates`: the mean log time of each candidate with a figure, when it was last compared.
    `eliminated`: candidate -> number of rounds after which it was. `is_over`: after two rounds or more, one is left, or
    all that are left tie: their times are within FLOOR of the best one's."""

    estimates: dict[Hashable, LogEstimate] = field(default_factory=dict)
    eliminated: dict[Hashable, int] = field(default_factory=dict)
    is_over: bool = False


def race(
    times: Mapping[Hashable, Sequence[float | None]], variation: Mapping[Hashable, float], candidates: int, rounds: int
) -> Race:
    """Return the state of a race by the rounds that every candidate left has ended; earlier rounds are judged first, so
    the result does not depend on when this is called.

    `times`: the time in each ended round of each candidate; None: no figure that counts. `variation`: standard
    deviation of the log time between compilations, which further rounds do not reduce. `candidates`, `rounds`: numbers
    at the start. A candidate is eliminated if a t-test with one side at the level ALPHA ÷ ((candidates - 1) · rounds)
    shows that it is slower than the best so far, after the first round by FAR. By Bonferroni's inequality, all rounds
    together eliminate the truly best one, or one of several that are equally good, with a probability of at most ALPHA.
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
        state.estimates |= {name: moderated(values, variation[name]) for name, values in known.items()}
        best = min(known, key=lambda name: state.estimates[name].value)
        for name in known:
            behind = log_difference(state.estimates[name], state.estimates[best])
            is_far = ended > 1 or behind.value > math.log(FAR)
            if name != best and is_far and t_tail(behind.value / behind.error, behind.df) / 2 < level:
                state.eliminated[name] = ended
        left = [name for name in left if name not in state.eliminated]
        means = {name: log_mean(known.get(name, [1.0])) for name in left}  # no interval without figures
        highs = [log_difference(means[name], means[best]).interval().high for name in left if name != best]
        if ended > 1 and all(high is not None and high < 1 + FLOOR for high in highs):
            state.is_over = True
            break
    return state


def moderated(values: Sequence[float], variation: float) -> LogEstimate:
    """Return the mean log time of at least one trial. Its error combines the variance of these values with PROCESS_SD,
    and adds the `variation` between compilations."""
    mean = log_mean(values).value
    df = PRIOR_DF + len(values) - 1
    squares = math.fsum((math.log(value) - mean) ** 2 for value in values)
    variance = (PRIOR_DF * PROCESS_SD**2 + squares) / df
    return LogEstimate(mean, math.sqrt(variance / len(values) + variation**2), df)
