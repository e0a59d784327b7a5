"""One table in every format: what people see, what programs read, and what hostile text becomes."""

import csv
import io
import json
import math

import pytest
from rich.console import Group

from effbench.errors import UsageError
from effbench.table import Column, Shown, Table
from effbench.terminal import Console

EVIL = "<b>|x|\x1b[31m\nnext *line*"


def drawn(table, width=100, **options):
    console = Console(file=io.StringIO(), width=width)
    console.print_table(table, **options)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


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
    page = table.render("html")
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
    page = made.render("html")
    assert (
        '<span class="sub">1–2</span>' in page
        and "●" in page
        and "<b>" not in page
        and '"x.html#&quot;' in page
    )


def test_a_table_that_is_too_wide_breaks_the_longest_heading_first_and_never_a_word():
    columns = [
        Column("model"),
        Column("max-autotune-no-cudagraphs", numeric=True),
        Column("compile+graph", numeric=True),
    ]
    rows = [{"model": "mlp", "max-autotune-no-cudagraphs": "1.50×", "compile+graph": "4.4×"}]
    for width, heads in [
        (60, ["model  max-autotune-no-cudagraphs  compile+graph"]),
        (42, ["       max-autotune-no-", "model        cudagraphs  compile+graph"]),
        (
            31,
            [
                "               max-",
                "       autotune-no-  compile+",
                "model    cudagraphs     graph",
            ],
        ),
    ]:
        assert drawn(Table(columns, rows), width)[:-1] == heads, width


def test_wide_columns_go_below_their_rows_where_they_would_be_narrow():
    columns = [Column("mode"), Column("time", numeric=True), Column("why", wide=True)]
    why = "the GPU is idle 76 % of the time: 345 kernels take 0.914 of 3.82 ms"
    rows = [
        {"mode": mode, "time": Shown(1.0, "1.00 ms", "", "2.00×"), "why": why}
        for mode in ("eager", "max-autotune-no-cudagraphs")
    ]
    for width, lines in [
        (100, ["│   2.00× │ 3.82 ms"]),
        (70, ["  2.00×", f"  {why} "]),
        (
            36,
            [
                "max-autotune-no-cudagraphs 1.00 ms",
                "  the GPU is idle 76 % of the time:",
                "  345 kernels take",
            ],
        ),
        (30, ["max-autotune-no-cudag 1.00 ms", "  time: 345 kernels take 0.914"]),
    ]:
        console = Console(file=io.StringIO(), width=width)
        console.print(Table(columns, rows).roomy(width))
        text = console.file.getvalue()
        assert all(line in text for line in lines) and max(map(len, text.splitlines())) <= width
        assert text.count("mode") == 1 and ("│" in text) == (width == 100)
    short = Table(columns, [row | {"why": "not profiled"} for row in rows])
    assert not isinstance(short.roomy(70), Group), "a wide column that fits stays"


def test_wide_columns_go_below_their_rows_where_words_would_break():
    columns = [
        Column("sweep"),
        Column("name", wide=True),
        Column("state"),
        Column("label", wide=True),
    ]
    table = Table.of(
        columns,
        [("20261127-100604-d7ff", "nightly", "completed", ""), ("20261128", "", "running", "x")],
    )
    assert drawn(table, 50)[1].split() == ["20261127-100604-d7ff", "nightly", "completed"]
    assert drawn(table, 34) == [
        "sweep                state",
        "20261127-100604-d7ff completed",
        "  name: nightly",
        "20261128             running",
        "  label: x",
    ]


def test_second_lines_stand_below_or_in_brackets():
    table = Table(
        [Column("speedup", numeric=True)], [{"speedup": Shown(2.0, "2.00×", "best", "1.90–2.10")}]
    )
    for stacked, lines in [(False, ["2.00× (1.90–2.10) ★"]), (True, ["  2.00× ★", "1.90–2.10"])]:
        assert drawn(table, stacked=stacked)[1:] == lines


def test_words_break_before_figures():
    columns = [Column("model"), Column("mode"), Column("speedup (95 %)", numeric=True)]
    table = Table.of(
        columns,
        [("vit_base_patch16_224", "max-autotune", Shown(12.0, "12.00×", "best", "11.00–13.00"))],
    )
    for width, words in [
        (60, ["12.00× (11.00–13.00) ★"]),
        (51, ["vit_base_patch16_224  max-autotune"]),
        (34, []),
    ]:
        text = drawn(table, width)
        assert all(
            any(word in line for line in text) for word in [*words, "(95 %)", "(11.00–13.00)"]
        ), width
        assert max(map(len, text)) <= width
