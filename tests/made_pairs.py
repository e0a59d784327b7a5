"""Cells of two sides, as the verdicts take them; and made-up sweeps, compared."""

from dataclasses import replace
from itertools import zip_longest

from made_sweeps import a_result

from effbench.analysis.compare import compare_parts, compare_sweeps
from effbench.analysis.limits import limits_of
from effbench.analysis.matching import ComparedCell
from effbench.analysis.verdicts import judge
from effbench.core.cell import Status, Trial
from effbench.core.metrics import METRICS
from effbench.store import Store
from effbench.store.sides import ResultWithTrials
from effbench.store.summary import CountedTrials


def side(status="ok", reason=None, compiled=(), bound=None, disturbance=None, **figures):
    """A result whose trials have these figures, one a round. `compiled`: (compile cache, kernels)
    of each round."""
    facts = {"bound": bound, "disturbance": disturbance}
    trials = []
    for number, values in enumerate(zip_longest(compiled, *figures.values())):
        of_trial = {}
        if compiled:
            of_trial["compilation"], of_trial["kernel_fingerprint"] = values[0]
        for name, value in zip(figures, values[1:], strict=True):
            metric = METRICS[name]
            of_trial[metric.of or name] = value
            if metric.caches:
                of_trial["compile_cache"] = metric.caches[0]
        trials.append(Trial("a", number, Status(status), reason, **of_trial))
    facts |= {name: max(figures[name]) for name in figures.keys() & {"rel_error"}}
    result = a_result(status=status, reason=reason, **facts)
    return ResultWithTrials(**vars(result), counted=CountedTrials.of(trials))


def pair(before, after, key="a", why=None, **about):
    if about:
        before = replace(before, **about)
    return ComparedCell(key, key, "H", before, after, why)


def timed(before, after, key="a", bound=None, compiled=((), ()), **about):
    """A cell with these latencies in ms; `compiled`: what each side compiled."""
    old = side(bound=bound, compiled=compiled[0], latency_ms=before)
    new = side(bound=bound, compiled=compiled[1], latency_ms=after)
    return pair(old, new, key, **about)


def only(before, after, metric, settings=None, bounds=(None, None)):
    """The row of this metric of one cell; `bounds`: what each side waits for."""
    sides = (
        side(bound=bound, **{metric: values})
        for bound, values in zip(bounds, (before, after), strict=True)
    )
    found = judge([pair(*sides)], limits_of(settings or {}))
    (change,) = [one for one in found if one.metric == metric]
    return change


def compared(made, before, after, **options):
    """The comparison of two sweeps with the limits that ship; `options`: of the cells."""
    with Store.open(made.path) as store:
        sweeps = [store.find_sweep(sweep) for sweep in (before, after)]
        return compare_sweeps(store, *sweeps, limits_of({}), **options)


def compared_parts(made, sweep, by, values=()):
    """The comparison of two parts of a sweep with the limits that ship."""
    with Store.open(made.path) as store:
        return compare_parts(store, store.find_sweep(sweep), by, limits_of({}), values)


def rows_of(found, metric):
    """The rows of a metric."""
    return [row for row in found.changes if row.metric == metric]
