"""Files of whole sweeps: what damage is found and how it is said; what others can read."""

from __future__ import annotations

import gzip
import json
import shutil
import sys

import pytest
import whole_sweeps as whole
from whole_sweeps import export, ids_of, outcomes, take

from effbench.errors import StoreError, UsageError
from effbench.store import Store
from effbench.store.bundle import COLUMNS, MORE, REQUIRED, TABLES
from effbench.store.schema import SampleRow, TrialRow


@pytest.fixture(scope="module")
def sealed(odd, tmp_path_factory):
    return export(odd, tmp_path_factory.mktemp("lines") / "x.jsonl").read_text().splitlines()


@pytest.fixture(scope="module")
def lines(sealed):
    """Without the checksum in the last one: what is wrong in them is then told by itself."""
    end = json.loads(sealed[-1])
    del end["sha256"]
    return [*sealed[:-1], json.dumps(end)]


def unsealed(folder):
    """Take the checksums out of a Parquet folder."""
    manifest = folder / "manifest.json"
    said = json.loads(manifest.read_text())
    del said["sha256"]
    manifest.write_text(json.dumps(said))


def refused(out, target, kind=StoreError):
    """The message; nothing but what came before the mistake is there."""
    with pytest.raises(kind) as caught:
        take(out, target)
    message = str(caught.value)
    assert 1 <= len(message.splitlines()) <= 2
    return message


def written(tmp_path, lines):
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def empty(target):
    return not any(whole.contents(target).values())


@pytest.mark.parametrize("keep", [0.001, 0.3, 0.7, 0.999])
@pytest.mark.parametrize("packed", [False, True])
def test_cut_off(keep, packed, lines, tmp_path, target):
    path = tmp_path / "x.jsonl"
    data = ("\n".join(lines) + "\n").encode()
    data = gzip.compress(data) if packed else data
    path.write_bytes(data[: int(len(data) * keep)])
    message = refused(path, target)
    assert str(path) in message
    assert "cut off" in message or keep < 0.01
    assert empty(target)


def test_cut_off_between_two_lines(lines, tmp_path, target):
    message = refused(written(tmp_path, lines[:30]), target)
    assert "line 30: cut off" in message
    assert empty(target)


class TestChecksum:
    """What is sound JSON and a sound record, and yet not what was written."""

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ('"status":"ok"', '"status":"oom"'),
            ('"round":1', '"round":7'),
            ('"seed":1', '"seed":2'),
            ('"name":', '"nome":'),
        ],
    )
    def test_an_edited_value(self, old, new, sealed, tmp_path, target):
        index = next(index for index, line in enumerate(sealed) if old in line)
        edited = [*sealed[:index], sealed[index].replace(old, new, 1), *sealed[index + 1 :]]
        message = refused(written(tmp_path, edited), target)
        assert f"line {len(sealed)}: the lines above are not those that were written" in message
        assert empty(target)

    @pytest.mark.parametrize("change", [lambda lines: lines.pop(20), lambda lines: lines.insert(20, lines.pop(21))])
    def test_a_line_that_is_gone_or_moved(self, change, sealed, tmp_path, target):
        edited = list(sealed)
        change(edited)
        assert "not those that were written" in refused(written(tmp_path, edited), target)
        assert empty(target)

    def test_the_second_of_two_files(self, sealed, tmp_path, target):
        edited = [line.replace('"status":"ok"', '"status":"oom"') for line in sealed]
        message = refused(written(tmp_path, [*sealed, *edited]), target)
        assert f"line {2 * len(sealed)}: " in message
        assert empty(target), "nothing of the first one either"

    def test_the_line_is_named_where_it_is_no_json(self, sealed, tmp_path, target):
        edited = [*sealed[:9], sealed[9][:-5], *sealed[10:]]
        assert "line 10: damaged: not JSON" in refused(written(tmp_path, edited), target)

    @pytest.mark.parametrize("sha", [None, 1, "", "0" * 64, ["x"]])
    def test_the_checksum_itself(self, sha, sealed, tmp_path, target):
        end = json.dumps({**json.loads(sealed[-1]), "sha256": sha})
        assert "not those that were written" in refused(written(tmp_path, [*sealed[:-1], end]), target)

    def test_other_line_ends_are_the_same(self, sealed, tmp_path, target):
        path = tmp_path / "x.jsonl"
        path.write_bytes("".join(f"{line}\r\n\r\n" for line in sealed).encode())
        assert outcomes(path, target) == ["imported"] * 3

    @pytest.mark.parametrize("table", ["trial", "environment", "calibration"])
    def test_another_table_of_parquet(self, table, odd, tmp_path, target):
        import pyarrow.parquet as pq

        folder = export(odd, tmp_path / "pq")
        path = folder / f"{table}.parquet"
        pq.write_table(pq.read_table(path), path, compression="none")
        assert f"{table}.parquet is not what was written" in refused(folder, target)
        assert empty(target)
        unsealed(folder)
        assert outcomes(folder, target) == ["imported"] * 3

    @pytest.mark.parametrize("field", ["tables", "sha256"])
    @pytest.mark.parametrize("value", [None, 1, [], "x", {"trail": "x"}, {"trial": None}, {"trial": [1]}])
    def test_a_manifest_that_makes_no_sense(self, field, value, odd, tmp_path, target):
        folder = export(odd, tmp_path / "pq")
        said = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps({**said, field: value}))
        assert f"manifest.json: damaged: {field}" in refused(folder, target)
        assert empty(target)


