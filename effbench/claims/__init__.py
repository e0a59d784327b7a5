"""Experiments: a question, the sweeps and checks that answer it, and the claims that they decide.

The shipped experiments are also submodules (`effbench.claims.overheads`), so that `_target_`
of a shipped model can name a class in one of them.
"""

from effbench.claims.definition import FOLDER, Answer, Claim
from effbench.claims.figures import fraction, geomean, highest, interval, lowest, mean
from effbench.claims.frames import by, ratio, where

__path__.append(str(FOLDER))

__all__ = [
    "FOLDER",
    "Answer",
    "Claim",
    "by",
    "fraction",
    "geomean",
    "highest",
    "interval",
    "lowest",
    "mean",
    "ratio",
    "where",
]
