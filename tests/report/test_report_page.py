"""The page: whole, self-contained, harmless whatever names users choose, and good in a real browser."""

import json
import re
import shutil
import time

import pandas as pd
import pytest
import synthetic as make
from playwright.sync_api import sync_playwright

from effbench.report.embed import command_line, figure_json, without_password
from effbench.report.figures import speedup_heatmap
from effbench.report.frame import prepare
from effbench.report.page import write_report

EVIL = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    '"><svg onload=alert(3)>',
    "<a href='javascript:alert(4)'>x</a>",
    "%{x} {{ 7*7 }}",
    "<b>&lt;i&gt;</b>",
)


def write(folder, frame, sweep=None, environments=None, database="sqlite:///results/effbench.db"):
    environments = [make.ENVIRONMENT] if environments is None else environments
    return write_report(frame, make.SWEEP | (sweep or {}), environments, folder, database)


def evil_frame():
    rows = [make.row(name, bs, mode) for name in EVIL for bs in (1, 8) for mode in ("eager", "default", EVIL[0])]
    rows += [make.failed(EVIL[1], 64, EVIL[1], "error", name) for name in EVIL[:1]]
    rows.append(make.failed(EVIL[0], 64, "default", EVIL[0], EVIL[1]))
    rows.append(make.row(EVIL[0], 64, "eager", dtype=EVIL[3]))
    return pd.DataFrame(rows)


def evil_page(folder):
    sweep = {"name": EVIL[0], "label": EVIL[1], "git_revision": EVIL[2], "state": EVIL[0], "command": list(EVIL)}
    sweep |= {"protocol": {"name": EVIL[1], "rounds": 5}, "baseline_mode": "eager", "id": EVIL[2]}
    environment = dict.fromkeys(make.ENVIRONMENT, EVIL[1]) | {
        "flags": {EVIL[0]: EVIL[1]},
        "details": {EVIL[0]: EVIL[1]},
    }
    return write(folder, evil_frame(), sweep, [environment | {"gpu_memory_bytes": 1}], EVIL[0])


@pytest.fixture(scope="module")
def chromium():
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert path, "these tests need a Chromium on the PATH"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    return {
        "full": write(folder / "full", make.sample()),
        "cpu": write(folder / "cpu", make.cpu_quick()),
        "empty": write(folder / "empty", pd.DataFrame(), environments=[]),
        "evil": evil_page(folder / "evil"),
    }


