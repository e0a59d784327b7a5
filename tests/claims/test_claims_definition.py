"""Experiment files: every kind of mistake is named with its file and claim, and listing them runs
nothing."""

import json

import pytest

from effbench.claims import definition
from effbench.claims.definition import find, load
from effbench.core.errors import ConfigError

GOOD = '''"""Is a wider
layer slower?

Notes.
"""

import torch

from effbench.claims import Answer, Claim, geomean, ratio
from effbench.claims.checks import check

GPU_SECONDS = 20
SWEEPS = {"main": ["model=tiny", "model.module.width=16,64"]}


@check()
def count(device):
    return {"found": 3}


@Claim("wider", "A wider layer is slower.", unit="×")
def wider(main, count):
    value = geomean(ratio(main, "latency_ms", width=[64, 16]))
    return Answer(value.above(1), value, {"counted": count.found})


about = Claim("about", "Words.", not_measurable="it is about words")
'''


@pytest.fixture
def write(tmp_path):
    def make(text, name="mine.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return make


def test_what_a_file_says(write):
    found = load(write(GOOD, "my_own.py"))
    assert found.name == "my-own"
    assert found.question == "Is a wider layer slower?"
    assert found.checks == ["count"]
    wider, about = found.claims
    assert wider.id == "wider"
    assert wider.inputs == ["main", "count"]
    assert about.inputs == []


#: (what is replaced, by what, part of the message)
MISTAKES = [
    ("GPU_SECONDS = 20", "GPU_SECONDS =", "running it raised SyntaxError"),
    ("import torch\n", "import nosuch\n", "running it raised ModuleNotFoundError"),
    (', unit="×"', ', unti="×"', "got an unexpected keyword argument 'unti'"),
    (', unit="×"', ', needs="CUDA"', "claim wider needs 'CUDA'; expected 'cuda' or 'two GPUs'"),
    ("GPU_SECONDS = 20", 'NEEDS = ["cuda"]', "needs ['cuda']; expected 'cuda' or 'two GPUs'"),
    ('["model=tiny", "model.module.width=16,64"]', '"model=tiny"', "SWEEPS: Expected `array`, got"),
    (
        '{"main": ["model=tiny", "model.module.width=16,64"]}',
        '["bs=1"]',
        "SWEEPS: Expected `object`",
    ),
    (', not_measurable="it is about words"', "", "claim about takes nothing; expected some of"),
    (
        "def wider(main, count)",
        "def wider(other, count)",
        "takes other, count; expected some of rows, main, count",
    ),
]


@pytest.mark.parametrize(("before", "after", "text"), MISTAKES)
def test_every_mistake_is_named_with_its_file(write, before, after, text):
    assert before in GOOD
    path = write(GOOD.replace(before, after))
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert text in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def shipped(write, tmp_path, monkeypatch):
    records = []
    for name, claim in (("one", "P1"), ("two", "P2")):
        write(GOOD.replace('"wider"', f'"{claim}"'), f"shipped/{name}.py")
        records.append({"claim": claim, "experiment": name})
    write(json.dumps(records), "shipped/verdicts-h200.json")
    monkeypatch.setattr(definition, "FOLDER", tmp_path / "shipped")


@pytest.mark.usefixtures("shipped")
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["two", "one"], ["two", "one"]),
        (["p2"], ["two"]),
        (["P1", "one", "all"], ["one", "two"]),
        (["mine.py", "one"], ["mine", "one"]),
    ],
)
def test_find(words, names, write, monkeypatch):
    monkeypatch.chdir(write(GOOD).parent)
    assert [experiment.name for experiment in find(words)] == names


@pytest.mark.usefixtures("shipped")
def test_nothing_is_found():
    with pytest.raises(ConfigError, match=r"did you mean two\?; .* lists them"):
        find(["tow"])
