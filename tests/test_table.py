"""One table in every format: what people see, what programs read, and what hostile text becomes."""

import csv
import io
import json
import math

import pytest

from effbench.errors import UsageError
from effbench.report.site.build import environment
from effbench.table import Column, Shown, Table
from effbench.terminal import Console

EVIL = "<b>|x|\x1b[31m\nnext *line*"


def drawn(table, width=100, **options):
    console = Console(file=io.StringIO(), width=width)
    console.print_table(table, **options)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def html(table):
    macro = '{% import "parts.html.j2" as parts with context %}{{ parts.table(table) }}'
    return environment().from_string(macro).render(table=table)


@pytest.fixture
def table():
    columns = [
        Column("model"),
        Column(
            "latency_ms",
            "latency",
            numeric=True,
            format=lambda value: "—" if value is None else f"{value:.1f} ms",
        ),
        Column("note", optional=True),
    ]
    rows = [
        {"model": "mlp", "latency_ms": Shown(1.25, "1.2 ms", "best")},
        {"model": EVIL, "latency_ms": None},
    ]
    return Table(columns, rows)


def test_for_people(table):
    terminal = drawn(table)
    assert terminal[0].split() == ["model", "latency"] and terminal[1].split() == [
        "mlp",
        "1.2",
        "ms",
        "★",
    ]
    assert len(terminal) == 3 and "\x1b" not in terminal[2] and terminal[2].endswith("—")
    heads, rule, best, evil = table.render("markdown").splitlines()
    assert (heads, rule, best) == ("| model | latency |", "| --- | ---: |", "| mlp | **1.2 ms** |")
    assert "<b>" not in evil and "*line*" not in evil and evil.count("|") == 3
    page = html(table)
    assert '<td class="num best">1.2 ms</td>' in page and "&lt;b&gt;" in page and "<b>" not in page


def test_for_programs(table):
    expected = [
        {"model": "mlp", "latency_ms": 1.25, "note": None},
        {"model": EVIL, "latency_ms": None, "note": None},
    ]
    assert json.loads(table.render("json")) == expected
    assert list(csv.reader(io.StringIO(table.render("csv"))))[1:] == [
        ["mlp", "1.25", ""],
        [EVIL, "", ""],
    ]
    odd = Table([Column("x")], [{"x": math.inf}, {"x": [math.nan]}])
    assert json.loads(odd.render("json")) == [{"x": None}, {"x": [None]}]
    other = Table(table.columns, table.rows, data=[{"entry": True}])
    assert other.render("csv") == "entry\ntrue\n" and other.render("markdown") == table.render(
        "markdown"
    )
    with pytest.raises(UsageError, match="markdown, csv"):
        table.render("xml")


def test_second_lines_links_and_glyphs():
    cell = Shown(1, 'a"><b>', "best", "1–2", 'x.html#"<b>', "hint", ("#fff", "●"))
    made = Table.of([Column("x", help="what")], [[cell]])
    assert (
        made.render("markdown").splitlines()[2].endswith("(1–2)** |")
        and "(1–2) ★" in drawn(made)[1]
    )
    page = html(made)
    assert (
        '<span class="sub">1–2</span>' in page
        and "●" in page
        and "<b>" not in page
        and '"x.html#&#34;' in page
    )


WIDE = Table.of(
    [Column("mode"), Column("max-autotune-no-cudagraphs", numeric=True), Column("why", wide=True)],
    [
        (mode, Shown(1.0, "1.00 ms", "best", "2.00×"), "345 kernels take 0.914 of 3.82 ms")
        for mode in ("eager", "compile+graph")
    ],
)


@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize("width", [120, 76, 60, 40, 26])
def test_a_table_fits_a_console_and_breaks_no_word(width, lines):
    text = drawn(WIDE, width, lines=lines)
    assert max(map(len, text)) <= width
    for word in ("compile+graph", "1.00", "(2.00×)" if width in (120, 26) else "2.00×", "0.914"):
        assert any(word in line for line in text)


def test_a_wide_column_wraps_before_words_break():
    ids = Table.of(
        [Column("sweep"), Column("name", wide=True)],
        [("20261127-100604-d7ff", "all models of the nightly sweep, every mode")],
    )
    assert [line.split()[0] for line in drawn(ids, 40)[:2]] == ["sweep", "20261127-100604-d7ff"]
    assert len(drawn(ids, 40)) > 2
    assert drawn(ids, 27)[0].split() == ["sweep", "20261127-100604-d7ff"]


def test_the_first_form_that_fits_is_shown():
    def form(width):
        console = Console(file=io.StringIO(), width=width)
        fitted = console.fitted(WIDE)
        if fitted is None:
            return None
        console.print(fitted)
        return console.file.getvalue()

    assert "1.00 ms (2.00×) ★" in form(120) and "┃" in form(120)
    assert "1.00 ms ★" in form(75) and "┃" in form(75)
    assert "1.00 ms ★" in form(58) and "┃" not in form(58)
    assert form(40) is None