def until(page, condition, seconds=10):
    """Wait for a JavaScript condition; Playwright's own way needs eval, which the page's policy forbids."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, f"not within {seconds} s: {condition}"
        page.wait_for_timeout(20)


class Visit:
    """A page opened in a browser, with all that it asked for, said and threw."""

    def __init__(self, browser, path, width=1200, theme="light"):
        self.requests, self.complaints, self.dialogs = [], [], []
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))
        self.page.goto(path.as_uri())
        self.page.evaluate("dispatchEvent(new Event('beforeprint')); dispatchEvent(new Event('afterprint'))")
        charts = self.page.locator(".chart").count()
        if charts:
            until(self.page, f"document.querySelectorAll('.chart .main-svg').length >= {charts}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.page.close()

    def assert_quiet(self):
        foreign = [url for url in self.requests[1:] if not url.startswith(("data:", "blob:"))]
        assert (foreign, self.complaints, self.dialogs) == ([], [], [])


@pytest.mark.parametrize("name", ["full", "cpu", "empty", "evil"])
@pytest.mark.parametrize(("width", "theme"), [(390, "dark"), (1200, "light")])
def test_quiet_and_no_wider_than_the_screen(chromium, pages, name, width, theme):
    with Visit(chromium, pages[name], width, theme) as visit:
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        visit.assert_quiet()


def test_names_of_users_are_text_and_nothing_else(chromium, pages):
    with Visit(chromium, pages["evil"]) as visit:
        assert visit.page.locator("img, main svg[onload], a[href^='javascript'], svg a").count() == 0
        assert EVIL[0] in visit.page.locator("h1").inner_text()
        drawn = visit.page.locator(".chart svg").all_text_contents()
        for name in EVIL[-2:]:
            assert any(name in text for text in drawn), f"Plotly does not show {name} as it is"
        visit.page.locator("#latency .chart").first.hover(position={"x": 60, "y": 60})
        visit.page.locator("#speedup-heatmap .chart").first.hover(position={"x": 500, "y": 160})
        visit.page.locator("#latency .legend button").last.click()
        assert visit.page.locator("img").count() == 0
        visit.assert_quiet()


def test_themes_follow_the_system_while_open(chromium, pages):
    with Visit(chromium, pages["full"], theme="light") as visit:
        ink = "getComputedStyle(document.querySelector('#latency .chart .xtick text')).fill"
        paper = "getComputedStyle(document.body).backgroundColor"
        light = visit.page.evaluate(f"[{ink}, {paper}]")
        visit.page.emulate_media(color_scheme="dark")
        until(visit.page, f"{ink} !== '{light[0]}'")
        assert visit.page.evaluate(f"[{ink}, {paper}]") == ["rgb(230, 234, 239)", "rgb(15, 19, 24)"]
        visit.assert_quiet()


def test_the_legend_hides_a_mode_in_all_small_multiples(chromium, pages):
    with Visit(chromium, pages["full"]) as visit:
        lines = visit.page.locator("#latency .scatterlayer .trace")
        before = lines.count()
        button = visit.page.locator("#latency .legend button", has_text="cuda-graph")
        button.click()
        assert button.get_attribute("aria-pressed") == "false"
        assert lines.count() == before - 3
        button.click()
        assert lines.count() == before


def test_the_page_prints_in_light_colours(chromium, pages):
    with Visit(chromium, pages["full"], theme="dark") as visit:
        visit.page.emulate_media(media="print")
        assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert visit.page.locator("nav").is_hidden()
        assert visit.page.pdf()[:4] == b"%PDF"


def text_of(path):
    """The page without scripts and styles."""
    html = path.read_text(encoding="utf-8")
    return re.sub(r"<(script|style)\b.*?</\1>", "", html, flags=re.DOTALL)


def test_one_file_that_names_no_host(pages):
    assert [path.name for path in pages["full"].parent.iterdir()] == ["index.html"]
    html = text_of(pages["full"])
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", html)
    assert "default-src 'none'" in html


def test_sections_and_answers_are_there(pages):
    html = text_of(pages["full"])
    for section in ("summary", "speedup-heatmap", "speedup-table", "latency", "memory", "compile", "failures",
                    "environments", "reading", "reproduce"):  # fmt: skip
        assert f'<section id="{section}">' in html
    assert "<b>compile+graph</b> is the fastest mode in 9 of 9 points" in html
    assert "CUDA out of memory: tried to allocate 12.5 GiB" in html
    assert "★ 2.80×" in html and "1.04× n.s." in html
    assert html.count("The numbers (") == 4


def test_a_cpu_sweep_says_what_it_has_not(pages):
    html = text_of(pages["cpu"])
    assert "No device memory was recorded" in html
    assert "With one trial there is no interval." in html
    assert not re.search(r"\bnan\b", html, re.IGNORECASE)


def test_an_empty_frame_says_so(pages):
    html = text_of(pages["empty"])
    assert "This sweep has no results" in html and "No environment is recorded." in html
    assert pages["empty"].stat().st_size < 50_000


def test_everything_failed(tmp_path):
    frame = pd.DataFrame([make.failed("mlp", 1, mode, "error", "boom") for mode in ("eager", "default")])
    html = text_of(write(tmp_path, frame))
    assert "No result of this sweep is ok" in html and "No result of this sweep has a speedup" in html


def test_an_unfinished_sweep_is_marked(tmp_path, pages):
    html = text_of(write(tmp_path, make.sample(), {"state": "running", "finished_at": None}))
    assert "did not complete (state: running)" in html
    assert "did not complete" not in text_of(pages["full"])


def test_a_sweep_of_which_little_is_known(tmp_path):
    html = text_of(write_report(make.sample(), {"id": "k3x9"}, [], tmp_path, "results.db"))
    assert "sweep k3x9" in html and ">effbench</pre>" in html


def test_writing_again_replaces_the_page_and_leaves_no_draft(tmp_path):
    write(tmp_path / "a", pd.DataFrame())
    write(tmp_path / "a", make.sample())
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["index.html"]
    assert "compile+graph" in text_of(tmp_path / "a" / "index.html")


def test_json_in_a_script_cannot_end_it_and_reads_back_equal():
    figure = speedup_heatmap.draw(speedup_heatmap.data(prepare(evil_frame())))
    text = str(figure_json(figure))
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == json.loads(figure.to_json())


def test_passwords_are_masked(tmp_path):
    url = "postgresql+psycopg://ann:s3cr:et@db:5432/bench"
    assert without_password(url) == "postgresql+psycopg://ann:***@db:5432/bench"
    assert without_password("sqlite:///a@b.db") == "sqlite:///a@b.db"
    html = text_of(write(tmp_path, make.sample(), {"command": ["-m", f"db={url}"]}, database=url))
    assert "s3cr" not in html and "ann:***@db" in html


@pytest.mark.parametrize("program", [[], ["effbench"], ["/opt/bin/effbench"], ["/lib/effbench/__main__.py"]])
def test_the_command_is_fit_for_a_shell(program):
    assert command_line([*program, "-m", "bs=1,8", "sweep.name=a b"]) == "effbench -m bs=1,8 'sweep.name=a b'"
