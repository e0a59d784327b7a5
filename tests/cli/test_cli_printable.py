"""Names, labels, notes and reasons cannot steer the terminal: control characters of data reach no
output for people."""

import io
import json
import sys
from types import SimpleNamespace

import pytest
from made_sweeps import a_cell, environment

from effbench.cli import options
from effbench.core.cell import Status
from effbench.core.printable import one_line, printable
from effbench.core.terminal import Console, escape
from effbench.store import Store

EVIL = "x\x1b]0;owned\x07\x1b[31mred\x9b2J\u202egnp\u2066\r\nFAKE\tLINE"
HIDDEN = ("\x1b", "\x07", "\x9b", "\u202e", "\u2066", "\r", "\nFAKE")


@pytest.fixture
def evil(made):
    """Two sweeps in which whatever a user or a machine names steers a terminal; returns their
    ids."""
    broken = {"status": Status.ERROR, "reason": EVIL}
    noisy = {"latency_ms": [1.0, 1.1, 0.9, 1.0, 1.2]}
    cells = {
        a_cell("eager", EVIL): noisy,
        a_cell("default", EVIL): {"latency_ms": 0.5},
        a_cell(EVIL, EVIL): broken,
    }
    facts = {
        "name": EVIL,
        "label": EVIL,
        "host": {"hostname": EVIL},
        "env": environment(gpu_name=EVIL),
    }
    ids = [made.sweep(cells, **facts) for _ in range(2)]
    extra = json.dumps({"traceback": f"Traceback\n  {EVIL}"}).replace("'", "''")
    made.sql(f"UPDATE trial SET extra = '{extra}' WHERE status = 'error'")
    with Store.open(made.path, mode="write") as store:
        store.set_baseline("main", ids[0], EVIL)
    return ids


COMMANDS = (
    "ls",
    "ls --cells",
    "ls --failures",
    "ls --failures --traceback",
    "show",
    "show --why",
    "show --metric latency_ms",
    "show --format markdown",
    "show --why --format markdown",
    "compare main last --all",
    "compare main last --all --format markdown",
    "check --baseline main",
    "check --baseline main --format markdown",
    "baseline ls",
    "history",
    "history --format markdown",
    "advise mode --bs 8",
    "baseline rm main",
)
#: Errors that quote what was typed; they may take several lines.
REFUSED = (
    ("show", "--sweep", EVIL + "?"),
    ("history", "--model", EVIL + "?"),
    ("import", EVIL),
    ("show", "--db", EVIL),
    (EVIL,),
)


def test_every_command_for_people(evil, effbench):
    noted = effbench("baseline", "set", "noted", "last", "--note", EVIL)
    for done in (noted, *(effbench(*words.split()) for words in COMMANDS)):
        assert done.out and not [sign for sign in HIDDEN if sign in done.out + done.err], done
    for words in REFUSED:
        done = effbench(*words)
        assert done.code in (2, 3) and not [sign for sign in HIDDEN[:-1] if sign in done.err], words


def test_data_stays_faithful_in_a_file_and_is_printable_on_a_terminal(
    evil, effbench, tmp_path, capsys, monkeypatch
):
    assert effbench("export", "--sweep", "last", "--out", "rows.csv").code == 0
    assert EVIL in (tmp_path / "rows.csv").read_bytes().decode()
    assert "\x1b" in effbench("export", "--sweep", "last", "--format", "csv").out, (
        "a pipe is a file"
    )
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    options.write(f"{EVIL}\nnext\n", SimpleNamespace(out=None))
    said = capsys.readouterr().out
    assert "\x1b" not in said and said.endswith("\nnext\n")


def test_the_console_keeps_its_own_colours():
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, color_system="standard", width=80)
    console.print(f"[red]{escape(EVIL)}[/]")
    console.print(EVIL, markup=False)
    text = stream.getvalue()
    assert "\x1b[31m" in text and "\x1b]0" not in text and "\x1b[31mred" not in text


def test_one_line():
    assert one_line(" a\n b\x1bc\t") == "a b c"
    assert one_line("abcdef", 4) == "abc…"
    assert printable("a\nb\tc\ud800") == "a\nb c "
