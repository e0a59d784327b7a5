"""Where the time of a cell goes, in a browser: the waterfall is drawn, and another side can be
chosen."""

import dataclasses
import math

import pytest
from browsing import EVIL, assert_accessible, content, page_of, report_of, site, until, visits
from made_sweeps import a_cell
from test_render_cells import record, trial
from test_render_explained import CALLS, DEFAULT, EAGER, GRAPH, traced

READY = "document.querySelector('#explained .chart[data-drawn]')"
CHART = "document.querySelector('#explained .chart')"
#: The drawn bars: the length of each, and the names at the axis.
BARS = f"{CHART}.data[0].x"
NAMES = f"{CHART}.layout.yaxis.ticktext"
HOSTILE = a_cell(EVIL[0])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The page of a traced point and of a cell without a trace, and the page's data."""
    folder = tmp_path_factory.mktemp("explained-page")
    cells = {cell: [traced(cell, number) for number in range(3)] for cell in CALLS}
    hostile = traced(EAGER)
    cells[HOSTILE] = [dataclasses.replace(hostile, cell_key=HOSTILE.key)]
    untraced = a_cell(bs=64)
    cells[untraced] = [trial(untraced, extra={"no_trace": EVIL[1]})]
    record(folder / "r.db", cells)
    (one,) = report_of(folder / "r.db").device_sweeps
    page = page_of(site(folder / "site", one), one, "cell")
    return page, content(page.parent / "data" / "cell-explained-0.js"), untraced


@pytest.fixture
def visit(chromium, made):
    """`after`: the end of the URL."""
    with visits(chromium, READY) as opened:
        yield lambda cell, after="", **more: opened(
            made[0], after=f"#cell={cell.key}{after}", **more
        )


def chosen(cell):
    return f"document.querySelector('#explained > div')?.dataset.with === '{cell.key[:16]}'"


def test_the_waterfall_leads_from_the_reference_mode_to_the_cell(visit, made):
    choice = made[1][DEFAULT.key][0]
    one = visit(DEFAULT)
    assert one.page.locator("#sentence").inner_text() == choice["sentence"]
    terms = [term["ms"]["value"] for term in choice["terms"]]
    first, *drawn, second = one.page.evaluate(BARS)
    assert drawn == terms
    assert [first, second] == [choice["a_ms"]["value"], choice["b_ms"]["value"]]
    assert first + math.fsum(drawn) == pytest.approx(second)
    names = [term["name"] for term in choice["terms"]]
    assert one.page.evaluate(NAMES) == ["eager", *names, "default"]
    assert one.page.locator("#explained .waterfalllayer .point path").count() == len(terms) + 2
    one.page.locator("#explained summary").click()
    assert [row.split("\t")[0] for row in one.texts("#explained details tbody tr")] == names
    assert "gone" in one.page.locator("#explained").inner_text()
    one.assert_quiet()


def test_another_side_can_be_chosen_and_is_kept_in_the_url(visit, made):
    one = visit(DEFAULT)
    assert one.page.evaluate(chosen(EAGER))
    one.page.locator("#with").focus()
    one.page.locator("#with").select_option("cuda-graph")
    until(one.page, chosen(GRAPH))
    assert one.page.url.endswith(f"&with={GRAPH.key[:16]}")
    assert one.page.locator("#sentence").inner_text() == made[1][DEFAULT.key][1]["sentence"]
    assert one.page.evaluate("document.activeElement.id") == "with"
    until(one.page, f"{NAMES}[0] === 'cuda-graph'")
    again = visit(DEFAULT, f"&with={GRAPH.key[:16]}")
    assert again.page.evaluate(chosen(GRAPH))
    unknown = visit(DEFAULT, "&with=%3Cb%3E")
    assert unknown.page.evaluate(chosen(EAGER))


def test_a_cell_alone_starts_at_zero(visit, made):
    one = visit(GRAPH, "&with=alone")
    alone = made[1][GRAPH.key][-1]
    assert one.page.evaluate(BARS)[-1] == alone["b_ms"]["value"]
    assert one.page.evaluate(f"{CHART}.layout.xaxis.range[0]") <= 0
    assert one.page.locator("#sentence").is_hidden()


def test_a_cell_without_a_trace_says_why(chromium, made):
    page, _, untraced = made
    ready = "document.querySelector('#cell').childElementCount"
    with visits(chromium, ready) as opened:
        one = opened(page, after=f"#cell={untraced.key}")
        assert f"This cell was not traced: {EVIL[1]}." in one.page.locator("#cell").inner_text()
        assert one.page.locator("#explained").count() == 0
        one.assert_quiet()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("cell", [DEFAULT, HOSTILE])
def test_names_are_text_and_it_fits_a_phone(visit, cell, theme):
    one = visit(cell, width=390, theme=theme)
    one.open_all()
    assert one.page.locator("#explained :is(img, td b, svg a), main svg[onload]").count() == 0
    text = one.page.locator("#explained").inner_text()
    assert EVIL[2] in text, "work of the host"
    assert "<img" in text, "a kernel, or the mode"
    one.page.locator("#with").select_option(index=2)
    one.page.locator("#explained .chart").hover(position={"x": 250, "y": 60})
    assert one.page.locator("#explained img").count() == 0
    assert one.page.evaluate("document.documentElement.scrollWidth") <= 390
    one.assert_quiet()
    assert_accessible(one)
