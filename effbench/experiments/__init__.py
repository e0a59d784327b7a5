"""Experiments: a question, the sweeps and checks that answer it, and the claims that they decide.

The shipped experiments are also submodules (`effbench.experiments.overheads`), so that `_target_`
of a shipped model can name a class in one of them.
"""

from pathlib import Path

from effbench.experiments.definition import Claim, Found, Pivot
from effbench.experiments.figures import (
    all_of,
    any_of,
    between,
    exp,
    figures,
    geomean,
    highest,
    log,
    lowest,
    mean,
    median,
    only,
)
from effbench.experiments.frames import relative, where

# in a wheel; in a checkout they are in the repository's top folder
_shipped = Path(__file__).parent / "shipped"
FOLDER = _shipped if _shipped.is_dir() else Path(__file__).parents[2] / "experiments"
__path__.append(str(FOLDER))

__all__ = [
    "FOLDER",
    "Claim",
    "Found",
    "Pivot",
    "all_of",
    "any_of",
    "between",
    "exp",
    "figures",
    "geomean",
    "highest",
    "log",
    "lowest",
    "mean",
    "median",
    "only",
    "relative",
    "where",
]
