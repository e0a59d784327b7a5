"""Cells of two sides, as the verdicts take them; and made-up sweeps, compared."""

from dataclasses import replace

from effbench.analysis.compare import compare_parts, compare_sweeps
from effbench.analysis.limits import CellFacts, limits_of
from effbench.analysis.matching import CellPair
from effbench.analysis.verdicts import judge
from effbench.store import Store
from effbench.store.sides import CellResult

ABOUT = CellFacts("mlp", 8, "eager", "float32", "inference", "cuda", "H")


def side(status="ok", reason=None, bound=None, compiled=(), **figures):
    figures = {name: dict(enumerate(values)) for name, values in figures.items()}
    return CellResult(
        status,
        reason,
        bound,
        figures=figures,
        compilations={number: compilation for number, (compilation, _) in enumerate(compiled)},
        kernels=frozenset(name for _, name in compiled if name),
    )


def pair(before, after, key="a", why=None, **about):
    return CellPair(key, key, replace(ABOUT, **about), before, after, why)


def timed(before, after, key="a", bound=None, compiled=((), ()), **about):
    """A cell with these latencies in ms; `compiled`: what each side compiled."""
    old = side(bound=bound, compiled=compiled[0], latency_ms=before)
    new = side(bound=bound, compiled=compiled[1], latency_ms=after)
    return pair(old, new, key, **about)


def only(before, after, metric, settings=None, threshold=0.0, bounds=(None, None), **options):
    """The row of this metric of one cell; `threshold`: its noise threshold, `bounds`: what each
    side waits for."""
    sides = (
        side(bound=bound, **{metric: values})
        for bound, values in zip(bounds, (before, after), strict=True)
    )
    found = judge([pair(*sides)], limits_of(settings or {}), {("a", metric): threshold}, **options)
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
