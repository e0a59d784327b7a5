"""docs/experiments.md: its example runs, its tables are complete, and its expressions are expressions."""

from __future__ import annotations

import re

import pages
import pytest

from effbench.analysis.claims import Verdict
from effbench.analysis.expression import functions, parse
from effbench.analysis.rows import HIDDEN
from effbench.reproduce.experiment import CLAIM_KEYS, EXPERIMENT_KEYS, TABLE_KEYS, load

PAGE = pages.pages()["experiments.md"]


def keys_of(heading):
    """Key -> whether it is needed, of the table with this heading."""
    (table,) = re.findall(rf"^\| {heading} \|.*\n\|.*\n((?:\|.*\n)+)", PAGE, re.M)
    return {key: needed == "yes" for key, needed in re.findall(r"^\| `(\w+)` \| ([^|]*?) ?\|", table, re.M)}


@pytest.mark.parametrize(
    "heading, keys", [("of an experiment", EXPERIMENT_KEYS), ("of a table", TABLE_KEYS), ("of a claim", CLAIM_KEYS)]
)
def test_keys(heading, keys):
    needed, others = keys
    assert keys_of(heading) == {**dict.fromkeys(needed, True), **dict.fromkeys(others, False)}


def test_functions_and_hidden_columns():
    listed = re.search(r"^\| function \|.*\n\|.*\n((?:\|.*\n)+)", PAGE, re.M)[1]
    assert sorted(re.findall(r"`(\w+)\(", listed)) == functions()
    assert HIDDEN - {"facts"} == {"params", "started_at"}
    assert "but `params` and `started_at`" in PAGE


def test_verdicts():
    listed = re.search(r"^## Verdicts\n(.*?)^## ", PAGE, re.M | re.S)[1]
    assert re.findall(r"^\| `([^`]+)` \|", listed, re.M) == [str(verdict) for verdict in Verdict]


def test_what_is_called_an_expression_is_one():
    shown = re.findall(r"`((?:speedup|relative|evidence|max|all)[\[.(][^`]+)`", PAGE)
    assert len(shown) >= 5
    for text in shown:
        if "condition" not in text and "column" not in text and "NAME" not in text:
            parse(text)


def test_the_example_is_short_and_runs(cli):
    text = pages.files()["widths.yaml"]
    (cli.folder / "widths.yaml").write_text(text, encoding="utf-8")
    assert len(load(cli.folder / "widths.yaml").claims) == 1
    assert len(text.splitlines()) == 1 + 10, "ten lines below its name"
    (command, _, _) = re.findall(r"^effbench (.*widths\.yaml.*)$", PAGE, re.M)
    done = cli.run(*command.split(), *(word for word in cli.tiny if word != "protocol=quick"))
    assert done.code == 0, done
    verdict = re.search(r"^wide A layer of 1024 takes twice as long as one of 256\.: (\w+) · (.*)$", done.out, re.M)
    assert verdict[1] in ("confirmed", "refuted", "depends", "undecided")
    assert "bs=1" in verdict[2] and "bs=64" in verdict[2]
    assert re.findall(r"^ +bs=(\d+): [\d.]+ ", done.out, re.M) == ["1", "64"], "each part has a figure of its own"
