"""The tables of streams.md that are written by hand say what the code says."""

from __future__ import annotations

import re

import pages
import pytest
import yaml

from effbench import streams
from effbench.buckets import LISTS, PRESETS
from effbench.cell import mode_settings
from effbench.cli import config_folder


def row(name: str) -> str:
    return next(line for line in pages.pages()["streams.md"].splitlines() if line.startswith(f"| `{name}` |"))


@pytest.mark.parametrize("kind", streams.KINDS)
def test_kinds_of_streams(kind):
    text = pages.pages()["streams.md"]
    for name in streams.KINDS[kind]:
        assert re.search(rf"`(stream\.)?{name}`", text), name
    if kind == "uniform":
        assert row(kind).count("`") == 2 + 2 * 2 + 2 * len(streams.KINDS[kind])
        for name, value in streams.KINDS[kind].items():
            assert f"`{name}` {value}" in row(kind)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets(preset):
    said = [int(number) for number in re.findall(r"\d+", row(preset).split("|")[2])]
    if preset in LISTS:
        assert said[-1] == LISTS[preset][-1]
        assert set(said) <= {*LISTS[preset], 8, 16}


def test_settings_of_bucketed_graph():
    node = yaml.safe_load((config_folder() / "mode" / "bucketed-graph.yaml").read_text())
    for name, value in mode_settings(node).items():
        shown = "null" if value is None else value
        assert row(name).split("|")[2].strip() == f"`{shown}`", name
