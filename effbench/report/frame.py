"""The frame that figures are drawn from: the view `results`, clean, labelled and in reading order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from effbench.analysis.swept import SweptRow, mode_order, plain_rows, swept_rows
from effbench.metrics import METRICS

INTERVALS = ("latency_ci_low_ms", "latency_ci_high_ms", "speedup_ci_low", "speedup_ci_high")
NUMBERS = (*METRICS, *INTERVALS, "trials")
TEXTS = ("model", "mode", "dtype", "phase", "device", "status", "reason", "environment_id", "cell_key")


def prepare(frame: pd.DataFrame, baseline_mode: str = "eager") -> pd.DataFrame:
    """The view's rows with further columns and a fresh index, sorted by model, labels, bs and mode.

    `case` is the model with whatever else was swept (one line), `series` is the mode with its swept settings,
    `series_rank` its place in canonical order, `where` what tells its environment from others, and `is_baseline`
    whether its mode is the baseline's. Columns that the frame lacks are added as missing.
    """
    return tidied(swept_rows(plain_rows(frame)), baseline_mode, map(str, frame.columns))


def tidied(labelled: Sequence[SweptRow], baseline_mode: str, columns: Iterable[str] = ()) -> pd.DataFrame:
    """The same of rows that are labelled already; `columns`: those that there are also without a row."""
    known = list(dict.fromkeys([*columns, *(labelled[0].source if labelled else ())]))
    order = {name: rank for rank, name in enumerate(mode_order((row.mode, row.base_mode) for row in labelled))}
    records: list[dict[str, Any]] = [
        row.source
        | {"case": row.case, "series": row.mode, "series_rank": order[row.mode], "bs": row.labels["bs"]}
        | {"where": row.where, "is_baseline": row.base_mode == baseline_mode}
        for row in labelled
    ]
    tidy = pd.DataFrame.from_records(records, columns=_columns(known))
    for name in NUMBERS:
        tidy[name] = pd.to_numeric(tidy[name], errors="coerce").astype("float64")
    for name in tidy.columns:
        if isinstance(tidy[name].dtype, pd.StringDtype):
            tidy[name] = tidy[name].astype(object)  # hundreds of small figures take values out of it one by one
    tidy["case_rank"] = pd.factorize(tidy["case"])[0]
    return tidy.sort_values(["case_rank", "bs", "series_rank"], kind="stable", ignore_index=True)


def _columns(known: list[str]) -> list[str]:
    added = ["case", "series", "series_rank", "where", "is_baseline"]
    return known + [name for name in (*TEXTS, "bs", *NUMBERS, *added) if name not in known]
