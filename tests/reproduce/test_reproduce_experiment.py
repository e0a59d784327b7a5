"""Experiment files: those that ship are sound, and every kind of mistake is named with its file."""

from __future__ import annotations

import re

import pytest

from effbench.errors import ConfigError
from effbench.launcher import cells as plan
from effbench.launcher.launch import hydra_sweep
from effbench.reproduce import experiment
from effbench.reproduce.experiment import find, load, load_all

GOOD = """
question: Is a wider
  layer slower?
gpu_seconds: 20
names: {width: model.module.width}
sweeps:
  main: [model=tiny, "model.module.width=16,64"]
evidence:
  count: {_target_: my_pkg.count, size: 3}
tables:
  - {title: Latency (ms), value: latency_ms, rows: [bs, width]}
claims:
  wider:
    text: A wider layer
      is slower.
    value: geomean(relative(latency_ms, 'width', 64)[width == 16])
    unit: ×
    holds: value > 1
    each: bs
    also: {slowest: max(latency_ms), counted: evidence.count.found}
"""


@pytest.fixture
def write(tmp_path):
    def make(text, name="mine.yaml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return make


def test_what_a_file_says(write):
    found = load(write(GOOD))
    assert (found.name, found.question, found.gpu_seconds) == ("mine", "Is a wider layer slower?", 20)
    assert found.sweeps == {"main": ("model=tiny", "model.module.width=16,64")}
    assert found.evidence["count"].target == "my_pkg.count"
    assert found.evidence["count"].settings == {"size": 3}
    (table,), (claim,) = found.tables, found.claims
    assert (table.sweep, table.rows, table.columns) == ("main", ("bs", "width"), "mode")
    assert (claim.id, claim.text, claim.sweep, claim.each) == ("wider", "A wider layer is slower.", "main", ("bs",))
    assert claim.also["slowest"] == "max(latency_ms)"


#: (what is replaced, by what, what is said)
MISTAKES = [
    ("question:", "qestion:", "no 'qestion'; did you mean question?"),
    ("gpu_seconds: 20\n", "", "needs 'gpu_seconds'"),
    ("gpu_seconds: 20", "gpu_seconds: long", "gpu_seconds is 'long'"),
    ("gpu_seconds: 20", "gpu_seconds: -1", "gpu_seconds is -1"),
    ("gpu_seconds: 20", "gpu_seconds: 20\nneeds: rocm", "needs is 'rocm'; allowed: cuda"),
    ("gpu_seconds: 20", "gpu_seconds: 20\nmatrix: 3", "no 'matrix'; allowed: question"),
    ("names: {width: model.module.width}", "names: [width]", "names is ['width']"),
    ("names: {width: model.module.width}", "names: {width: 3}", "width is 3"),
    ("names: {width: model.module.width}", "names: {width: model.module.width, value: bs}", "'value' cannot be a name"),
    ("names: {width: model.module.width}", "names: {width: model.module.width, a-b: bs}", "'a-b' cannot be a name"),
    ('main: [model=tiny, "model.module.width=16,64"]', "main: [tiny]", "sweep main is a list of overrides"),
    ('main: [model=tiny, "model.module.width=16,64"]', "main: []", "sweep main is a list of overrides"),
    ('  main: [model=tiny, "model.module.width=16,64"]', "  [model=tiny]", "sweeps is ['model=tiny']"),
    ("count: {_target_: my_pkg.count, size: 3}", "count: my_pkg.count", "evidence count needs _target_"),
    ("count: {_target_: my_pkg.count, size: 3}", "count: {size: 3}", "evidence count needs _target_"),
    ("  - {title: Latency (ms)", "  - {titel: Latency (ms)", "no 'titel'; did you mean title?"),
    ("  - {title: Latency (ms), value: latency_ms", "  - {title: Latency (ms)", "a table needs 'value'"),
    ("rows: [bs, width]", "rows: [bs, widht]", "no name 'widht'; nearest: width"),
    ("rows: [bs, width]", "columns: [bs, width]", "columns is one name"),
    ("rows: [bs, width]", "sweep: first", "sweep is 'first'; there are main"),
    ("value: latency_ms,", "value: latency,", "no name 'latency'; nearest: latency_ms"),
    ("  - {title: Latency (ms), value: latency_ms, rows: [bs, width]}", "  title: 3", "it is a list of mappings"),
    ("    text: A wider layer\n      is slower.\n", "", "claim wider needs 'text'"),
    ("    holds: value > 1\n", "", "needs either holds"),
    ("    holds: value > 1\n", "    holds: value > 1\n    not_measurable: so\n", "needs either holds"),
    ("    holds: value > 1\n", "    holds: {one: value > 1}\n", "one is written as it is"),
    ("    holds: value > 1\n", "    holds: {one: value > 1, two: 3}\n", "holds 'two': 3 is no expression"),
    ("    holds: value > 1\n", "    holds: {one: value > 1, two: lat > 3}\n", "holds 'two': no name 'lat'"),
    ("    holds: value > 1\n", "    holds: true\n", "True is no expression; put it in quotes"),
    ("    holds: value > 1\n", "    holds: value >\n", "cannot read 'value >'"),
    ("    holds: value > 1\n", "    holds: eval('1')\n", "no function 'eval'"),
    ("    holds: value > 1\n", "    holds: valeu > 1\n", "no name 'valeu'; nearest: value"),
    ("    holds: value > 1\n", "    holds: all(params == 1)\n", "no name 'params'"),
    ("    holds: value > 1\n", "    hold: value > 1\n", "no 'hold'; did you mean holds?"),
    ("    value: geomean(relative(latency_ms, 'width', 64)[width == 16])\n", "", "no name 'value'"),
    ("'width', 64", "'widht', 64", "no name 'widht'; nearest: width"),
    ("    each: bs", "    each: batch", "no name 'batch'"),
    ("    each: bs", "    sweep: other", "sweep is 'other'; there are main"),
    ("    each: bs", "    needs: gpu", "claim wider: needs is 'gpu'"),
    ("slowest: max(latency_ms)", "slowest: max(latency)", "also 'slowest': no name 'latency'"),
    ("slowest: max(latency_ms)", "slowest: 3", "3 is no expression"),
    ("evidence.count.found", "evidence.cuont.found", "no name 'evidence.cuont'; nearest: evidence.count"),
    ("also: {slowest: max(latency_ms), counted: evidence.count.found}", "also: [max(latency_ms)]", "also is ["),
    ("  wider:", "  - wider:", "claims is ["),
    (
        "    holds: value > 1\n",
        "    holds: geomean(latency_ms)\n",
        "'geomean(latency_ms)' is a number, and one condition",
    ),
    (
        "    holds: value > 1\n",
        "    holds: latency_ms > 1\n",
        "is a condition for each row, and one condition is meant",
    ),
    ("    holds: value > 1\n", "    holds: bs.real == 1\n", "'bs' has no parts"),
    ("    holds: value > 1\n", "    holds: 1 < 2\n", "holds: '1 < 2' speaks of nothing that is measured"),
    ("    holds: value > 1\n", "    holds: {one: value > 1, two: 'True'}\n", "'two': 'True' speaks of nothing"),
    (
        "geomean(relative(latency_ms, 'width', 64)[width == 16])",
        "'2'",
        "'value > 1' speaks of nothing that is measured",
    ),
    ("    holds: value > 1\n", "    holds: {one: value > 1, two: max(bs)}\n", "holds 'two': 'max(bs)' is a number"),
    ("geomean(relative(latency_ms, 'width', 64)[width == 16])", "mode", "'mode' is a text for each row"),
    ("geomean(relative(latency_ms, 'width', 64)[width == 16])", "only(mode[bs == 1])", "is a text, and one number"),
    ("slowest: max(latency_ms)", "slowest: max(mode)", "also 'slowest': in 'max(mode)': 'mode' is a text"),
    ("value: latency_ms,", "value: latency_ms + mode,", "'mode' is a text for each row; only numbers"),
    ("question:", "question: [", "is no YAML that can be read"),
    ("gpu_seconds: 20", "gpu_seconds: ${nowhere}", "is no YAML that can be read"),
    ("gpu_seconds: 20", "gpu_seconds: 20\ngpu_seconds: 30", "is no YAML that can be read"),
]


@pytest.mark.parametrize("before, after, said", MISTAKES, ids=[said for *_, said in MISTAKES])
def test_every_mistake_is_named_with_its_file(write, before, after, said):
    assert before in GOOD
    path = write(GOOD.replace(before, after))
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "needs 'question'"),
        ("- a", "an experiment is ['a']"),
        ("question: x\ngpu_seconds: 1", "sweeps, evidence, or both"),
        ("question: x\ngpu_seconds: 1\nclaims: {a: {text: a, holds: 1 < 2}}", "sweeps, evidence, or both"),
        ("question: x\ngpu_seconds: 1\nclaims: {a: b}", "claim a is 'b'"),
        ("question: x\ngpu_seconds: 1\nclaims: {a: {text: a, not_measurable: b}}\ntables: [{title: a, value: bs}]",
         "shows rows of a sweep, and there is none"),
    ],
)  # fmt: skip
def test_files_that_hold_too_little(write, text, said):
    with pytest.raises(ConfigError) as caught:
        load(write(text))
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["all.yaml", "no spaces.yaml", ".hidden.yaml"])
def test_names_that_cannot_be_typed(write, name):
    with pytest.raises(ConfigError, match=re.escape(name)):
        load(write(GOOD, name))