def test_damaged_gzip(sealed, tmp_path, target):
    """Every byte of the compressed file matters."""
    data = gzip.compress("\n".join(sealed).encode(), mtime=0)
    for place in range(12, len(data), len(data) // 40):
        path = tmp_path / "x.jsonl.gz"
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        refused(path, target)
    assert empty(target)


def line_of(lines, table, number=0):
    return [index for index, line in enumerate(lines) if line.startswith(f'{{"table":"{table}"')][number]


def edited(lines, table, values):
    """The lines with fields of the table's first record set, `...` for gone; and the number of its line."""
    index = line_of(lines, table)
    record = {**json.loads(lines[index]), **values}
    record = {name: value for name, value in record.items() if value is not ...}
    return [*lines[:index], json.dumps(record), *lines[index + 1 :]], index + 1


def blob(codec, data):
    return {"timer": "x", "count": 1, "stored": 1, "codec": codec, "data": data}


@pytest.mark.parametrize(
    ("table", "values", "said"),
    [
        ("trial", {"latency_ms": "fast"}, "trial.latency_ms is 'fast', not a number"),
        ("trial", {"kernels": 1.5}, "trial.kernels is 1.5, not an integer"),
        ("trial", {"kernels": True}, "trial.kernels is True, not an integer"),
        ("trial", {"steady": 1}, "trial.steady is 1, not true or false"),
        ("trial", {"reason": 1}, "trial.reason is 1, not text"),
        ("trial", {"extra": []}, "trial.extra is [], not a JSON object"),
        ("trial", {"status": "fine"}, "trial.status is 'fine'"),
        ("trial", {"round": ...}, "trial without its round"),
        ("trial", {"round": 2**70}, "not an integer of 32 bits"),
        ("trial", {"attempt": -(2**31)}, "not an integer of 32 bits"),
        ("sweep", {"seed": 2**70}, "which no database can hold"),
        ("trial", {"started_at": "yesterday"}, "trial.started_at is 'yesterday', not a time"),
        ("trial", {"cell_key": "abc"}, "the cell is not in the plan"),
        ("trial", {"environment_id": "abc"}, "its environment is not among"),
        ("trial", {"samples": 1}, "trial.samples is 1, not a list"),
        ("trial", {"samples": [{"timer": "x"}]}, "an entry has timer, count, stored, codec, data"),
        ("trial", {"samples": [blob("f32le+zlib", "%%%")]}, "damaged samples"),
        ("trial", {"samples": [blob("f32le+zlib", "AAAA")]}, "damaged samples"),
        ("trial", {"samples": [blob("zstd", "")]}, "upgrade effbench"),
        ("trial", {"samples": [blob("f32le+zlib", 1.5)]}, "data is 1.5, not a blob"),
        ("trial", {"samples": [blob("f32le+zlib", None)]}, "data is None, not a blob"),
        ("trial", {"samples": [blob("f32le+zlib", {})]}, "data is {}, not a blob"),
        ("trial", {"samples": [{**blob("f32le+zlib", ""), "count": 0}]}, "1 samples of 0 are stored"),
        ("trial", {"samples": [{**blob("f32le+zlib", ""), "count": 2**70}]}, "count is 118"),
        ("trial", {"samples": [{**blob("f32le+zlib", ""), "stored": True}]}, "stored is True"),
        ("trial", {"wattage": 3}, "no field 'wattage'"),
        ("trial", {"table": "trail"}, "unknown table 'trail'"),
        ("trial", {"table": ["x"]}, "unknown table"),
        ("sweep", {"state": "asleep"}, "sweep.state is 'asleep'"),
        ("sweep", {"command": {}}, "sweep.command is {}, not a JSON array"),
        ("sweep", {"environments": [1]}, "sweep.environments is [1]"),
        ("sweep", {"trials": 7}, "should have 7 trials, and has"),
        ("sweep", {"cells": 70}, "should have 70 cells, and has"),
        ("sweep", {"id": ...}, "sweep without its id"),
        ("cell", {"position": -1}, "cell.position is -1"),
        ("cell", {"position": 2**40}, "cell.position is 109"),
        ("cell", {"mode": ..., "params": {"a": 1}}, "does not describe a cell"),
        ("calibration", {"environment_id": "abc"}, "environment that the sweep does not have"),
    ],
)  # fmt: skip
def test_damage_names_the_line(table, values, said, lines, tmp_path, target):
    changed, number = edited(lines, table, values)
    message = refused(written(tmp_path, changed), target)
    assert said in message
    assert f"x.jsonl, line {number}: " in message
    assert empty(target)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"table": "trial", ', "not JSON"),
        ("[1]", "a line is a JSON object"),
        ("[" * 100_000, "not JSON"),
        ('{"table":"trial","round":' + "9" * 5000 + "}", "not JSON"),
        ("\ud800", "not JSON"),
        ("{}", "unknown table None"),
        ('{"end":true,"sweeps":5}', "5 sweeps should stand above, and 2 do"),
        ('{"format":"effbench-sweeps","version":1}', "before the one above has ended"),
    ],
)
def test_a_damaged_line_after_a_sound_sweep(line, said, lines, tmp_path, target):
    """What stands before is imported, sweep by sweep; the one with the damage is not."""
    index = line_of(lines, "trial", -1)
    path = tmp_path / "x.jsonl"
    text = "\n".join([*lines[:index], line, *lines[index + 1 :]])
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    message = refused(path, target)
    assert f"x.jsonl, line {index + 1}: " in message
    assert said in message
    with Store.open(target) as store:
        assert len(store.sweeps()) == 1
    assert Store.check(target) == []


