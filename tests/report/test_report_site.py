"""The site: whole, without a network, harmless whatever names users choose, and good in a real browser."""

from __future__ import annotations

import json
import re

import pytest
import synthetic as make
from browsing import EVIL, Visit, assert_accessible, device_sweep, page_of, served, site, until

from effbench.report.data import ReportData
from effbench.report.figures import speedup_heatmap
from effbench.report.site.build import write_site

PAGES = ("index", "speedups", "scaling", "cost")


def evil_sweep():
    rows = [make.row(name, bs, mode) for name in EVIL for bs in (1, 8) for mode in ("eager", "default", EVIL[0])]
    rows += [make.failed(EVIL[1], 64, EVIL[1], "error", EVIL[0]), make.failed(EVIL[0], 64, "default", EVIL[0], EVIL[1])]
    rows.append(make.row(EVIL[0], 64, "eager", dtype=EVIL[3]))
    sweep = {"name": EVIL[0], "label": EVIL[1], "git_revision": EVIL[2], "state": EVIL[0], "command": list(EVIL),
             "protocol": {"name": EVIL[1], "rounds": 5}, "baseline_mode": "eager", "id": EVIL[6]}  # fmt: skip
    facts = {"flags": {EVIL[0]: EVIL[1]}, "details": {EVIL[0]: EVIL[1]}, "gpu_memory_bytes": 1}
    environment = dict.fromkeys(make.ENVIRONMENT, EVIL[1]) | facts
    return device_sweep(rows, sweep, hardware=EVIL[6], environments=[environment])


@pytest.fixture(scope="module")
def sweeps():
    return {
        "full": device_sweep(make.sample()),
        "cpu": device_sweep(make.cpu_quick(), hardware="Xeon"),
        "evil": evil_sweep(),
        "failed": device_sweep([make.failed("mlp", 1, mode, "error", "boom") for mode in ("eager", "default")]),
    }


@pytest.fixture(scope="module")
def sites(tmp_path_factory, sweeps):
    folder = tmp_path_factory.mktemp("sites")
    made = {name: site(folder / name, one) for name, one in sweeps.items()}
    return made | {"empty": site(folder / "empty"), "two": site(folder / "two", sweeps["full"], sweeps["cpu"])}


@pytest.fixture
def visit(chromium, sites, sweeps):
    """visit("full", "speedups") opens a page of a site."""
    opened = []

    def open(name, page="index", **more):
        where = sites[name] / "index.html" if page == "index" else page_of(sites[name], sweeps[name], page)
        opened.append(Visit(chromium, where, **more))
        if page == "index":
            opened[-1].home = opened[-1].page.url.rpartition("/")[0]
        return opened[-1]

    yield open
    for one in opened:
        one.page.close()


# --- without a browser ---


def test_the_answer_comes_first(tmp_path, sites):
    html = (sites["full"] / "index.html").read_text(encoding="utf-8")
    assert "<b>compile+graph</b> is the fastest mode in 6 of 9 points" in html and "is still running" not in html
    assert "CUDA out of memory: tried to allocate 12.5 GiB" in html
    assert html.index("is the fastest mode") < html.index("Each mode over all models")
    running = device_sweep(make.sample(), {"state": "running", "finished_at": None})
    assert "is still running" in (site(tmp_path, running) / "index.html").read_text(encoding="utf-8")


def test_no_name_leads_out_of_the_site(tmp_path, sweeps):
    site(tmp_path / "in" / "site", sweeps["evil"])
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["site"]
    assert re.fullmatch(r"[a-z0-9-]+", sweeps["evil"].slug)


def test_writing_again_removes_what_is_no_longer_part_of_it(tmp_path, sweeps):
    site(tmp_path, sweeps["full"])
    mine = tmp_path / sweeps["full"].slug / "notes.txt"
    mine.write_text("kept")
    site(tmp_path, sweeps["cpu"])
    assert [path.name for path in mine.parent.rglob("*")] == ["notes.txt"]
    assert page_of(tmp_path, sweeps["cpu"], "speedups").exists()
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]


def test_a_list_of_files_from_elsewhere_removes_nothing_outside(tmp_path):
    outside = tmp_path / "outside.txt"
    outside.write_text("kept")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "site.json").write_text(json.dumps({"files": ["../outside.txt", "index.html"]}))
    write_site(ReportData("x.db", []), tmp_path / "site")
    assert outside.exists()


