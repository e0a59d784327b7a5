"""Rows as DataFrames: the only importer of pandas."""

from __future__ import annotations

from typing import Any

import pandas as pd
import sqlalchemy as sa

from effbench.store.schema import RESULTS


def results_frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows of the view as a DataFrame whose types do not depend on what is in it.

    Figures are float64 with NaN, also where they count: a column that turns from int to float with its first NULL
    surprises more than a count of 3.0.
    """
    series = {}
    for column in RESULTS.columns:
        values = [row[column.name] for row in rows]
        if column.name in ("bs", "trials"):
            series[column.name] = pd.Series(values, dtype="int64")
        elif column.name == "started_at":
            series[column.name] = pd.to_datetime(pd.Series(values, dtype="object"), utc=True)
        elif isinstance(column.type, sa.Double | sa.Integer):
            series[column.name] = pd.Series(values, dtype="float64")
        else:
            series[column.name] = pd.Series(values, dtype="object")
    return pd.DataFrame(series)