@pytest.mark.parametrize("name", ["../../x", "..", "a/b", "", " ", "x\x1b[2J", "two\nlines", "-x", "x" * 65])
def test_an_id_that_is_none(name, lines, tmp_path, target):
    """Folders of caches and artifacts are named by it."""
    index = line_of(lines, "sweep")
    record = {**json.loads(lines[index]), "id": name}
    message = refused(written(tmp_path, [*lines[:index], json.dumps(record), *lines[index + 1 :]]), target)
    assert f"line {index + 1}: " in message and "is not the id of a sweep" in message and message.isprintable()
    assert empty(target)


def test_a_trial_that_stands_twice(lines, tmp_path, target):
    index = line_of(lines, "trial")
    assert "stands there twice" in refused(written(tmp_path, [*lines[: index + 1], *lines[index:]]), target)
    assert empty(target)


def test_files_after_one_another(lines, tmp_path, target):
    assert outcomes(written(tmp_path, [*lines, "", *lines]), target) == ["imported"] * 3 + ["present"] * 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("model,bs\nmlp,1\n", "not a file of whole sweeps"),
        ('{"a": 1}\n', "not a file of whole sweeps"),
        ("[1]\n", "not a file of whole sweeps"),
        ('{"sweep_id":"x","cell_key":"y","latency_ms":1}\n', "rows of the view"),
        ('{"format":"effbench-sweeps","version":99,"effbench":"9.9"}\n', "newer effbench 9.9"),
        ('{"format":"effbench-sweeps","version":1,"schema":"9999"}\n', "upgrade effbench"),
        ('{"format":"effbench-sweeps","version":"x"}\n', "does not exist"),
        ("PAR1", "name the folder"),
        ("\x1f\x8bnot gzip", "not gzip"),
    ],
)
def test_foreign_files(text, said, tmp_path, target):
    path = tmp_path / "x.jsonl"
    path.write_bytes(text.encode("latin-1"))
    message = refused(path, target)
    assert said in message or "damaged or cut off" in message
    assert empty(target)


