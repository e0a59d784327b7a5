"""Every `effbench …` of the pages is a command that effbench understands."""

from __future__ import annotations

import re
from dataclasses import replace

import pages
import pytest

from effbench.cli import main as cli
from effbench.config import cells, launch
from effbench.config.launch import hydra_sweep
from effbench.run import sweep as run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    pages.write_files(folder)
    return folder


@pytest.fixture
def planned(monkeypatch, folder):
    """Sweeps end after the plan; what was planned lies in the list."""
    found = []

    def plan_only(jobs, command):
        parts, settings = cells.split(jobs)
        found.append(cells.resolve(parts, has_cuda=True))
        return run.Outcome("id", settings.db, "completed", settings.on_failure, [None] * len(parts))

    def without_resume(line):
        # the sweep that it names is not there
        return replace(line, words=[word for word in line.words if word.key != "resume"])

    monkeypatch.chdir(folder)
    for name in ("conduct", "print_plan"):
        monkeypatch.setattr(launch, name, plan_only)
    monkeypatch.setattr(launch, "expand", without_resume)
    return found


@pytest.mark.parametrize("line", dict.fromkeys(line for _, line in pages.commands()))
def test_commands_parse(line, planned, capsys):
    words = pages.arguments(line)
    if cli.is_bare_word(words[0]):
        pages.parse(words)
    elif words == ["--version"]:
        assert cli.run(words) == 0
    else:
        # thousands of cells take seconds
        short = [re.sub(r"range\(1,\d+\)", "range(1,3)", word) for word in words]
        hydra_sweep(short, quiet=True)
        prints_only = {"--cfg", "--info"}.intersection(words)
        assert bool(planned) != bool(prints_only)
