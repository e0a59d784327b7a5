"""The site: whole, without a network, harmless whatever names users choose, and good in a real
browser."""

import dataclasses
import json
import re

import pytest
import synthetic as make
from browsing import EVIL, Visit, assert_accessible, device_sweep, page_of, site, until, visits

from effbench.metrics import METRICS
from effbench.report.data import ReportData


def evil_sweep():
    rows = [make.row(EVIL[6], 1, mode) for mode in ("eager", EVIL[6])]
    return device_sweep(
        rows, {"name": EVIL[0], "label": EVIL[1], "state": EVIL[0], "id": EVIL[6]}, hardware=EVIL[6]
    )


@pytest.fixture(scope="module")
def sweeps():
    return {
        "full": device_sweep(make.sample()),
        "cpu": device_sweep(make.cpu_quick(), hardware="Xeon"),
        "evil": evil_sweep(),
        "failed": device_sweep(
            [make.failed("mlp", 1, mode, "error", "boom") for mode in ("eager", "default")]
        ),
        "partial": device_sweep(
            [
                make.failed("mlp", 1, "eager", "oom", "full"),
                make.row(mode="default", latency_ms=9.0, speedup=None),
                *(make.row(bs=8, mode=mode) for mode in ("eager", "default")),
            ]
        ),
        "shades": device_sweep(
            [
                make.row(),
                *(
                    make.row(mode=f"mode {ratio}", speedup=ratio)
                    for ratio in (0.1, 0.7, 1.01, 1.5, 12.0)
                ),
            ]
        ),
    }


@pytest.fixture(scope="module")
def sites(tmp_path_factory, sweeps):
    folder = tmp_path_factory.mktemp("sites")
    made = {name: site(folder / name, one) for name, one in sweeps.items()}
    return made | {
        "empty": site(folder / "empty"),
        "two": site(folder / "two", sweeps["full"], sweeps["cpu"]),
    }


@pytest.fixture
def visit(chromium, sites, sweeps):
    """visit("full", "speedups") opens a page of a site."""
    with visits(chromium, "true") as opened:
        yield lambda name, page, **more: opened(page_of(sites[name], sweeps[name], page), **more)


# --- without a browser ---


def test_the_answer_comes_first(tmp_path, sites):
    html = (sites["full"] / "index.html").read_text(encoding="utf-8")
    assert "compile+graph wins 6 of 9 points" in html and "is still running" not in html
    assert html.index("wins 6 of 9") < html.index("Each mode over all models")
    alone = device_sweep([make.row(mode=mode, speedup=None) for mode in ("default", "cuda-graph")])
    html = (site(tmp_path / "alone", alone) / "index.html").read_text(encoding="utf-8")
    assert "Times: eager has no ok result" in html and "Speedup over eager" not in html
    assert "There is no result yet" in (sites["empty"] / "index.html").read_text(encoding="utf-8")
    running = device_sweep(make.sample(), {"state": "running", "finished_at": None})
    assert "is still running" in (site(tmp_path, running) / "index.html").read_text(
        encoding="utf-8"
    )


def test_no_name_leads_out_of_the_site(tmp_path, sweeps):
    site(tmp_path / "in" / "site", sweeps["evil"])
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["site"]
    assert re.fullmatch(r"[a-z0-9-]+", sweeps["evil"].slug)


def test_writing_again_removes_what_is_no_longer_part_of_it_and_nothing_else(tmp_path, sweeps):
    out, outside = tmp_path / "site", tmp_path / "outside.txt"
    site(out, sweeps["full"])
    mine = out / sweeps["full"].slug / "notes.txt"
    for kept in (mine, outside):
        kept.write_text("kept")
    listed = json.loads((out / "site.json").read_text())["files"]
    (out / "site.json").write_text(json.dumps({"files": [*listed, "../outside.txt"]}))
    site(out, sweeps["cpu"])
    assert [path.name for path in mine.parent.rglob("*")] == ["notes.txt"] and outside.exists()
    assert page_of(out, sweeps["cpu"], "speedups").exists()
    assert not [path for path in out.rglob("*") if path.name.startswith(".")]


def test_passwords_are_masked(tmp_path):
    url = "postgresql+psycopg://ann:s3cr/e:t@db:5432/bench?sslpassword=s3cr"
    out = site(
        tmp_path, device_sweep(make.sample(), {"command": ["-m", f"db={url}"]}), database=url
    )
    text = "".join(path.read_text(encoding="utf-8") for path in out.rglob("*.html"))
    assert "s3cr" not in text and "ann:***@db" in text


# --- in a browser ---


@pytest.mark.parametrize("page", ["speedups", "charts"])
@pytest.mark.parametrize("name", ["full", "cpu", "failed"])
def test_quiet_and_no_wider_than_a_phone(visit, name, page):
    """With names that try to do harm: test_pages_open.py."""
    one = visit(name, page, width=390)
    assert one.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert "nan" not in one.page.locator("main").inner_text().lower().split()
    one.assert_quiet()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_speedups_are_legible_in_every_shade(visit, theme):
    assert_accessible(visit("shades", "speedups", theme=theme))


