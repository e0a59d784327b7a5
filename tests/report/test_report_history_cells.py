"""From a series to the cell of one of its sweeps, and back."""

from __future__ import annotations

import ledger_sweeps as sweeps
import pytest
from browsing import Visit, served, until
from made_sweeps import a_cell
from test_report_cells import GPU, LATER, record, report_of, trial

from effbench.report.history_data import line_id
from effbench.report.site.build import write_site

PLACE = "NVIDIA H200"
#: The middle of the point of a sweep as it is on the screen now; the star of the baseline is on top of a point.
POINT = """(number) => {
    const boxes = [...document.querySelectorAll('#series .scatterlayer .points path.point')].map((point) => point.getBoundingClientRect());
    const xs = [...new Set(boxes.map((box) => Math.round(box.x + box.width / 2)))].sort((a, b) => a - b);
    const box = boxes.find((one) => Math.round(one.x + one.width / 2) === xs[number]);
    return [box.x + box.width / 2, box.y + box.height / 2];
}"""  # noqa: E501 - one statement a line


def written(database, folder, references=()):
    """Write the site of these sweeps; returns its folder and its device sweeps."""
    report = report_of(database, references)
    write_site(report, folder)
    return folder, report.device_sweeps


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A site of the newest sweep and of one before it."""
    database, ids = sweeps.fill(tmp_path_factory.mktemp("database"))
    folder, own = written(database.path, tmp_path_factory.mktemp("site"), [ids[-1], ids[4]])
    return folder, {one.sweep["id"]: one for one in own}, ids


@pytest.fixture(params=["disk", "server"])
def visit(request, chromium, made):
    """visit(cell) opens the history of its latency."""
    opened = []
    with served(made[0]) as url:
        home = url if request.param == "server" else made[0].resolve().as_uri()

        def open(cell):
            one = Visit(chromium, f"{home}/history.html#series={line_id(cell.key, PLACE)}.latency_ms")
            one.home = home
            opened.append(one)
            until(one.page, "document.querySelector('#series')?.dataset.series && document.querySelector('.main-svg')")
            return one

        yield open
        for one in opened:
            one.page.close()


def assert_shows(one, cell, own):
    one.page.wait_for_url("**/cell.html*")
    until(one.page, f"document.querySelector('#cell')?.dataset.cell === '{cell.key}'")
    assert own.slug in one.page.url
    one.assert_quiet()


def test_rows_of_sweeps_that_are_here_lead_to_their_cell(visit, made):
    _, own, ids = made
    cell = sweeps.cells()[2]
    one = visit(cell)
    one.page.locator("#series summary").click()
    until(one.page, "document.querySelector('#series details table')")
    found = {link.inner_text(): link.get_attribute("href") for link in one.page.locator("#series details td a").all()}
    assert found == {name: f"{own[name].slug}/cell.html#cell={cell.key[:16]}" for name in (ids[4], ids[-1])}
    assert one.texts("#series-cells a") == ["v4", sweeps.EVIL[2]], "by their labels, oldest first"
    one.page.locator("#series details td a", has_text=ids[4]).click()
    assert_shows(one, cell, own[ids[4]])
    one.page.locator("a", has_text="its history").click()
    one.page.wait_for_url("**/history.html*")
    until(one.page, f"document.querySelector('#series')?.dataset.series === '{line_id(cell.key, PLACE)}.latency_ms'")


def test_a_point_leads_to_its_cell_and_another_sweeps_point_nowhere(visit, made):
    _, own, ids = made
    one = visit(sweeps.cells()[0])
    one.page.locator("#series .chart").scroll_into_view_if_needed()

    def click(number):
        one.page.mouse.move(*one.page.evaluate(POINT, number))
        one.page.wait_for_timeout(150)
        one.page.mouse.click(*one.page.evaluate(POINT, number))

    click(1)
    one.page.wait_for_timeout(400)
    assert "history.html" in one.page.url, "this sweep is not in the site"
    click(sweeps.SWEEPS - 1)
    assert_shows(one, sweeps.cells()[0], own[ids[-1]])


def test_of_several_environments_the_one_of_the_point(chromium, tmp_path):
    cell = a_cell()
    record(tmp_path / "r.db", {cell: [trial(cell)]}, GPU)
    record(tmp_path / "r.db", {cell: [trial(cell)]}, GPU, LATER)
    folder, (own,) = written(tmp_path / "r.db", tmp_path / "site")
    with Visit(chromium, folder / "history.html", after=f"#cell={cell.key}") as one:
        one.home = folder.resolve().as_uri()
        until(one.page, "document.querySelector('#series')?.dataset.series")
        (link,) = one.page.locator("#series-cells a").all()
        environment = link.get_attribute("href").partition("&env=")[2]
        assert environment in {place["id"] for place in own.environments}
        link.click()
        one.page.wait_for_url("**/cell.html*")
        until(one.page, f"document.querySelector('#environment')?.value === '{environment}'")
        one.assert_quiet()
