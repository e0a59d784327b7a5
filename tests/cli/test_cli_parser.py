"""Options stand anywhere among the other words of a subcommand."""

from __future__ import annotations

import importlib

import pytest

from effbench.cli import COMMANDS, run
from effbench.commands.options import Parser


def parsed(*words):
    name, *rest = words
    parser = Parser(prog=name)
    importlib.import_module(f"effbench.commands.{COMMANDS[name]}").add_arguments(parser)
    return vars(parser.parse_args(rest))


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("reproduce O10 --db o.db protocol=quick", "words", ["O10", "protocol=quick"]),
        ("reproduce --fresh O10 --quiet bs=1 --db o.db bs=2", "words", ["O10", "bs=1", "bs=2"]),
        ("compare before --db o.db after", "sweeps", ["before", "after"]),
        ("import a.tar --db o.db b.tar", "sources", ["a.tar", "b.tar"]),
        ("baseline set main --db o.db last", "sweep", "last"),
        ("history ack a --db o.db b", "names", ["a", "b"]),
    ],
)
def test_options_between_words(words, name, value):
    found = parsed(*words.split())
    assert found[name] == value
    assert found["db"] == "o.db"


def test_what_is_left_out_has_its_default():
    assert parsed("baseline", "set", "main")["sweep"] == "last"
    assert parsed("reproduce")["words"] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("reproduce O10 --dbb o.db protocol=quick", "unrecognized arguments: --dbb"),
        ("compare --db o.db", "the following arguments are required: SWEEP"),
        ("advise buckets --db o.db", "one of the arguments --trace --stream is required"),
        ("advise mode --db o.db bs=1", "unrecognized arguments: bs=1"),
    ],
)
def test_mistakes(words, said, capsys):
    assert run(words.split()) == 2
    assert said in capsys.readouterr().err
