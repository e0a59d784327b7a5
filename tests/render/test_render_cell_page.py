"""The page of a cell in a browser: a deep link opens its cell, and no name does any harm."""

import dataclasses

import numpy as np
import pytest
from browsing import (
    EVIL,
    assert_accessible,
    page_of,
    report_of,
    site,
    until,
    visits,
)
from made_sweeps import a_cell
from test_render_cells import GPU, LATER, failed, record, trial

from effbench.core.cell import Status

MODEL = {"name": EVIL[0], "module": {"_target_": "nets.Net", "text": EVIL[1]}}
READY = """(document.querySelector('#cell').childElementCount
|| document.querySelector('#list table'))
&& [...document.querySelectorAll('#samples .chart')].every((chart) => chart.dataset.drawn)"""
KERNEL = {"name": EVIL[0], "count": 1.0, "ms": 0.1, "share": 1.0}
EXTRA = {
    EVIL[0]: EVIL[1],
    "facts": {EVIL[6]: [EVIL[0] * 5]},
    "profile": {"calls": 3, "kernels_in_graphs": 0, "top": [KERNEL]},
    "traceback": EVIL[1],
    "log": EVIL[2],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The page of a database, and the keys of its cells: eager with three rounds, a failure, and a
    cell that is hostile throughout."""
    folder = tmp_path_factory.mktemp("cell-page")
    eager, graph = a_cell(), a_cell("cuda-graph")
    evil = dataclasses.replace(a_cell("default"), model=MODEL, env={EVIL[6]: EVIL[0]})
    hostile = trial(evil, status=Status.DEGRADED, extra=EXTRA, reason=EVIL[0])
    hostile.samples[EVIL[0]] = [1.0, 2.0, float("nan")]
    cells = {
        eager: [trial(eager, number) for number in range(3)],
        graph: [failed(graph)],
        evil: [hostile],
    }
    record(folder / "r.db", cells, GPU, LATER, name=EVIL[0])
    (one,) = report_of(folder / "r.db").device_sweeps
    keys = {"eager": eager.key, "graph": graph.key, "evil": evil.key}
    return page_of(site(folder / "site", one), one, "cell"), keys


@pytest.fixture
def visit(chromium, made):
    """`name`: of a cell. `after`: the end of the URL."""
    with visits(chromium, READY) as opened:

        def open(name="", after="", **more):
            cell = f"#cell={made[1][name]}" if name else ""
            return opened(made[0], after=cell + after, **more)

        yield open


def shows(key):
    return f"document.querySelector('#cell')?.dataset.cell === '{key}'"


def test_a_deep_link_opens_its_cell(visit, made):
    one = visit("eager", f"&env={GPU.id}")
    assert one.page.evaluate(shows(made[1]["eager"]))
    assert one.page.locator("h1").inner_text() == "mlp torch_version=2.13.0 bs=8 eager bfloat16"
    assert one.texts("#trials thead th")[-3:] == ["round 1", "round 2", "round 3"]
    drawn = one.page.evaluate("document.querySelector('#samples .chart').data[0].y")
    given = np.asarray(trial(a_cell(), 0).samples["latency_ms"], dtype="<f4")
    assert drawn == given[np.arange(200) * 299 // 199].tolist(), "the points are the samples"
    one.assert_quiet()


def test_a_failure_and_its_way_to_other_modes(visit, made):
    key = made[1]["eager"]
    one = visit("graph")
    assert "in prepare: boom" in one.page.locator("#errors").inner_text()
    assert one.texts("#errors pre") == ["Trace\nboom"]
    assert one.page.locator("#samples").count() == 0
    one.page.locator("#cell a", has_text="other modes").click()
    until(one.page, "document.querySelectorAll('#grid tbody tr').length === 4")
    one.page.locator(f"#grid a[href='cell.html#cell={key[:16]}&env={LATER.id}']").first.click()
    until(one.page, shows(key))


@pytest.mark.parametrize("key", ["0" * 64, "__proto__", "%3Cimg%20src=x%20onerror=alert(1)%3E"])
def test_an_unknown_key(visit, key):
    one = visit(after=f"#cell={key}")
    assert "This sweep has no cell with the key" in one.page.locator("#cell").inner_text()
    assert one.page.locator("img").count() == 0
    one.assert_quiet()


def test_names_of_users_are_text_and_nothing_else(visit):
    one = visit("evil")
    one.open_all()
    assert one.page.locator("img, main svg[onload], a[href^='javascript'], td b, th b").count() == 0
    text = one.page.locator("main").inner_text()
    assert all(name in text for name in (EVIL[0], EVIL[1], EVIL[6]))
    assert "No command to show" in one.page.locator("#again").inner_text()
    one.page.locator("#samples .switch button", has_text="<img").click()
    until(one.page, "document.querySelector('#samples > div').dataset.timer.includes('<img')")
    one.page.locator("#samples .chart").first.hover(position={"x": 200, "y": 120})
    assert one.page.locator("img").count() == 0
    one.assert_quiet()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["graph", "evil"])
def test_opened_it_is_accessible_and_no_wider_than_a_phone(visit, name, theme):
    one = visit(name, width=390, theme=theme)
    one.open_all()
    assert one.page.evaluate("document.documentElement.scrollWidth") <= 390
    one.assert_quiet()
    assert_accessible(one)
