"""Bundles as a folder of Parquet tables, for DuckDB, pandas and the like as much as for `effbench import`.

`manifest.json` is the header, with the rows and the SHA-256 of each table, and is written last; each table is a file.
Rows that several sweeps share (`environment`, `cell`, `calibration`) stand once; `sweep_cell` is the plan; `trial` has
its samples as a list. JSON columns are text.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from effbench.errors import StoreError, UsageError
from effbench.outputs import refuse_database, require_folder
from effbench.store.bundle import COLUMNS, FORMAT, TABLES, Record, check_header, checked, header
from effbench.store.schema import UtcDateTime
from effbench.store.values import dump_json

MANIFEST = "manifest.json"
#: in Parquet each of these names its sweep
_OF_A_SWEEP = ("sweep_cell", "trial", "claim_verdict", "baseline", "acknowledgement")
_SHARED = {"environment": ("id",), "cell": ("key",), "calibration": ("environment_id", "gpu_uuid", "measured_at")}
FILES = (*TABLES, "sweep_cell")
#: rows of a row group; a trial has up to some 60 kB of samples
_ROWS = 500


def arrow() -> Any:
    """pyarrow with its Parquet. Raises UsageError where it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError("Parquet needs pyarrow; pip install 'effbench[export]'") from error
    return pyarrow


def type_of(kind: sa.types.TypeEngine) -> Any:
    """Arrow's type of a column; JSON is text."""
    pa = arrow()
    if isinstance(kind, UtcDateTime):
        return pa.timestamp("us", tz="UTC")
    if isinstance(kind, sa.Boolean):
        return pa.bool_()
    if isinstance(kind, sa.Integer):
        return pa.int64()
    return pa.float64() if isinstance(kind, sa.Double) else pa.string()


def schema_of(table: str) -> Any:
    pa = arrow()
    if table == "sweep_cell":
        fields = [("sweep_id", pa.string()), ("cell_key", pa.string()), ("position", pa.int64())]
        return pa.schema(fields)
    fields = [(name, type_of(column.type)) for name, column in COLUMNS[table].items()]
    if table in _OF_A_SWEEP:
        fields.insert(0, ("sweep_id", pa.string()))
    if table == "sweep":
        fields += [("environments", pa.list_(pa.string())), ("cells", pa.int64()), ("trials", pa.int64())]
    if table == "trial":
        sample = [("timer", pa.string()), ("count", pa.int64()), ("stored", pa.int64()), ("codec", pa.string())]
        fields.append(("samples", pa.list_(pa.struct([*sample, ("data", pa.binary())]))))
    return pa.schema(fields)


def write_folder(folder: Path, records: Iterable[Record], *, samples: bool, force: bool = False) -> int:
    """Write a bundle into a folder and return how many sweeps it holds; an earlier bundle is replaced at the end.

    Raises UsageError for a folder with other content (unless `force`), or one that cannot be written.
    """
    arrow()
    draft = folder / f".effbench-{os.getpid()}"
    try:
        require_folder(folder, is_bundle, force)
        draft.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            tables = {name: _Table(draft, name, stack) for name in FILES}
            sweep_id = ""
            for record in records:
                values = record.values
                if record.table == "sweep":
                    sweep_id = values["id"]
                if record.table == "cell":
                    if values["position"] is not None:
                        plan = {"sweep_id": sweep_id, "cell_key": values["key"], "position": values["position"]}
                        tables["sweep_cell"].add(plan)
                    values = {name: value for name, value in values.items() if name != "position"}
                elif record.table in _OF_A_SWEEP:
                    values = {"sweep_id": sweep_id, **values}
                tables[record.table].add(values)
            counts = {name: table.finish() for name, table in tables.items()}
        digests = {name: _digest(draft / f"{name}.parquet") for name in FILES}
        text = json.dumps({**header(samples), "tables": counts, "sha256": digests}, indent=2)
        (draft / MANIFEST).write_text(text + "\n", encoding="utf-8")
        names = [*(f"{name}.parquet" for name in FILES), MANIFEST]
        for name in names:
            refuse_database(folder / name)
        (folder / MANIFEST).unlink(missing_ok=True)  # until it is back, this is no bundle
        for name in names:
            (draft / name).replace(folder / name)
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return counts["sweep"]


