"""The Python API: three functions and a handle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from effbench.core.settings import DEFAULT_DB

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Sweep:
    """A sweep that has run. `state` is `completed` or `interrupted`; failed cells are in its
    results. The path `db` is absolute, so that the results are found from another working
    directory."""

    id: str
    db: str = field(repr=False)  # it may contain a password
    state: str

    def results(self, compact: bool = False) -> pd.DataFrame:
        """Return its rows of the view `results`, as `effbench.results` does."""
        return results(self.db, self.id, compact)


def sweep(overrides: Sequence[str], quiet: bool = True) -> Sweep:
    """Run the sweep that `effbench -m *overrides` runs; `quiet` omits its progress on standard
    output.

    Raises EffbenchError for what is wrong before the first trial; a cell that fails is a row with a
    status.
    """
    from effbench.config.launch import hydra_sweep
    from effbench.core.errors import UsageError
    from effbench.store.connect import sqlite_file

    if isinstance(overrides, str):
        raise UsageError("sweep() takes a list of overrides, such as ['model=mlp', 'bs=1,8']")
    outcome = hydra_sweep([*overrides], quiet=quiet)
    if outcome is None:
        raise UsageError("these overrides run no sweep")
    file = sqlite_file(outcome.db)
    return Sweep(outcome.sweep_id, str(file.absolute()) if file else outcome.db, outcome.state)


def results(
    db: str = DEFAULT_DB, sweep: str | None = "last", compact: bool = False
) -> pd.DataFrame:
    """Return the view `results` as a DataFrame: one row per sweep, cell and environment, in the
    order of the plan.

    `db`: a path or any SQLAlchemy URL. `sweep`: an id, a name, `last`, or None for all sweeps.
    `compact`: omit the figures that no row has, such as GPU memory on a CPU.

    Columns, units and dtypes are listed in docs/reference/results.md. The dtypes are the same for
    every selection, also an empty one: `string` for text, `Int64` for counts and bytes, `float64`
    for other figures, `datetime64[ns, UTC]` for times, `object` for `params` (dicts). Missing
    values are `pd.NA` or NaN.

    They are followed by one column for each swept parameter that has no column in the view, with
    its name in overrides (`model.module.width`, `mode.fullgraph`): `Int64`, `float64`, `boolean` or
    `string`, by its values.

    Raises StoreError if the database cannot be read, NothingFoundError for an unknown sweep.
    """
    import pandas as pd

    from effbench.core.environments import labelled
    from effbench.core.labels import swept_columns
    from effbench.core.metrics import RESULT_FIGURES
    from effbench.store import Store
    from effbench.store.schema import RESULT_DTYPES
    from effbench.store.trials import frame_of
    from effbench.store.values import result_row

    with Store.open(db, mode="read") as store:
        ids = [store.find_sweep(sweep).id] if sweep is not None else []
        rows = store.results(*ids)
        environments = store.environments({row.environment_id for row in rows})
    frame = frame_of([result_row(row) for row in rows], RESULT_DTYPES)
    if compact:
        always = ("marked", "disturbance")
        empty = [name for name in RESULT_FIGURES if name not in always and frame[name].isna().all()]
        frame = frame.drop(columns=empty)
    swept = swept_columns(labelled(rows, environments))
    more = {name: _typed(values) for name, values in swept.items() if name not in RESULT_DTYPES}
    return pd.concat([frame, pd.DataFrame(more, index=frame.index)], axis="columns")


def _typed(values: Sequence[Any]) -> pd.Series[Any]:
    """Return the values of a swept parameter as a column; None is missing."""
    import pandas as pd

    kinds = {type(value) for value in values if value is not None}
    if kinds <= {bool}:
        return pd.Series(values, dtype="boolean")
    if not kinds <= {int, float}:
        texts = [None if value is None else str(value) for value in values]
        return pd.Series(texts, dtype="string")
    numbers = [value for value in values if value is not None]
    is_whole = kinds == {int} and all(abs(number) < 2**63 for number in numbers)
    return pd.Series(values, dtype="Int64" if is_whole else "float64")


def compare(
    before: str,
    after: str | None = None,
    db: str = DEFAULT_DB,
    by: str | None = None,
    metrics: Sequence[str] | None = None,
    config: str | None = None,
    values: Sequence[str] = (),
) -> pd.DataFrame:
    """Compare two sweeps cell by cell and metric by metric, as `effbench compare` does; what
    matters most first.

    `before`, `after`: ids, names, baselines or `last`; with `by` (`python`, `folder`, `dtype` …)
    two parts of the sweep `before`, with the two `values`. `metrics`: only these. `config`: limits
    and exceptions, a YAML file. The columns are those of `--format csv`
    (docs/reference/api.md); the frame's `attrs` holds `differences` and `notes`, lists of text,
    `limits`, where these come from, and `in_turns`: whether ratios are means over pairs of trials
    from the same round. Raises NothingFoundError, UsageError, ConfigError.
    """
    import pandas as pd

    from effbench.analysis.cause import name_causes
    from effbench.analysis.compare import compare_parts, compare_sweeps, find
    from effbench.analysis.limits import check_metric, read
    from effbench.analysis.verdicts import COLUMNS, record
    from effbench.core.errors import UsageError
    from effbench.store import Store

    if (after is None) == (by is None) or (values and by is None):
        raise UsageError("compare() takes two sweeps, or one and by= (and perhaps values=)")
    for name, given in (("metrics", metrics), ("values", values)):
        if isinstance(given, str):
            raise UsageError(f"compare() takes a list as {name}=, such as [{given!r}]")
    limits = read(config)
    if metrics is not None:
        limits.metrics = [check_metric(name) for name in metrics]
    with Store.open(db, mode="read") as store:
        old = find(store, before)
        if by is not None:
            compared = compare_parts(
                store,
                old,
                by,
                limits,
                [str(value) for value in values],
            )
        else:
            assert after is not None
            compared = compare_sweeps(
                store,
                old,
                find(store, after),
                limits,
            )
        name_causes(store, compared.changes)
    frame = pd.DataFrame([record(change) for change in compared.changes], columns=list(COLUMNS))
    # a column in which nothing is known would have another dtype than in other comparisons
    numbers = dict.fromkeys(frame.loc[:, "before":"smallest_slowdown"], float)
    dtypes = {
        **dict.fromkeys(COLUMNS, "string"),
        **numbers,
        "gates": bool,
    }
    frame = frame.astype(dtypes)
    frame.attrs = {
        "differences": compared.differences,
        "notes": compared.notes,
        "limits": limits.source,
        "in_turns": compared.interleaved,
    }
    return frame
