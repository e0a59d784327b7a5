"""`effbench --help` fits one screen, its examples work, and it agrees with the help of each
command."""

import importlib
import re
import shlex

import pytest

from effbench.cli import main as command_line
from effbench.cli.main import COMMANDS
from effbench.cli.overview import GROUPS, overview
from effbench.config.launch import jobs_of
from effbench.config.overrides import read
from effbench.core.settings import shipped

SUMMARIES = {name: text for group in GROUPS.values() for name, text in group.items()}


def examples() -> list[list[str]]:
    """The words of each example, without `effbench`."""
    lines = overview().replace("\\\n", " ").splitlines()
    shown = [line.partition("  #")[0] for line in lines if line.startswith("  effbench -m")]
    return [shlex.split(line)[1:] for line in shown]


@pytest.mark.parametrize("words", ["--help", "-h", "help", "bs=8 --help", "-m -h model=tiny"])
def test_help_is_one_screen_and_composes_nothing(effbench, monkeypatch, words):
    monkeypatch.setattr(command_line, "run_sweep", lambda argv: pytest.fail("it composes a sweep"))
    done = effbench(*words.split())
    assert (done.code, done.out, done.err) == (0, overview(), "")
    lines = done.out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_begins_with_its_summary(name, capsys):
    assert importlib.import_module(f"effbench.cli.{COMMANDS[name]}").HELP.startswith(
        SUMMARIES[name]
    )
    with pytest.raises(SystemExit) as end:
        command_line.run([name, "--help"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: effbench {name} ")


@pytest.mark.parametrize(("example", "number"), list(zip(examples(), (4, 9, 4), strict=False)))
def test_examples_are_sweeps(monkeypatch, tmp_path, example, number):
    monkeypatch.chdir(tmp_path)
    assert len(jobs_of(read(example))) == number


def test_what_it_names_exists():
    text = overview()
    for page in re.findall(r"docs/[\w/-]+\.md", text):
        assert (shipped("conf").parent / page).is_file()
    assert set(re.findall(r"`effbench (\w+)`", text)) <= COMMANDS.keys()