def test_narrow_windows_keep_rows_low_and_pinned_columns_in_their_lines(chromium, tmp_path):
    tied = ("reduce-overhead", "cuda-graph", "compile+graph")
    rows = [make.row(mode=mode, latency_ms=0.1) for mode in tied]
    one = device_sweep([make.row(), make.row(mode="default"), *rows])
    with Visit(chromium, page_of(site(tmp_path, one), one, "speedups"), width=420) as narrow:
        until(narrow.page, "document.querySelectorAll('#grid tbody tr').length")
        heights = narrow.page.evaluate(
            "[...document.querySelectorAll('#grid tbody tr')].map((it) => it.offsetHeight)"
        )
        assert (
            any(it.startswith("tie: ") for it in narrow.texts("#grid td:last-child"))
            and max(heights) < 90
        )
        borders = "getComputedStyle(document.querySelector('#grid table')).borderCollapse"
        assert narrow.page.evaluate(borders) == "separate", (
            "collapsed borders scroll away from pinned cells"
        )


def test_the_metric_switch(visit, sweeps):
    one = visit("full", "speedups")
    by_key = {row.cell_key: row for row in sweeps["full"].rows}
    links = "[...document.querySelectorAll('#grid tbody td a')]"
    for metric in ("latency_ms", "throughput_per_s"):
        one.page.locator("#metric").select_option(metric)
        until(one.page, f"document.getElementById('grid').dataset.metric === '{metric}'")
        found = dict(
            one.page.evaluate(
                f"{links}.map((a) => [decodeURIComponent(a.hash.slice(6)), a.innerText])"
            )
        )
        expected = {
            key: METRICS[metric].format(row.value(metric)) if row.status == "ok" else row.status
            for key, row in by_key.items()
        }
        assert {key: text.removeprefix("★ ") for key, text in found.items()} == expected


def test_the_time_of_a_mode_without_a_speedup_is_last_in_any_order_and_has_its_reason(visit):
    for order in ("desc", "asc"):
        one = visit("partial", "speedups", after=f"#sort={order}:default")
        until(one.page, "document.querySelectorAll('#grid tbody tr').length === 3")
        texts = one.texts("#grid tbody td:nth-child(5)")
        assert ["×" in text for text in texts] == [True, False, False], texts
        assert "9.00 ms" in texts[1:]
    assert "eager has no ok result" in one.page.locator(
        "#grid tbody td :text('9.00 ms')"
    ).get_attribute("title")


def test_sorting_is_by_number_and_copies_are_of_what_is_shown(visit):
    one = visit("full", "speedups")
    head = one.page.locator("#grid thead th", has_text="compile+graph")
    for order in ("ascending", "descending"):
        head.click()
        until(one.page, f"document.querySelector('#grid th[aria-sort]')?.ariaSort === '{order}'")
    column = [text.partition("\n")[0] for text in one.texts("#grid tbody td:nth-last-child(2)")]
    values = [
        float(re.sub(r"[^0-9.]", "", text.replace("n.s.", ""))) for text in column if "×" in text
    ]
    assert values == sorted(values, reverse=True) and len(values) > 5
    one.page.evaluate(
        "navigator.clipboard.writeText = (text) => { window.copied = text; return"
        " Promise.resolve(); }"
    )
    one.page.locator("#grid select[data-column=model]").select_option("mlp")
    one.page.locator("button[data-copy=CSV]").first.click()
    until(one.page, "window.copied !== undefined")
    lines = one.page.evaluate("window.copied").splitlines()
    assert lines[0].startswith("model,bs,speedup,eager (ms),default")
    assert len(lines) == 4 and lines[1].startswith("mlp,1,latency,0.125,1.3,2.4")
    one.page.locator("button[data-copy=Markdown]").first.click()
    until(one.page, "window.copied.startsWith('|')")
    table = one.page.evaluate("window.copied")
    assert table.startswith("| model | bs |") and "★ 2.80×" in table


def test_modes_are_hidden_and_themes_follow_the_system_and_the_reader(visit):
    one = visit("full", "charts", theme="light")
    lines = "document.querySelectorAll('#latency .scatterlayer .trace').length"
    before = one.page.evaluate(lines)
    one.page.locator("#latency .legend button", has_text="compile+graph").click()
    until(one.page, f"{lines} === {before - 3}")  # in each of three models
    ink = "getComputedStyle(document.querySelector('#latency .chart .xtick text')).fill"
    paper = "getComputedStyle(document.body).backgroundColor"
    light = one.page.evaluate(f"[{ink}, {paper}]")
    one.page.emulate_media(color_scheme="dark")
    until(one.page, f"{ink} !== '{light[0]}'")
    assert one.page.evaluate(f"[{ink}, {paper}]") == ["rgb(230, 234, 239)", "rgb(15, 19, 24)"]
    one.page.locator("#theme").click()
    one.page.reload()
    assert one.page.evaluate(paper) == light[1], "the choice is kept"
    one.assert_quiet()


def test_two_machines(chromium, sites, sweeps):
    with Visit(chromium, page_of(sites["two"], sweeps["full"], "charts")) as one:
        one.page.locator("#subjects").select_option(index=1)
        one.page.wait_for_url(f"**/{sweeps['cpu'].slug}/charts.html")
        headings = one.texts("main h2")
        assert headings == [
            "Latency against batch size",
            "Throughput against batch size",
            "Compile time",
        ], "a figure without a number has no section"
        one.assert_quiet()


def test_omitted_sweeps_of_one_name_are_listed_once():
    names = enumerate(("pr", "push", "push"))
    sweeps = [dataclasses.replace(make.SWEEP, id=str(at), name=name) for at, name in names]
    omitted = ReportData("a.db", [], sweeps).omitted()
    assert omitted.startswith("3 other sweeps are not included: pr, push. Select")
    # its name selects it, not the other one
    shown = device_sweep([make.row()], {"id": "2", "name": "push"})
    omitted = ReportData("a.db", [shown], sweeps).omitted()
    assert omitted.startswith("2 other sweeps are not included: pr, 1. Select")
