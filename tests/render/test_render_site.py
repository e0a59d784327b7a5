"""The site: whole, without a network, harmless whatever names users choose, and good in a real
browser."""

import re

import pytest
import synthetic as make
from browsing import EVIL, assert_accessible, device_sweep, page_of, site, until, visits


def speedups(*ratios):
    return [make.row(mode=f"mode {ratio}", speedup=ratio) for ratio in ratios]


@pytest.fixture(scope="module")
def sweeps():
    failed = make.failed("mlp", 1, "eager", "oom", "full")
    without_baseline = make.row(mode="default", latency_ms=9.0, speedup=None)
    return {
        "full": device_sweep(make.sample()),
        "failed": device_sweep([failed, make.failed("mlp", 1, "default", "error", "boom")]),
        "partial": device_sweep(
            [failed, without_baseline, make.row(bs=8), make.row(bs=8, mode="default")]
        ),
        "shades": device_sweep([make.row(), *speedups(0.1, 0.7, 1.01, 1.5, 12.0)]),
    }


@pytest.fixture(scope="module")
def sites(tmp_path_factory, sweeps):
    folder = tmp_path_factory.mktemp("sites")
    return {name: site(folder / name, sweep) for name, sweep in sweeps.items()}


@pytest.fixture
def visit(chromium, sites, sweeps):
    """visit("full", "speedups") opens a page of a site."""
    with visits(chromium, "true") as opened:
        yield lambda name, page, **more: opened(page_of(sites[name], sweeps[name], page), **more)


# --- without a browser ---


def overview(folder):
    return (folder / "index.html").read_text(encoding="utf-8")


def test_the_answer_comes_first(sites):
    html = overview(sites["full"])
    assert html.index("(model × batch size): compile+graph wins 6") < html.index(
        "Each mode over all models"
    )
    assert "is still running" not in html


def test_a_site_without_results(tmp_path):
    assert "There is no result yet" in overview(site(tmp_path))


def test_a_sweep_without_a_baseline_shows_times(tmp_path):
    alone = device_sweep([make.row(mode=mode, speedup=None) for mode in ("default", "cuda-graph")])
    html = overview(site(tmp_path, alone))
    assert "Times: eager has no ok result" in html
    assert "Speedup over eager" not in html


def test_no_name_leads_out_of_the_site(tmp_path):
    rows = [make.row(EVIL[6], mode=mode) for mode in ("eager", EVIL[6])]
    evil = device_sweep(rows, {"name": EVIL[0], "id": EVIL[6]}, hardware=EVIL[6])
    site(tmp_path / "in" / "site", evil)
    assert [path.name for path in tmp_path.glob("in/*")] == ["site"]
    assert re.fullmatch(r"[a-z0-9-]+", evil.slug)


def test_passwords_are_masked(tmp_path):
    url = "postgresql+psycopg://ann:s3cr/e:t@db:5432/bench?sslpassword=s3cr"
    sweep = device_sweep([make.row()], {"command": ["-m", f"db={url}"]})
    out = site(tmp_path, sweep, database=url)
    text = "".join(path.read_text(encoding="utf-8") for path in out.rglob("*.html"))
    assert "s3cr" not in text
    assert "ann:***@db" in text


# --- in a browser ---


@pytest.mark.parametrize("page", ["speedups", "charts"])
def test_failures_alone_break_no_page(visit, page):
    one = visit("failed", page)
    assert "nan" not in one.page.locator("main").inner_text().lower().split()
    one.assert_quiet()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_speedups_are_legible_in_every_shade(visit, theme):
    assert_accessible(visit("shades", "speedups", theme=theme))


@pytest.mark.parametrize("order", ["desc", "asc"])
def test_the_time_of_a_mode_without_a_speedup_is_last_in_any_order_and_has_its_reason(visit, order):
    one = visit("partial", "speedups", after=f"#sort={order}:default")
    until(one.page, "document.querySelectorAll('#grid tbody tr').length === 3")
    texts = one.texts("#grid tbody td:nth-child(5)")
    assert ["×" in text for text in texts] == [True, False, False]
    assert "9.00 ms" in texts[1:]
    cell = one.page.locator("#grid tbody td :text('9.00 ms')")
    assert "no ok baseline" in cell.get_attribute("title")


def test_copies_are_of_what_is_shown(visit):
    one = visit("full", "speedups")
    one.page.locator("#grid select[data-column=model]").select_option("mlp")
    one.page.evaluate(
        "navigator.clipboard.writeText = (text) => { window.copied = text; return"
        " Promise.resolve(); }"
    )
    one.page.locator("button[data-copy=CSV]").first.click()
    until(one.page, "window.copied !== undefined")
    head, *lines = one.page.evaluate("window.copied").splitlines()
    assert head.startswith("model,bs,speedup,eager (ms),default")
    assert lines[0].startswith("mlp,1,latency,0.125,1.3,2.4")
    assert len(lines) == 3


def test_themes_follow_the_system_and_the_reader(visit):
    one = visit("full", "charts", theme="light")
    assert one.page.locator(".which").is_hidden(), "there is one sweep alone"
    ink = "getComputedStyle(document.querySelector('#latency .chart .xtick text')).fill"
    paper = "getComputedStyle(document.body).backgroundColor"
    light = one.page.evaluate(f"[{ink}, {paper}]")
    one.page.emulate_media(color_scheme="dark")
    until(one.page, f"{ink} !== '{light[0]}'")
    assert one.page.evaluate(paper) != light[1]
    one.page.locator("#theme").click()
    one.page.reload()
    assert one.page.evaluate(paper) == light[1], "the choice is kept"