def test_fields_may_be_missing(lines, tmp_path, target):
    """As an older effbench, which did not know them, would have written it."""
    poor = [json.dumps({"format": "effbench-sweeps", "version": 1}), *lines[1:]]
    for index, line in enumerate(poor[1:-1], 1):
        record = json.loads(line)
        kept = {"table", *REQUIRED[record["table"]], "position", "environments"}
        if record["table"] == "trial":
            kept |= {"attempt"}
        poor[index] = json.dumps({name: value for name, value in record.items() if name in kept})
    poor[-1] = '{"end":true}'
    path = written(tmp_path, poor)
    assert outcomes(path, target, baselines=True) == ["imported"] * 3
    found = whole.contents(target)
    assert all(found[name] for name in found if name != "sample")
    assert outcomes(path, target, baselines=True) == ["present"] * 3
    assert outcomes(written(tmp_path, lines), target)[0] == "refused"  # NULL there, known here
    with Store.open(target) as store:
        assert store.find_sweep("last").protocol == {}
        assert store.planned(ids_of(store)[0]) == whole.cells()


def test_every_column_has_its_place():
    """A column that is new must be carried, or be named as one that is not."""
    with pytest.raises(KeyError):
        COLUMNS["result"]
    for name in TABLES:
        assert set(REQUIRED[name]) <= COLUMNS[name].keys()
        assert not COLUMNS[name].keys() & set(MORE.get(name, ()))
    assert COLUMNS["trial"].keys() == {c.name for c in TrialRow.__table__.columns} - {"id", "sweep_id"}
    assert {c.name for c in SampleRow.__table__.columns} == {"trial_id", "timer", "count", "stored", "codec", "data"}


# --- Parquet ---


def test_parquet_is_for_others_too(odd, tmp_path):
    import pyarrow.parquet as pq

    folder = export(odd, tmp_path / "pq")
    with Store.open(odd) as store:
        trials = [row for sweep_id in ids_of(store) for row in store.trials(sweep_id)]
        environments = len(store.environments())
    table = pq.read_table(folder / "trial.parquet").to_pylist()
    assert [row["power_w"] for row in table] == [row["power_w"] for row in trials]
    assert [row["sweep_id"] for row in table] == [row["sweep_id"] for row in trials]
    assert json.loads(table[0]["extra"]) == trials[0]["extra"]
    assert pq.read_table(folder / "environment.parquet").num_rows == environments
    said = json.loads((folder / "manifest.json").read_text())
    assert (said["format"], said["version"], said["tables"]["trial"]) == ("effbench-sweeps", 1, len(trials))


def test_a_parquet_folder_is_replaced_but_no_other_is(odd, tmp_path, target):
    with Store.open(odd) as store:
        last = ids_of(store)[-1]
    export(odd, tmp_path / "pq")
    export(odd, tmp_path / "pq", sweeps=[last])
    assert [arrival.sweep_id for arrival in take(tmp_path / "pq", target)] == [last]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    with pytest.raises(UsageError, match="is not empty"):
        export(odd, tmp_path / "mine")
    assert [entry.name for entry in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "trial.parquet").write_bytes(b"PAR1"), "trial.parquet: damaged"),
        (lambda folder: (folder / "trial.parquet").unlink(), "trial.parquet: 0 rows where"),
        (lambda folder: (folder / "sweep.parquet").unlink(), "sweep.parquet"),
        (lambda folder: shutil.copy(folder / "cell.parquet", folder / "trial.parquet"), "rows where"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json: damaged"),
        (lambda folder: (folder / "manifest.json").write_text('{"format":"effbench-sweeps","version":2}'), "newer"),
    ],
)
def test_damaged_parquet(damage, said, odd, tmp_path, target):
    folder = export(odd, tmp_path / "pq")
    damage(folder)
    assert said in refused(folder, target)
    assert empty(target)


def test_trials_of_another_sweep_in_parquet(odd, tmp_path, target):
    import pyarrow.parquet as pq

    folder = export(odd, tmp_path / "pq")
    unsealed(folder)
    table = pq.read_table(folder / "trial.parquet")
    pq.write_table(table.take(list(reversed(range(table.num_rows)))), folder / "trial.parquet")
    assert "should have" in refused(folder, target)
    assert empty(target)


def test_without_pyarrow(odd, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"pip install 'effbench\[export\]'"):
        export(odd, tmp_path / "pq")
    assert not (tmp_path / "pq").exists()