def test_figures_read_back_equal(sites, sweeps):
    """Names that end scripts elsewhere are nothing but text in a file of data."""
    figure = speedup_heatmap.draw(speedup_heatmap.data(sweeps["evil"].frame))
    path = page_of(sites["evil"], sweeps["evil"], "data/speedups-speedup-heatmap-0").with_suffix(".js")
    found = re.fullmatch(r"effbench\.put\((.*)\);\n", path.read_text(encoding="utf-8"), re.DOTALL)
    assert json.loads(found[1]) == json.loads(figure.to_json())


@pytest.mark.parametrize("password", ["s3cr:et", "s3cr/et", "s3cr@et"])
def test_passwords_are_masked(password, tmp_path):
    url = f"postgresql+psycopg://ann:{password}@db:5432/bench?sslpassword=s3cr"
    out = site(tmp_path, device_sweep(make.sample(), {"command": ["-m", f"db={url}"]}), database=url)
    text = "".join(path.read_text(encoding="utf-8") for path in out.rglob("*.html"))
    assert "s3cr" not in text and "ann:***@db" in text


# --- in a browser ---


def test_an_empty_database_says_so(visit):
    page = visit("empty")
    assert "There is no result yet" in page.page.locator("main").inner_text()
    page.assert_quiet()


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(
    ("name", "width", "theme"),
    [("full", 390, "light"), ("evil", 390, "dark"), ("full", 1200, "dark"), ("cpu", 1200, "light"),
     ("failed", 390, "light")],
)  # fmt: skip
def test_quiet_and_no_wider_than_the_screen(visit, name, page, width, theme):
    one = visit(name, page, width=width, theme=theme)
    assert one.page.evaluate("document.documentElement.scrollWidth") <= width
    assert "nan" not in one.page.locator("main").inner_text().lower().split()
    one.assert_quiet()


def test_from_a_server_as_from_disk(chromium, sites, sweeps):
    with served(sites["full"]) as url, Visit(chromium, f"{url}/{sweeps['full'].slug}/speedups.html") as one:
        assert len(one.texts("#grid tbody tr")) == 9
        one.assert_quiet()


def test_names_of_users_are_text_and_nothing_else(visit):
    for page in ("speedups", "scaling", "cost"):
        one = visit("evil", page)
        one.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        one.draw()
        assert one.page.locator("img, main svg[onload], a[href^='javascript'], svg a, td b, th b").count() == 0
        assert EVIL[0] in one.page.locator(".facts").inner_text()
        for button in one.page.locator(".legend button").all()[-2:]:
            button.click()
        one.assert_quiet()


def test_the_metric_switch(visit, sweeps):
    one = visit("full", "speedups")
    by_key = {row["cell_key"]: row for row in sweeps["full"].rows}
    for metric in ("latency_ms", "throughput_per_s", "memory_ratio", "speedup"):
        one.page.locator("#metric").select_option(metric)
        until(one.page, f"document.getElementById('grid').dataset.metric === '{metric}'")
        found = one.page.evaluate(
            "[...document.querySelectorAll('#grid tbody td a')]"
            ".map((a) => [decodeURIComponent(a.hash.slice(6)), a.textContent])"
        )
        assert len(found) == len(by_key)
        for key, text in found:
            row = by_key[key]
            if row["status"] != "ok":
                assert text == row["status"]
            elif row[metric] is None:
                assert text in ("no baseline", "—")
            elif not (metric == "speedup" and row["mode"] == "eager"):
                figure = re.search(r"[0-9.]+(e[+-]?[0-9]+)?", text)
                assert figure and float(figure[0]) == pytest.approx(row[metric], rel=0.006)


def test_filters_modes_and_status(visit):
    one = visit("full", "speedups", after="#metric=latency_ms")
    assert one.page.locator("#metric").input_value() == "latency_ms"
    one.page.locator("#grid select[data-column=model]").select_option("resnet50")
    assert {row.split("\t")[0] for row in one.texts("#grid tbody tr")} == {"resnet50"}
    one.page.locator("#metric").select_option("period_ms")
    until(one.page, "document.getElementById('grid').dataset.metric === 'period_ms'")
    assert len(one.texts("#grid tbody tr")) == 3, "a filter outlives the metric"
    one.page.locator("#grid select[data-column=model]").select_option("")
    one.page.locator("#status").select_option("oom")
    assert len(one.texts("#grid tbody tr")) == 1
    one.page.locator("#status").select_option("")
    columns = one.page.locator("#grid thead th:visible").count()
    button = one.page.locator("#table .legend button", has_text="cuda-graph")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert one.page.locator("#grid thead th:visible").count() == columns - 1
    one.assert_quiet()


