"""Errors of reading and writing: those of effbench's own output end it quietly, all others are
reported."""

import errno
import os
from contextlib import ExitStack
from unittest.mock import Mock

import pytest

from effbench.cli import main as command_line
from effbench.config import launch


@pytest.fixture
def opened():
    """Closes what a test opens."""
    with ExitStack() as stack:
        yield stack


def unread_pipe(opened):
    """A stream into a pipe whose reader has exited."""
    reader, writer = os.pipe()
    os.close(reader)
    return opened.enter_context(os.fdopen(writer, "w"))


def writes(stream):
    """A sweep that prints to this stream."""

    def run_sweep(argv):
        stream.write("text\n")
        stream.flush()

    return run_sweep


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_output_that_nobody_reads_ends_a_command_quietly(opened, monkeypatch, capsys, name):
    stream = unread_pipe(opened)
    monkeypatch.setattr(f"sys.{name}", stream)
    monkeypatch.setattr(command_line, "run_sweep", writes(stream))
    assert command_line.run(["bs=1"]) == 0
    stream.write("what Python writes at exit")
    stream.flush()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("file", "what"),
    [
        (["data/sizes.csv"], "data/sizes.csv: Broken pipe"),
        ([], "a file or connection (in effbench/cli/main.py:"),
    ],
)
def test_an_error_of_a_data_file_is_reported(monkeypatch, capfd, file, what):
    error = OSError(errno.EPIPE, "Broken pipe", *file)
    monkeypatch.setattr(command_line, "run_sweep", Mock(side_effect=error))
    assert command_line.run(["bs=1"]) == 2
    assert capfd.readouterr().err.startswith(f"effbench: cannot read or write {what}")


def test_an_error_that_the_unread_output_cannot_have_is_reported(opened, monkeypatch, capsys):
    """Writing to a pipe never fails with EIO."""
    monkeypatch.setattr("sys.stdout", unread_pipe(opened))
    broken = Mock(side_effect=OSError(errno.EIO, "of a disk"))
    monkeypatch.setattr(command_line, "run_sweep", broken)
    assert command_line.run(["bs=1"]) == 2
    assert "of a disk" in capsys.readouterr().err


def test_an_error_without_a_reader_of_stderr_keeps_its_code(opened, monkeypatch):
    monkeypatch.setattr("sys.stderr", unread_pipe(opened))
    monkeypatch.setattr(
        command_line, "run_sweep", Mock(side_effect=OSError(errno.EIO, "of a disk"))
    )
    assert command_line.run(["bs=1"]) == 2


def test_hydra_does_not_rewrite_an_error_of_a_disk(monkeypatch, capfd):
    broken = Mock(side_effect=OSError(errno.EIO, "Input/output error", "conf.yaml"))
    monkeypatch.setattr(launch, "jobs_of", broken)
    assert command_line.run(["python=x"]) == 2
    assert "cannot read or write conf.yaml: Input/output error" in capfd.readouterr().err
