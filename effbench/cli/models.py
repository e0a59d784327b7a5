"""`effbench models`: list the models that effbench ships, and the networks of installed
libraries."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import yaml

from effbench.cli import options
from effbench.core.errors import NothingFoundError
from effbench.core.settings import shipped
from effbench.core.table import Column, Table
from effbench.models.catalog import networks

HELP = (
    "List the models that effbench ships, and the networks of torchvision, timm and transformers"
    " installed here."
)
#: Rows of the table if nothing is searched.
MOST = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "text",
        nargs="*",
        metavar="TEXT",
        help="list only models whose name, library or description contains all these words",
    )
    options.add_format(parser, "json", "csv")


def run(args: argparse.Namespace) -> int:
    words = [word.casefold() for word in args.text]
    rows = [row for row in every_model() if matches(row, words)]
    if not rows:
        raise NothingFoundError(
            f"no model matches {' '.join(args.text)!r}; effbench models lists all"
        )
    columns = [Column("name"), Column("overrides", "type this"), Column("description", wide=True)]
    if args.format != "table":
        options.write(Table.of(columns, rows).render(args.format), args)
        return 0
    most = len(rows) if words else MOST
    with options.console(args) as console:
        Table.of(columns, rows[:most]).print(console)
        if len(rows) > most:
            hidden = len(rows) - most
            console.print_line(
                f"and {hidden} more: effbench models TEXT searches, --format csv lists all"
            )
    return 0


def matches(row: tuple[str, str, str], words: list[str]) -> bool:
    """Return whether a row has all these words, in any case."""
    text = " ".join(row).casefold()
    return all(word in text for word in words)


def every_model() -> Iterator[tuple[str, str, str]]:
    """Yield name, overrides and description of each model: effbench's own, then presets, then all
    others."""
    for path in sorted((shipped("conf") / "model").glob("*.yaml")):
        yield path.stem, f"model={path.stem}", yaml.safe_load(path.read_text())["description"]
    for library, name, description in networks():
        yield name, f"model={library} model.arch={name}", description
