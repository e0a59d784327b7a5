"""The pages of history, claims and cells in a browser: from disk, linked, filtered, harmless."""

import claim_sweeps as sweeps
import pytest
import synthetic as make
from browsing import Visit, device_sweep, site, until, visits
from made_history import latencies, noisy

from effbench.analysis.history import Track
from effbench.render.history_table import line_id
from effbench.store import Store

PLACE = "NVIDIA H200"
READY = """[...document.querySelectorAll('.linked-grid')].every((one) => one.dataset.ready)
&& (!document.querySelector('#series') || document.querySelector('#series').dataset.series)
&& [...document.querySelectorAll('#series .chart:not([hidden])')]
.every((one) => one.dataset.drawn)"""
POINTS = "document.querySelectorAll('#series .scatterlayer .points path.point').length"


def series_of(cell_key):
    return line_id(Track(cell_key, PLACE, PLACE, []))


@pytest.fixture
def made(claims_site):
    """The site's folder, what it was made of, all results, all sweeps."""
    database, ids, report, folder = claims_site
    with Store.open(database.path) as store:
        return folder, report, store.results(), ids


@pytest.fixture
def visit(chromium, made):
    """visit("history", after="#…") opens a page."""
    folder, report, *_ = made
    slugs = {"cell": f"{report.device_sweeps[0].slug}/"}
    with visits(chromium, READY) as opened:
        yield lambda name, **more: opened(folder / f"{slugs.get(name, '')}{name}.html", **more)


def rows(one, place, column=None):
    """Texts of the rows of a table, or of one of its columns."""
    texts = [[cell.strip() for cell in row.split("\t")] for row in one.texts(f"{place} tbody tr")]
    if column is None:
        return texts
    heads = [text.strip() for text in one.texts(f"{place} thead th")]
    return [(row[heads.index(column)].splitlines() or [""])[0] for row in texts]


def test_a_filter_is_kept_in_the_url(visit):
    one = visit("cell", after="#status=error")
    choice = one.page.locator("#list select[data-column=status]")
    choice.select_option("oom")
    assert rows(one, "#list", "status") == ["oom"]
    assert one.page.url.endswith("#status=oom")
    choice.select_option("")
    assert len(rows(one, "#list")) > 3
    assert "status" not in one.page.url


def test_a_count_of_the_overview_links_to_its_rows(visit):
    one = visit("index")
    one.page.locator(".answer .tally a", has_text="oom").first.click()
    one.page.wait_for_url("**/cell.html*")
    assert one.page.url.endswith("/cell.html#status=oom")
    until(one.page, "document.querySelector('#list tbody')")
    assert rows(one, "#list", "status") == ["oom"]


def test_numbers_in_texts_are_sorted_by_their_value(visit):
    one = visit("claims")
    one.page.locator("th button", has_text="claim").click()
    names = rows(one, ".linked-grid", "claim")
    assert names.index("P2") < names.index("P10")


def test_a_link_opens_its_series_and_its_numbers_are_those_of_the_database(visit, made):
    _, report, results, _ = made
    cell = sweeps.cells()[2].key
    name = f"{series_of(cell)}.latency_ms"
    one = visit("history", after=f"#series={name}")
    assert one.page.locator("#series").get_attribute("data-series") == name
    assert one.page.locator("#series-name").inner_text() == report.history.names[cell]
    assert one.page.evaluate(POINTS) == sweeps.SWEEPS
    one.page.locator("#series summary").click()
    until(one.page, "document.querySelector('#series details table')")
    shown = [f"{row.latency_ms:.2f} ms" for row in results if row.cell_key == cell]
    assert sorted(rows(one, "#series details", "latency (ms)")) == sorted(shown)
    assert len(shown) == sweeps.SWEEPS
    one.page.locator("#metric").select_option("kernels")
    until(
        one.page,
        "document.querySelector('#series details table caption')?.innerText.startsWith('kernels')",
    )
    assert set(rows(one, "#series details", "kernels")) == {"1,134"}, "a count is not rounded"


def test_another_metric_another_cell_and_filters_of_changes(visit):
    one = visit("history")
    before = one.page.locator("#series").get_attribute("data-series")
    one.page.locator("#metric").select_option("period_ms")
    name = before.partition(".")[0] + ".period_ms"
    until(one.page, f"document.getElementById('series').dataset.series === '{name}'")
    assert one.page.url.endswith(f"#series={name}")
    one.page.locator("#changes select[data-column=change]").select_option("▲ broken")
    assert len(rows(one, "#changes")) == 3
    one.page.locator("#changes tbody a").first.click()
    until(one.page, "location.hash.includes('series=') && location.hash.includes('change=')")
    assert len(rows(one, "#changes")) == 3, "the link to its series keeps the filters"
    one.assert_quiet()


def test_cells_that_broke_are_degraded_or_gone(visit):
    cell = sweeps.cells()[1].key
    one = visit("history", after=f"#cell={cell[:16]}&metric=period_ms")
    assert "status broken" in one.page.locator("#series-events").inner_text()
    crosses = one.page.locator("#series .annotation-text", has_text="✕")
    assert crosses.count() == sweeps.SWEEPS - sweeps.BREAK
    # of a degraded result counters are drawn and nothing else
    name = series_of(sweeps.cells()[4].key)
    one = visit("history", after=f"#series={name}.latency_ms")
    assert one.page.evaluate(POINTS) == sweeps.BREAK - 1


def test_rows_lead_to_the_cells_that_are_here(visit, made):
    ids = made[3]
    name = f"{series_of(sweeps.cells()[0].key)}.latency_ms"
    one = visit("history", after=f"#series={name}")
    one.page.locator("#series summary").click()
    until(one.page, "document.querySelector('#series details table')")
    assert one.texts("#series details td a") == [ids[4], ids[-1]]
    one.page.locator("#series details td a", has_text=ids[4]).click()
    one.page.wait_for_url("**/cell.html*")
    one.page.locator("a", has_text="its history").click()
    one.page.wait_for_url("**/history.html*")
    until(one.page, f"document.querySelector('#series')?.dataset.series === '{name}'")


def test_the_buttons_of_the_figure_hide_no_sign_of_a_new_change(chromium, tmp_path):
    folder = site(
        tmp_path,
        device_sweep([make.row()]),
        history=latencies([*noisy(14), *noisy(3, 1.3)]).judge(),
    )
    with Visit(chromium, folder / "history.html") as one:
        until(one.page, READY)
        sign = one.page.locator("#series .annotation").bounding_box()
        buttons = one.page.locator("#series .modebar").bounding_box()
        assert sign["y"] >= buttons["y"] + buttons["height"]
