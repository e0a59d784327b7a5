"""Experiments: a question, the sweeps and checks that answer it, and the claims that they decide.

The shipped experiments are also submodules (`effbench.claims.overheads`), so that `_target_`
of a shipped model can name a class in one of them.
"""

from pathlib import Path

from effbench.claims.definition import Answer, Claim
from effbench.claims.figures import fraction, geomean, highest, interval, lowest, mean
from effbench.claims.frames import ratio, where

# in a wheel; in a checkout they are in the repository's top folder
_shipped = Path(__file__).parent / "shipped"
FOLDER = _shipped if _shipped.is_dir() else Path(__file__).parents[2] / "experiments"
__path__.append(str(FOLDER))

__all__ = [
    "FOLDER",
    "Answer",
    "Claim",
    "fraction",
    "geomean",
    "highest",
    "interval",
    "lowest",
    "mean",
    "ratio",
    "where",
]
