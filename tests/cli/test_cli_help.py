"""`effbench --help` fits one screen, its examples work, and it agrees with the help of each
command."""

import importlib
import re
import shlex
import time

import pytest

from effbench import cli as command_line
from effbench.cli import COMMANDS, is_bare_word
from effbench.commands.overview import GROUPS, overview
from effbench.config import Config
from effbench.launcher import launch

SUMMARIES = {name: summary for group in GROUPS for name, summary in group.summaries.items()}


def examples() -> list[list[str]]:
    """The words of each example, without `effbench`."""
    text = overview().replace("\\\n", " ")
    lines = [
        line.partition("  #")[0] for line in text.splitlines() if line.startswith("  effbench -m")
    ]
    return [shlex.split(line)[1:] for line in lines]


@pytest.mark.parametrize("words", ["--help", "-h", "help", "bs=8 --help", "-m -h model=tiny"])
def test_help_is_one_screen(effbench, words):
    done = effbench(*words.split())
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert done.out == overview() and len(lines) <= 40
    assert max(map(len, lines)) <= 100
    assert not any(line.rstrip() != line for line in lines)


def test_it_composes_nothing_and_starts_no_server(effbench, monkeypatch):
    monkeypatch.setattr(command_line, "run_sweep", lambda argv: pytest.fail("it composes a sweep"))
    start = time.perf_counter()
    assert effbench("--help").code == 0
    assert time.perf_counter() - start < 1


def test_every_command_is_in_one_group_and_its_help_begins_alike(effbench, capsys):
    assert sorted(SUMMARIES) == sorted(COMMANDS)
    assert len(SUMMARIES) == sum(len(group.summaries) for group in GROUPS)
    for name, summary in SUMMARIES.items():
        module = importlib.import_module(f"effbench.commands.{COMMANDS[name]}")
        assert module.HELP.startswith(summary), name
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            command_line.run([name, "--help"])
        text = " ".join(capsys.readouterr().out.split())
        assert end.value.code == 0
        assert text.startswith(f"usage: effbench {name} ") and summary in text
        assert text.endswith(
            "effbench --help lists all commands; docs/reference/commands.md explains them."
        )


def test_the_four_examples_are_sweeps(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = examples()
    assert len(found) == 4
    planned = []
    for words in found[:3]:
        launch.hydra_sweep(
            words, quiet=True, conductor=lambda jobs, command: planned.append(len(jobs))
        )
    assert planned == [4, 9, 4]
    assert found[3] == ["-m", "resume=last"]


def test_what_it_names_exists(effbench):
    text = overview()
    pages = re.findall(r"docs/[\w/-]+\.md", text)
    assert len(pages) == 2 and all(
        (launch.config.shipped("conf").parent / page).is_file() for page in pages
    )
    modes = {path.stem for path in (launch.config.shipped("conf") / "mode").glob("*.yaml")}
    named = re.search(r"mode= takes (.*) \.\.\.", text)[1].split(", ")
    assert len(named) == 4 and set(named) <= modes
    for command in re.findall(r"`effbench (\w+)`", text):
        assert is_bare_word(command) and command in COMMANDS


def test_the_composed_configuration_is_printed_only_on_request(cli):
    assert f"bs: {Config.bs}" not in cli.run("--help").out
    done = cli.run("--cfg", "job")
    assert done.code == 0 and "\nbs: 1\n" in done.out and "rounds: 5" in done.out
