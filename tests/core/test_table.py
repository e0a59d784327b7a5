"""One table in every format: what people see, what programs read, and what hostile text becomes."""

import csv
import io
import json
import math

import pytest

from effbench.core.table import Column, Shown, Table
from effbench.core.terminal import Console
from effbench.render.site.build import environment

EVIL = "<b>|x|\x1b[31m\nnext *line*"
BEST = Shown(
    1.25, "1.2 ms", "best", "1–2", 'x.html#"<b>', "hint", {"color": "#fff", "character": "●"}
)
TABLE = Table(
    [
        Column("model"),
        Column("latency_ms", "latency", numeric=True),
        Column("note", optional=True),
    ],
    [{"model": "mlp", "latency_ms": BEST}, {"model": EVIL, "latency_ms": Shown(None, "—")}],
)


def drawn(table, width=100, **options):
    console = Console(file=io.StringIO(), width=width)
    table.print(console, **options)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_on_a_terminal():
    heads, best, evil = drawn(TABLE)
    assert heads.split() == ["model", "latency"]
    assert best.split() == ["mlp", "1.2", "ms", "(1–2)", "★"]
    assert evil.endswith("—")
    assert "\x1b" not in evil


def test_as_markdown():
    heads, rule, best, evil = TABLE.render("markdown").splitlines()
    assert heads == "| model | latency |"
    assert rule == "| --- | ---: |"
    assert best == "| mlp | **1.2 ms (1–2)** |"
    assert "<b>" not in evil
    assert "*line*" not in evil
    assert evil.count("|") == 3


def test_as_html():
    macro = '{% import "parts.html.j2" as parts with context %}{{ parts.table(table) }}'
    page = environment().from_string(macro).render(table=TABLE)
    assert '<td class="num best" title="hint">' in page
    assert '<span class="sub">1–2</span>' in page
    assert "●" in page
    assert "&lt;b&gt;" in page and "<b>" not in page and '"x.html#&#34;' in page


def test_for_programs():
    first = {"model": "mlp", "latency_ms": 1.25, "note": None}
    second = {"model": EVIL, "latency_ms": None, "note": None}
    assert json.loads(TABLE.render("json")) == [first, second]
    _, *rows = csv.reader(io.StringIO(TABLE.render("csv")))
    assert rows == [["mlp", "1.25", ""], [EVIL, "", ""]]


def test_numbers_that_are_not_finite_become_null():
    odd = Table([Column("x")], [{"x": math.inf}, {"x": [math.nan]}])
    assert json.loads(odd.render("json")) == [{"x": None}, {"x": [None]}]


def test_labels_are_repeated_only_if_one_changes():
    columns = [Column(name, once=name != "c") for name in "abc"]
    table = Table.of(columns, [(1, 1, 1), (1, 1, 2), (1, 2, 3)])
    assert [line.split() for line in drawn(table)[1:]] == [["1", "1", "1"], ["2"], ["1", "2", "3"]]


WIDE = Table.of(
    [Column("mode"), Column("max-autotune-no-cudagraphs", numeric=True), Column("why", wide=True)],
    [
        (mode, Shown(1.0, "1.00 ms", "best", "2.00×"), "345 kernels take 0.914 of 3.82 ms")
        for mode in ("eager", "compile+graph")
    ],
)


@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize("width", [120, 76, 40])
def test_a_table_fits_a_console_and_loses_no_text(width, lines):
    text = drawn(WIDE, width, lines=lines)
    assert max(map(len, text)) <= width
    letters = "".join(text)
    assert [letters.count(sign) for sign in "★×"] == [2, 2]
