"""The page of a cell in a browser: a deep link opens its cell, and no name does any harm."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from browsing import EVIL, Visit, page_of, site, subject, until
from made_sweeps import a_cell
from test_report_cells import GPU, content, record, trial

from effbench.cell import Status, Trial
from effbench.commands.material import gather
from effbench.metrics import METRICS
from effbench.store import Store

LATER = dataclasses.replace(GPU, torch_version="2.14.0")
MODEL = {"name": EVIL[0], "module": {"_target_": "nets.Net", "text": EVIL[1]}, "inputs": [], "tolerance": None,
         "allow_nonfinite": False}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A site of a database: eager with three rounds, a failure, many rounds, and a cell that is hostile throughout."""
    folder = tmp_path_factory.mktemp("cell-page")
    eager, graph, many = a_cell(), a_cell("cuda-graph"), a_cell(bs=64)
    evil = dataclasses.replace(a_cell("default"), model=MODEL, env={EVIL[6]: EVIL[0]})
    failed = Trial(graph.key, 0, Status.ERROR, "in prepare: boom", phase="prepare", extra={"traceback": "Trace\nboom"})
    extra = {EVIL[0]: EVIL[1], "facts": {EVIL[6]: [EVIL[0] * 5]}, "artifacts": [EVIL[6], EVIL[3]],
             "profile": {"calls": 3, "kernels_in_graphs": 0,
                         "top": [{"name": EVIL[0], "count": 1.0, "ms": 0.1, "share": 1.0}]},
             "traceback": EVIL[1], "log": EVIL[2]}  # fmt: skip
    hostile = trial(evil, status="degraded", reason=EVIL[0], clocks_event_reasons=EVIL[1], extra=extra)
    hostile.samples[EVIL[0]] = [1.0, 2.0, 3.0]
    record(folder / "r.db", {
        eager: [trial(eager, 0), trial(eager, 1), trial(eager, 2)],
        graph: [failed],
        many: [trial(many, number, count=30, started_at=None) for number in range(14)],
        evil: [hostile],
    }, [GPU, LATER], name=EVIL[0])  # fmt: skip
    with Store.open(folder / "r.db") as store:
        material = gather(store, EVIL[6])
        out = site(folder / "site", *material.subjects)
        rows = store.results()
    (one,) = material.subjects
    return page_of(out, one, "cell"), {"eager": eager, "graph": graph, "many": many, "evil": evil}, rows, one


@pytest.fixture
def visit(chromium, made):
    opened = []

    def open(after="", **more):
        opened.append(Visit(chromium, made[0], after=after, **more))
        one = opened[-1]
        until(one.page, "document.querySelector('#cell').childElementCount || document.querySelector('#list table')")
        until(one.page, "[...document.querySelectorAll('#samples .chart')].every((chart) => chart.dataset.drawn)")
        return one

    yield open
    for one in opened:
        one.page.close()


def test_a_deep_link_opens_its_cell(visit, made):
    _, cells, rows, _ = made
    key = cells["eager"].key
    one = visit(f"#cell={key}&env={GPU.id}")
    assert one.page.locator("#cell").get_attribute("data-cell") == key
    assert one.page.locator("h1").inner_text() == "mlp torch_version=2.13.0 bs=8 eager bfloat16"
    row = next(row for row in rows if row["cell_key"] == key and row["environment_id"] == GPU.id)
    told = dict(
        zip(one.texts("#metrics tbody td:nth-child(1)"), one.texts("#metrics tbody td:nth-child(2)"), strict=True)
    )
    assert told == {METRICS[name].title: METRICS[name].format(row[name]) for name in METRICS if row[name] is not None}
    assert one.page.locator("#samples .chart .main-svg").count() >= 3
    assert one.texts("#trials > div thead th")[-3:] == ["round 1", "round 2", "round 3"]
    assert one.texts("#kernels tbody tr:first-child td:first-child") == ["gemm<bf16>"]
    one.assert_quiet()


def test_it_leads_to_its_history(visit, made):
    one = visit(f"#cell={made[1]['eager'].key[:16]}")
    link = one.page.locator("#cell a", has_text="its history").get_attribute("href")
    assert link == f"../history.html#cell={made[1]['eager'].key}"


def test_a_short_key_and_an_environment(visit, made):
    key = made[1]["eager"].key
    one = visit(f"#cell={key[:12]}&env={LATER.id}")
    assert one.page.locator("#environment").input_value() == LATER.id
    one.page.locator("#environment").select_option(GPU.id)
    until(one.page, f"location.hash.includes('{GPU.id}')")
    assert one.page.locator("#environment").input_value() == GPU.id
    one.assert_quiet()


def test_the_speedup_table_leads_here(made, chromium):
    path, cells, *_ = made
    with Visit(chromium, path.parent / "speedups.html") as one:
        one.page.locator(f"#grid a[href='cell.html#cell={cells['eager'].key[:16]}&env={LATER.id}']").first.click()
        until(
            one.page, f"(document.querySelector('#cell') || {{dataset: {{}}}}).dataset.cell === '{cells['eager'].key}'"
        )
        assert one.page.locator("#environment").input_value() == LATER.id


def test_timers_are_switched_and_the_numbers_follow(visit, made):
    one = visit(f"#cell={made[1]['eager'].key}")
    place = one.page.locator("#samples > div")
    assert place.get_attribute("data-timer") == "latency_ms"
    assert one.texts("#samples .switch button") == ["latency", "period", "warm-up calls"]
    one.page.locator("#samples .switch button", has_text="warm-up").click()
    assert place.get_attribute("data-timer") == "warmup_ms"
    assert "36 samples of 3 trials" in place.inner_text()
    one.page.locator("#samples summary").click()
    until(one.page, "document.querySelector('#samples details table tbody tr')")
    counts = one.page.evaluate(
        "[...document.querySelectorAll('#samples details tbody tr')].map((row) => Number(row.cells[2].textContent))"
    )
    assert sum(counts) == 12
    one.assert_quiet()


