"""Streams of batch sizes: what they hold, what is refused, and what they make of a cell."""

import pytest
import yaml
from made_sweeps import a_result

from effbench.core import streams
from effbench.core.cell import Cell
from effbench.core.errors import ConfigError
from effbench.core.labels import label_rows, row_names
from effbench.core.settings import shipped

PLAIN = {
    "model": {
        "name": "m",
        "module": {"_target_": "a.Net"},
        "inputs": [{"name": "x", "shape": [4]}],
    },
    "mode": {"name": "eager", "_target_": "effbench.modes.eager.Eager"},
    "dtype": "float32",
    "phase": "inference",
    "bs": 8,
    "device": "cpu",
    "numerics": {"seed": 0},
    "env": {},
}
#: As it was before cells could have a stream: databases are full of it.
PLAIN_KEY = "cd65da9e895744ef1ae50a721d0f3747b69a6732161c307ce25736b244ce0e4a"


def settings(name, **changed):
    return {"name": name, **streams.KINDS[name], **changed}


def test_sizes_are_drawn_from_the_seed():
    sizes = streams.sizes_of(settings("uniform", length=500, low=3, high=20))
    assert len(sizes) == 500
    assert set(sizes) == set(range(3, 21))
    one, same, other = (streams.sizes_of(settings("uniform", seed=seed)) for seed in (1, 1, 2))
    assert one == same != other
    for_ever = [36, 64, 63, 51, 57, 33, 49, 51]
    assert streams.sizes_of(settings("uniform", length=8)) == for_ever


@pytest.mark.parametrize("kind", streams.KINDS)
def test_the_yaml_of_a_kind_has_its_defaults(kind):
    file = shipped("conf") / "stream" / f"{kind}.yaml"
    assert yaml.safe_load(file.read_text()) == settings(kind)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("3\n1\n\n  \n7\n", [3, 1, 7]),
        ("\ufeff2\n", [2]),
    ],
    ids=["lines", "byte order mark"],
)
def test_files_with_a_size_per_line(text, sizes, tmp_path):
    path = tmp_path / "sizes.csv"
    path.write_text(text, encoding="utf-8")
    assert streams.read_sizes(str(path)) == sizes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "has 0 sizes"),
        ("time,size\n1,2\n", "size 1: .* got 'time,size'"),
        ("4\n\nmany\n", "size 2: .* got 'many'"),
        (None, "No such file"),
        ("1\n" + "9" * 5000, "size 2: "),
        ("x" * 200_000, "size 1: "),
        ("1\n" * 100_001, "has 100001 sizes"),
    ],
    ids=range(7),
)
def test_files_that_hold_no_sizes(text, expected, tmp_path):
    path = tmp_path / "sizes.csv"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=expected) as error:
        streams.read_sizes(str(path))
    assert str(path) in str(error.value)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({**settings("uniform"), "rate": 3}, "stream.rate requires stream=arrivals"),
        (settings("uniform", high=0), "at least stream.low=1"),
        (settings("csv"), "path is missing"),
        ({"name": "none", "high": 4}, "stream.high requires stream=uniform or arrivals"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusals(given, expected):
    with pytest.raises(ConfigError, match=expected):
        streams.check(given)


def resolved(stream):
    made = streams.resolve(stream)
    bs = 8 if made is None else max(made["sizes"])
    return Cell(**{**PLAIN, "bs": bs, "stream": made})


def test_the_key_of_a_cell_without_a_stream_is_what_it_was():
    assert "stream" not in Cell(**PLAIN).params()
    assert {Cell(**PLAIN).key, resolved(settings("none")).key} == {PLAIN_KEY}


def test_the_stream_of_a_cell():
    streamed, plain = resolved(settings("uniform", low=8, high=8)), resolved(settings("none"))
    assert Cell(**streamed.params()) == streamed
    assert streamed.key != PLAIN_KEY
    assert streamed.stream == {
        "name": "uniform low=8 high=8",
        "samples_per_call": 8.0,
        "sizes": [8] * 256,
    }
    names = row_names([streamed.identity(), plain.identity()])
    assert names[0] == "m stream=uniform low=8 high=8 bs=8 eager float32"
    unmeasured = a_result(**vars(plain.identity()))
    assert [list(row.labels) for row in label_rows([unmeasured])] == [["model", "bs"]]


def test_a_file_counts_by_what_it_says(tmp_path):
    cells = []
    for name, text in (("a.csv", "2\n8\n"), ("b.csv", "2\n\n8"), ("c.csv", "8\n2\n")):
        (tmp_path / name).write_text(text)
        cells.append(resolved(settings("csv", path=str(tmp_path / name))))
    assert cells[0].key == cells[1].key != cells[2].key
    assert cells[0].stream["samples_per_call"] == 5.0
    assert not any(str(tmp_path) in str(cell.params()) for cell in cells)
