"""Experiment files: every kind of mistake is named with its file and claim, and listing them runs
nothing."""

import pytest

import effbench.claims
from effbench.claims.definition import find, load, load_all, outline
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


@Claim("wider", "A wider layer is slower.", unit="×", each="bs")
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
    assert (found.name, found.question) == ("my-own", "Is a wider layer slower?")
    assert found.checks == ["count"]
    wider, about = found.claims
    assert (wider.id, wider.inputs, wider.axes) == ("wider", ["main", "count"], ["bs"])
    assert about.inputs == []


#: (what is replaced, by what, part of the message)
MISTAKES = [
    ("GPU_SECONDS = 20", "GPU_SECONDS = 4 * 5", "must be literals"),
    ("GPU_SECONDS = 20", "GPU_SECONDS =", "invalid syntax"),
    ("import torch\n", "import nosuch\n", "running it raised ModuleNotFoundError"),
    (
        '{"main": ["model=tiny", "model.module.width=16,64"]}',
        "[1]",
        "cannot read the experiment",
    ),
    (', unit="×"', ', unti="×"', "got an unexpected keyword argument 'unti'"),
    ('"about"', '"wider"', "claim wider is defined twice"),
    (', not_measurable="it is about words"', "", "claim about needs either a function"),
    (
        "def wider(main, count)",
        "def wider(other, count)",
        "takes other, count; expected some of rows, main, count",
    ),
    ("def wider(main, count)", "def wider(count)", "claim wider splits rows by each"),
]


@pytest.mark.parametrize(("before", "after", "text"), MISTAKES)
def test_every_mistake_is_named_with_its_file(write, before, after, text):
    assert before in GOOD
    path = write(GOOD.replace(before, after))
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert text in str(caught.value) and str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_outline_runs_nothing(write, tmp_path, monkeypatch):
    path = write(
        GOOD.replace("import torch", "import pathlib\npathlib.Path(__file__ + '.ran').touch()")
    )
    assert [claim.id for claim in outline(path).claims] == ["wider", "about"]
    monkeypatch.setattr(effbench.claims, "FOLDER", tmp_path)
    assert load_all()[0].name == "mine"
    assert not (tmp_path / "mine.py.ran").exists()


@pytest.fixture
def shipped(write, tmp_path, monkeypatch):
    for name, claim in (("one", "P1"), ("two", "P2")):
        text = GOOD.replace('"wider"', f'"{claim}"').replace('"about"', f'"{claim}a"')
        write(text, f"shipped/{name}.py")
    monkeypatch.setattr(effbench.claims, "FOLDER", tmp_path / "shipped")


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
