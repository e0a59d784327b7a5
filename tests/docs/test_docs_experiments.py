"""docs/reference/experiments.md: the examples run, and the tables are complete."""

from __future__ import annotations

import inspect
import re

import pages
import pytest

import effbench.claims
from effbench.claims.definition import Claim
from effbench.store.schema import ClaimVerdict

PAGE = pages.pages()["reference/experiments.md"]


def first_cells(heading):
    (table,) = re.findall(rf"^\| {re.escape(heading)} \|.*\n\|.*\n((?:\|.*\n)+)", PAGE, re.M)
    return [line.split(" | ")[0] for line in table.splitlines()]


def test_tables_are_complete():
    fields = [name for name in inspect.signature(Claim).parameters if name != "function"]
    assert re.findall(r"`(\w+)`", " ".join(first_cells("`Claim(…)`"))) == fields
    listed = set(re.findall(r"`(\w+)\(", " ".join(first_cells("function"))))
    assert listed == {name for name in effbench.claims.__all__ if name.islower()}
    verdicts = pages.pages()["reference/statuses.md"].partition("## Verdicts of claims")[2]
    assert re.findall(r"^\| `([^`]+)` \|", verdicts, re.M) == [
        str(verdict) for verdict in ClaimVerdict
    ]


@pytest.mark.slow
def test_the_examples_run(cli):
    cli.imports = False
    for name in ("widths.py", "addresses.py"):
        (cli.folder / name).write_text(pages.files()[name], encoding="utf-8")
    assert "\neffbench reproduce widths.py\n" in PAGE
    done = cli.run("reproduce", "widths.py", *cli.tiny[1:])  # with a protocol of its own
    assert done.code == 0, done
    assert re.search(
        r"^wide A layer of 1024 takes twice as long as one of 256: .*bs=1\b.*bs=64", done.out, re.M
    )
    parts = re.findall(r"^ +bs=(\d+): [\d.]+", done.out, re.M)
    assert parts == ["1", "64"], "each part has a figure of its own"
    done = cli.run("reproduce", "addresses.py", "device=cpu")
    assert (done.code, done.err) == (0, ""), done
    assert "An optimizer's step changes parameters in place: confirmed · holds" in done.out
