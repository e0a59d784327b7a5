"""Every `effbench …` of the pages is a command that effbench understands."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pages
import pytest

from effbench import cli
from effbench.launcher import cells, launch, overrides
from effbench.launcher.launch import hydra_sweep
from effbench.sweeping import run


@pytest.fixture
def planned(monkeypatch, tmp_path):
    """Sweeps end after the plan; what was planned is in the list."""
    found = []

    def plan_only(jobs, command, server, progress, stop, extend=None):
        parts, settings = cells.split(jobs)
        found.append(cells.resolve(parts, has_cuda=True))
        return run.Outcome("id", "environment", settings.db, "completed", settings.on_failure, [None] * len(parts))

    def without_resume(argv, trust_imported):
        # the sweep that it names is not there
        rest = [word for word in argv if overrides.key_of(word) != "resume"]
        return rest, [word for word in rest if overrides.key_of(word)]

    pages.write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "ForkServer", lambda: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(launch, "conduct", plan_only)
    monkeypatch.setattr(overrides, "expand", without_resume)
    yield found
    # Hydra's --info has every message printed from then on
    logging.root.setLevel(logging.WARNING)
    for handler in [handler for handler in logging.root.handlers if type(handler) is logging.StreamHandler]:
        logging.root.removeHandler(handler)


LINES = dict.fromkeys(line for _, line in pages.commands())
assert {line.split()[1] for line in LINES} >= {"-m", *cli.COMMANDS}


@pytest.mark.parametrize("line", LINES)
def test_commands_parse(line, planned, capsys):
    words = pages.arguments(line)
    if cli.is_bare_word(words[0]):
        parser = pages.parser_of(words[0])
        if words[1:] != ["--help"]:
            parser.parse_args(words[1:])
    elif words == ["--version"]:
        assert cli.run(words) == 0
    else:
        outcome = hydra_sweep(words, quiet=True)
        assert (outcome is None) != bool(planned)
