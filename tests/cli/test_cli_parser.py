"""Options stand anywhere among the other words of a subcommand."""

import importlib

from effbench.cli import COMMANDS
from effbench.commands.options import Parser


def parsed(name, *words):
    parser = Parser(prog=name)
    importlib.import_module(f"effbench.commands.{COMMANDS[name]}").add_arguments(parser)
    return vars(parser.parse_args(words))


def test_options_between_words():
    for words, name, value in (
        ("reproduce O10 --db o.db protocol=quick", "words", ["O10", "protocol=quick"]),
        ("reproduce --fresh O10 --quiet bs=1 --db o.db bs=2", "words", ["O10", "bs=1", "bs=2"]),
        ("baseline set main --db o.db last", "sweep", "last"),
        ("history ack a --db o.db b", "names", ["a", "b"]),
    ):
        found = parsed(*words.split())
        assert (found[name], found["db"]) == (value, "o.db")