def is_bundle(folder: Path) -> bool:
    """Return whether `write_folder` made this folder, by its manifest."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and manifest.get("format") == FORMAT


class _Table:
    """A file that grows by row groups."""

    def __init__(self, folder: Path, name: str, stack: ExitStack) -> None:
        self.pa = arrow()
        self.name, self.schema, self.rows, self.count = name, schema_of(name), [], 0
        self.json = {name for name, column in COLUMNS.get(name, {}).items() if isinstance(column.type, sa.JSON)}
        self.seen: set[tuple] = set()
        path = folder / f"{name}.parquet"
        self.writer = stack.enter_context(self.pa.parquet.ParquetWriter(path, self.schema, compression="zstd"))

    def add(self, values: dict[str, Any]) -> None:
        if self.name in _SHARED:
            key = tuple(values[name] for name in _SHARED[self.name])
            if key in self.seen:
                return
            self.seen.add(key)
        self.rows.append(
            {name: dump_json(value) if name in self.json and value is not None else value
             for name, value in values.items()}
        )  # fmt: skip
        self.count += 1
        if len(self.rows) == _ROWS:
            self.flush()

    def flush(self) -> None:
        if self.rows:
            self.writer.write_table(self.pa.Table.from_pylist(self.rows, schema=self.schema))
            self.rows = []

    def finish(self) -> int:
        self.flush()
        return self.count


def read_folder(folder: Path) -> Iterator[Record]:
    """The sections of a folder that `write_folder` made; tables but `sweep` may be missing, which means: no rows.

    Raises StoreError that names file and row for whatever is wrong with it.
    """
    arrow()
    manifest = folder / MANIFEST
    try:
        said = json.loads(manifest.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"{manifest}: damaged or unreadable ({error})") from error
    check_header(said, str(manifest))
    counts, digests = _of_tables(said, "tables", int, manifest), _of_tables(said, "sha256", str, manifest)
    with ExitStack() as stack:
        tables = {name: _opened(folder, name, stack) for name in FILES}
        for name, count in counts.items():
            found = tables[name].metadata.num_rows if tables[name] is not None else 0
            if found != count:
                raise StoreError(f"{folder / f'{name}.parquet'}: {found} rows where {count} were written")
        for name, digest in digests.items():
            path = folder / f"{name}.parquet"
            if path.is_file() and _digest(path) != digest:
                raise StoreError(f"{path} is not what was written (its sha256 is another): damaged or edited")

        def rows(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
            return _rows(folder, name, tables[name])

        shared = {name: list(rows(name)) for name in ("environment", "calibration")}
        cells = {row.get("key"): (where, row) for where, row in rows("cell")}
        plans = _by_sweep(rows("sweep_cell"))
        notes = {name: _by_sweep(rows(name)) for name in ("claim_verdict", "baseline", "acknowledgement")}
        trials = _Following(rows("trial"))
        for where, sweep in rows("sweep"):
            yield checked("sweep", sweep, where)
            sweep_id, environments = sweep.get("id"), set(sweep.get("environments") or ())
            for place, row in shared["environment"]:
                if row.get("id") in environments:
                    yield checked("environment", row, place)
            yield from _cells(sweep_id, plans, cells, notes["acknowledgement"])
            for place, row in trials.of(sweep_id):
                yield checked("trial", row, place)
            for place, row in shared["calibration"]:
                if row.get("environment_id") in environments:
                    yield checked("calibration", row, place)
            for name, by_sweep in notes.items():
                for place, row in by_sweep.get(sweep_id, ()):
                    yield checked(name, row, place)
        if trials.next is not None:
            raise StoreError(f"{trials.next[0]}: a trial that follows no sweep of the bundle")


def _of_tables(said: dict[str, Any], field: str, kind: type, manifest: Path) -> dict[str, Any]:
    """What the manifest says of its tables in this field; {} where it says nothing."""
    given = said.get(field, {})
    if not isinstance(given, dict) or given.keys() - set(FILES) or not all(type(v) is kind for v in given.values()):
        raise StoreError(f"{manifest}: damaged: {field} is not one {kind.__name__} a table")
    return given


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise StoreError(f"{path}: damaged or unreadable ({error.strerror or error})") from error


def _cells(sweep_id: Any, plans: dict, cells: dict, acknowledged: dict) -> Iterator[Record]:
    planned = set()
    for place, plan in plans.get(sweep_id, ()):
        key = plan.get("cell_key")
        planned.add(key)
        if key not in cells:
            raise StoreError(f"{place}: cell {str(key)[:12]} is not in cell.parquet")
        where, row = cells[key]
        yield checked("cell", {**row, "position": plan.get("position")}, where)
    others = {row.get("cell_key") for _, row in acknowledged.get(sweep_id, ())} - planned
    for key in sorted(others & cells.keys(), key=str):
        where, row = cells[key]
        yield checked("cell", {**row, "position": None}, where)


class _Following:
    """Rows of many sweeps, which follow one another as the sweeps do."""

    def __init__(self, rows: Iterator[tuple[str, dict[str, Any]]]) -> None:
        self._rows = rows
        self.next = next(rows, None)

    def of(self, sweep_id: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        while self.next is not None and self.next[1].get("sweep_id") == sweep_id:
            where, row = self.next
            self.next = next(self._rows, None)
            yield where, {name: value for name, value in row.items() if name != "sweep_id"}


def _by_sweep(rows: Iterator[tuple[str, dict[str, Any]]]) -> dict[Any, list[tuple[str, dict[str, Any]]]]:
    found: dict[Any, list[tuple[str, dict[str, Any]]]] = {}
    for where, row in rows:
        found.setdefault(row.pop("sweep_id", None), []).append((where, row))
    return found


def _opened(folder: Path, name: str, stack: ExitStack) -> Any:
    path = folder / f"{name}.parquet"
    if not path.is_file() and name != "sweep":
        return None
    pa = arrow()
    try:
        return stack.enter_context(pa.parquet.ParquetFile(path))
    except (pa.ArrowException, OSError, ValueError) as error:  # names that are no UTF-8, too
        raise StoreError(f"{path}: damaged or cut off ({str(error).splitlines()[0]})") from error


def _rows(folder: Path, name: str, file: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row with its place; JSON is parsed."""
    if file is None:
        return
    pa, path, number = arrow(), folder / f"{name}.parquet", 0
    json_columns = [name for name, column in COLUMNS.get(name, {}).items() if isinstance(column.type, sa.JSON)]
    try:
        for batch in file.iter_batches(batch_size=_ROWS):
            for row in batch.to_pylist():
                number += 1
                for column in json_columns:
                    if row.get(column) is not None:
                        row[column] = json.loads(row[column])
                if row.get("samples", row) is None:  # NULL, of a bundle without them
                    del row["samples"]
                yield f"{path}, row {number}", row
    except (pa.ArrowException, OSError, ValueError, TypeError, RecursionError) as error:
        raise StoreError(f"{path}, row {number + 1}: damaged ({str(error).splitlines()[0]})") from error


def view_bytes(rows: list[dict[str, Any]], view: sa.Table) -> bytes:
    """Return rows of the view as a Parquet file."""
    pa = arrow()
    schema = pa.schema([(column.name, type_of(column.type)) for column in view.columns])
    json_columns = [column.name for column in view.columns if isinstance(column.type, sa.JSON)]
    plain = [{**row, **{name: dump_json(row[name]) for name in json_columns}} for row in rows]
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(pa.Table.from_pylist(plain, schema=schema), sink, compression="zstd")
    return sink.getvalue().to_pybytes()