def test_a_file_in_another_encoding(write):
    path = write(GOOD)
    path.write_bytes("question: Größe?\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"mine.yaml is no YAML that can be read: .*utf-8"):
        load(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the experiment .*nowhere"):
        load(tmp_path / "nowhere.yaml")


def test_two_that_judge_one_claim(write, tmp_path):
    write(GOOD, "one.yaml")
    write(GOOD, "two.yaml")
    with pytest.raises(ConfigError, match="claim wider is judged by one and by two"):
        load_all(tmp_path)


class TestFind:
    @pytest.fixture(autouse=True)
    def shipped(self, write, tmp_path, monkeypatch):
        (tmp_path / "shipped").mkdir()
        for name, claim in (("one", "P1"), ("two", "P2")):
            write(GOOD.replace("wider:", f"{claim}:"), f"shipped/{name}.yaml")
        monkeypatch.setattr(experiment, "folder", lambda: tmp_path / "shipped")

    def names(self, *words):
        return [found.name for found in find(list(words))]

    def test_names_claims_and_all(self):
        assert self.names("two", "one") == ["two", "one"]
        assert self.names("P2") == self.names("p2") == ["two"]
        assert self.names("all") == ["one", "two"]
        assert self.names("P1", "one", "all") == ["one", "two"], "each once"

    def test_files(self, write):
        assert self.names(str(write(GOOD)), "one") == ["mine", "one"]

    @pytest.mark.parametrize(
        "word, said", [("tow", "nearest: two"), ("P3", "there are one, two"), ("zzz", "there are one, two")]
    )
    def test_unknown_ones(self, word, said):
        with pytest.raises(ConfigError) as caught:
            find([word])
        assert said in str(caught.value)


SHIPPED = load_all()
CLAIMS = [claim for found in SHIPPED for claim in found.claims]


class TestShipped:
    def test_ids_are_those_of_the_ledger_each_once(self):
        ids = [claim.id for claim in CLAIMS]
        assert len(ids) == len(set(ids))
        known = {
            f"{letter}{number}" for letter, last in (("P", 16), ("O", 10), ("S", 18)) for number in range(1, last + 1)
        }
        assert set(ids) <= known

    @pytest.mark.parametrize("found", SHIPPED, ids=lambda found: found.name)
    def test_they_say_what_they_cost(self, found):
        assert 0 < found.gpu_seconds <= 3600
        assert found.question.endswith("?")
        assert found.claims

    @pytest.mark.parametrize("found", SHIPPED, ids=lambda found: found.name)
    def test_their_evidence_exists(self, found):
        import importlib
        import inspect

        for piece in found.evidence.values():
            module, _, name = piece.target.rpartition(".")
            inspect.signature(getattr(importlib.import_module(module), name)).bind(None, **piece.settings)

    @pytest.mark.parametrize("found", [one for one in SHIPPED if one.sweeps], ids=lambda found: found.name)
    def test_their_sweeps_can_be_planned_and_have_their_names(self, found):
        planned = []

        def only_plan(configs, command, server, progress, stop, extend=None):
            parts, _ = plan.split(configs)
            planned.extend(plan.resolve(parts, has_cuda=True))

        for words in found.sweeps.values():
            before = len(planned)
            assert hydra_sweep(list(words), quiet=True, conductor=only_plan, server=NoServer()) is None
            assert len(planned) > before
        for path in found.names.values():
            held = [cell.params() for cell in planned]
            for part in path.split("."):
                held = [inner[part] for inner in held if part in inner]
            assert held, f"no cell has {path}"


class NoServer:
    """In the place of the fork server: nothing is run."""

    def close(self):
        pass