def test_sorting_is_by_number(visit):
    one = visit("full", "speedups")
    head = one.page.locator("#grid thead th", has_text="compile+graph")
    for order in ("ascending", "descending"):
        head.click()
        until(one.page, f"document.querySelector('#grid th[aria-sort]')?.ariaSort === '{order}'")
    column = one.page.evaluate(
        "[...document.querySelectorAll('#grid tbody tr')].map((row) => row.lastElementChild.innerText.split('\\n')[0])"
    )
    values = [float(re.sub(r"[^0-9.]", "", text.replace("n.s.", ""))) for text in column if "×" in text]
    assert values == sorted(values, reverse=True) and len(values) > 5


def test_large_tables_have_pages_and_a_search(chromium, tmp_path):
    one = device_sweep(make.rows(models=[f"model-{number}" for number in range(120)], sizes=(1,), modes=("eager",)))
    with Visit(chromium, page_of(site(tmp_path, one), one, "speedups")) as page:
        grid = page.page.locator("#grid")
        assert len(page.texts("#grid tbody tr")) == 100
        assert "1 to 100 of 120" in grid.locator("[role=status]").inner_text()
        grid.locator("button[aria-label='page 2']").click()
        assert len(page.texts("#grid tbody tr")) == 20
        grid.locator("input[type=search]").fill("model-11 1")
        assert {row.split("\t")[0] for row in page.texts("#grid tbody tr")} >= {"model-11", "model-110", "model-119"}
        page.assert_quiet()


def test_copying(visit):
    one = visit("full", "speedups")
    one.page.evaluate("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
    one.page.locator("#grid select[data-column=model]").select_option("mlp")
    one.page.locator("button[data-copy=CSV]").first.click()
    until(one.page, "window.copied !== undefined")
    lines = one.page.evaluate("window.copied").splitlines()
    assert lines[0].startswith("model,bs,eager (ms),default")
    assert len(lines) == 4 and lines[1].startswith("mlp,1,0.125,1.3,2.4")
    one.page.locator("button[data-copy=Markdown]").first.click()
    until(one.page, "window.copied.startsWith('|')")
    table = one.page.evaluate("window.copied")
    assert table.splitlines()[1] == "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    assert "★ 2.80×" in table


def test_themes_follow_the_system_and_the_reader(visit):
    one = visit("full", "scaling", theme="light")
    ink = "getComputedStyle(document.querySelector('#latency .chart .xtick text')).fill"
    paper = "getComputedStyle(document.body).backgroundColor"
    light = one.page.evaluate(f"[{ink}, {paper}]")
    one.page.emulate_media(color_scheme="dark")
    until(one.page, f"{ink} !== '{light[0]}'")
    assert one.page.evaluate(f"[{ink}, {paper}]") == ["rgb(230, 234, 239)", "rgb(15, 19, 24)"]
    one.page.emulate_media(media="print")
    assert one.page.evaluate(paper) == "rgb(255, 255, 255)" and one.page.locator("nav").first.is_hidden()
    one.page.emulate_media(media="screen")
    one.page.locator("#theme").click()
    until(one.page, f"{ink} === '{light[0]}'")
    one.page.reload()
    assert one.page.evaluate(paper) == light[1], "the choice is kept"
    one.assert_quiet()


def test_the_legend_hides_a_mode_in_all_small_multiples(visit):
    one = visit("full", "scaling")
    lines = "document.querySelectorAll('#latency .scatterlayer .trace').length"
    before = one.page.evaluate(lines)
    button = one.page.locator("#latency .legend button", has_text="compile+graph")
    button.click()
    until(one.page, f"{lines} === {before - 6}")  # a band and a line in each of three models
    button.click()
    until(one.page, f"{lines} === {before}")


def test_figures_out_of_sight_are_printed(chromium, sites, sweeps):
    """Printing waits for nothing: they are there when it begins."""
    page = chromium.new_page(viewport={"width": 1200, "height": 300})
    page.goto(page_of(sites["full"], sweeps["full"], "cost").resolve().as_uri())
    until(page, "document.documentElement.dataset.ready === 'true'")
    undrawn = "[...document.querySelectorAll('.chart')].filter((one) => !one.querySelector('.main-svg')).length"
    assert page.evaluate(undrawn) > 0
    assert page.evaluate(f"dispatchEvent(new Event('beforeprint')), {undrawn}") == 0
    page.close()


def test_two_machines(chromium, sites, sweeps):
    with Visit(chromium, page_of(sites["two"], sweeps["full"], "cost")) as one:
        one.page.locator("#subjects").select_option(index=1)
        one.page.wait_for_url(f"**/{sweeps['cpu'].slug}/cost.html")
        assert "Xeon" in one.page.locator(".facts").inner_text()
        assert "No device memory was recorded" in one.page.locator("main").inner_text()
        one.assert_quiet()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_accessible(visit, page, theme):
    assert_accessible(visit("full", page, theme=theme))
