"""The tables of streams.md that are written by hand say what the code says."""

from __future__ import annotations

import re

import pages
import yaml

from effbench import streams
from effbench.buckets import LISTS, PRESETS
from effbench.cell import mode_settings
from effbench.cli import config_folder


def row(name: str) -> str:
    return next(line for line in pages.pages()["streams.md"].splitlines() if line.startswith(f"| `{name}` |"))


def test_kinds_of_streams():
    text = pages.pages()["streams.md"]
    for settings in streams.KINDS.values():
        assert all(re.search(rf"`(stream\.)?{name}`", text) for name in settings)
    for name, value in streams.KINDS["uniform"].items():
        assert f"`{name}` {value}" in row("uniform")


def test_presets():
    for preset in PRESETS:
        numbers = [int(number) for number in re.findall(r"\d+", row(preset).split("|")[2])]
        assert preset not in LISTS or (numbers[-1] == LISTS[preset][-1] and set(numbers) <= {*LISTS[preset], 8, 16})


def test_settings_of_bucketed_graph():
    node = yaml.safe_load((config_folder() / "mode" / "bucketed-graph.yaml").read_text())
    for name, value in mode_settings(node).items():
        shown = "null" if value is None else value
        assert row(name).split("|")[2].strip() == f"`{shown}`", name