def test_the_points_in_the_browser_are_the_samples(visit, made):
    _, cells, *_ = made
    one = visit(f"#cell={cells['eager'].key}")
    drawn = one.page.evaluate("document.querySelector('#samples .chart').data[0].y")
    given = np.asarray(trial(cells["eager"], 0).samples["latency_ms"], dtype="<f4")
    places = np.arange(200) * 299 // 199
    assert drawn == given[places].tolist()


def test_a_failure_says_what_and_what_else_there_is(visit, made):
    _, cells, *_ = made
    one = visit(f"#cell={cells['graph'].key}")
    assert "in prepare: boom" in one.page.locator("#errors").inner_text()
    assert one.texts("#errors pre") == ["Trace\nboom"]
    assert one.page.locator("#samples").count() == 0
    one.page.locator("#neighbours a", has_text="eager").click()
    until(one.page, f"document.querySelector('#cell').dataset.cell === '{cells['eager'].key}'")
    one.page.go_back()
    until(one.page, f"document.querySelector('#cell').dataset.cell === '{cells['graph'].key}'")
    one.assert_quiet()


def test_without_a_cell_the_list(visit, made):
    one = visit()
    assert len(one.texts("#list tbody tr")) == 8
    one.page.locator("#list select[data-column=mode]").select_option("cuda-graph")
    assert len(one.texts("#list tbody tr")) == 2
    one.page.locator("#list tbody a").first.click()
    until(one.page, f"document.querySelector('#cell').dataset.cell === '{made[1]['graph'].key}'")
    assert one.page.locator("#all").is_hidden()
    one.assert_quiet()


def test_a_cell_that_is_not_here(visit):
    for after in (f"#cell={'0' * 64}", "#cell=zzz", "#cell=__proto__", "#cell=%3Cimg%20src=x%20onerror=alert(1)%3E"):
        one = visit(after)
        assert "No cell of this sweep has the key" in one.page.locator("#cell").inner_text()
        assert one.page.locator("img").count() == 0
        one.assert_quiet()


def test_names_of_users_are_text_and_nothing_else(visit, made):
    one = visit(f"#cell={made[1]['evil'].key}")
    one.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert one.page.locator("img, main svg[onload], a[href^='javascript'], td b, th b").count() == 0
    text = one.page.locator("main").inner_text()
    for name in (EVIL[0], EVIL[1], EVIL[6]):
        assert name in text
    one.page.locator("#samples .switch button", has_text="<img").click()
    until(one.page, "document.querySelector('#samples > div').dataset.timer.includes('<img')")
    one.page.locator("#samples .chart").first.hover(position={"x": 200, "y": 120})
    assert one.page.locator("img").count() == 0
    one.assert_quiet()


@pytest.mark.parametrize("name", ["eager", "graph", "many", "evil", ""])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_wider_than_a_phone(visit, made, name, theme):
    one = visit(f"#cell={made[1][name].key}" if name else "", width=390, theme=theme)
    one.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert one.page.evaluate("document.documentElement.scrollWidth") <= 390
    one.assert_quiet()


def test_many_trials_are_rows(visit, made):
    one = visit(f"#cell={made[1]['many'].key}")
    assert one.texts("#trials > div tbody td:first-child") == [f"round {number}" for number in range(1, 15)]


def test_figures_follow_the_theme(visit, made):
    one = visit(f"#cell={made[1]['eager'].key}", theme="light")
    ink = "getComputedStyle(document.querySelector('#samples .chart .xtick text')).fill"
    before = one.page.evaluate(ink)
    one.page.emulate_media(color_scheme="dark")
    until(one.page, f"{ink} !== '{before}'")
    one.assert_quiet()


def test_the_command_is_on_the_page(visit, made):
    one = visit(f"#cell={made[1]['evil'].key}")
    assert "No command says this cell" in one.page.locator("#again").inner_text()


def test_every_key_is_in_the_file_that_the_page_looks_in(tmp_path, monkeypatch, chromium):
    from effbench.report.site.pages import cell as cell_page

    monkeypatch.setattr(cell_page, "CHUNK", 3000)
    cells = [a_cell(bs=size) for size in range(1, 13)]
    record(tmp_path / "r.db", {one: [trial(one, count=20)] for one in cells})
    with Store.open(tmp_path / "r.db") as store:
        material = gather(store, "r.db")
        out = site(tmp_path / "site", *material.subjects)
    page = page_of(out, material.subjects[0], "cell")
    assert len(content(page.parent / "data" / "cell-index.js")["chunks"]) > 3
    with Visit(chromium, page) as one:
        for cell in cells:
            one.page.evaluate(f"location.hash = '#cell={cell.key[:16]}'")
            until(one.page, f"document.querySelector('#cell').dataset.cell === '{cell.key}'")
        one.assert_quiet()


def test_a_subject_of_which_nobody_gave_the_trials(tmp_path):
    import synthetic as make

    one = subject(make.sample().to_dict("records"))
    page = page_of(site(tmp_path, one), one, "cell")
    assert content(page.parent / "data" / "cell-index.js")["chunks"] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["eager", "graph", None])
def test_accessible(visit, made, name, theme):
    """axe-core finds no serious violation, with everything opened."""
    from axe_playwright_python.sync_playwright import Axe

    one = visit(f"#cell={made[1][name].key}" if name else "", theme=theme)
    one.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    found = Axe().run(one.page).response["violations"]
    bad = [(item["id"], item["nodes"][0]["html"]) for item in found if item["impact"] in ("serious", "critical")]
    assert bad == []
