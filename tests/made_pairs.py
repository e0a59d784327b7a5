"""Cells of two sweeps, as the screen takes them."""

from effbench.analysis.limits import limits_of
from effbench.analysis.screen import Pair, Side, screen

ABOUT = {"model": "mlp", "bs": 8, "mode": "eager", "dtype": "float32", "phase": "inference", "device": "cuda",
         "hardware": "H"}  # fmt: skip


def by_round(values):
    return dict(enumerate(values))


def side(status="ok", reason=None, bound=None, **figures):
    return Side(status, reason, bound, {name: by_round(values) for name, values in figures.items()})


def pair(before, after, key="a", why=None, **about):
    return Pair(key, key, {**ABOUT, **about}, before, after, why)


def only(before, after, metric, settings=None, **kwargs):
    """The row of this metric of one cell."""
    found = screen([pair(side(**{metric: before}), side(**{metric: after}))], limits_of(settings or {}), **kwargs)
    (change,) = [one for one in found if one.metric == metric]
    return change
