"""What is set in the speedup table is in the URL: a link shows the same again."""

from urllib.parse import parse_qsl, quote, urlencode

import pytest
import synthetic as make
from browsing import EVIL, device_sweep, page_of, site, until, visits

READY = "document.querySelector('#grid tbody') && document.getElementById('grid').dataset.metric"
STATE = """() => ({
    heads: [...document.querySelectorAll('#grid thead th:not([hidden])')]
        .map((th) => th.innerText + (th.ariaSort || '')),
    rows: [...document.querySelectorAll('#grid tbody tr')].map((tr) => tr.innerText),
    controls: [...document.querySelectorAll('#table select, #table input')].map((one) => one.value),
    pressed: [...document.querySelectorAll('#table .legend button')].map((one) => one.ariaPressed),
})"""


def many_rows():
    """More than 25 rows, so that there is a search."""
    rows = []
    for model in ("mlp", "gpt", EVIL[0]):
        for bs in (1, 2, 4, 8, 16, 32):
            for mode in ("eager", "default", "cuda-graph"):
                rows.append(make.row(model, bs, mode, dtype="bfloat16"))
                rows.append(make.row(model, bs, mode, dtype="float16"))
    return rows


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    one = device_sweep(many_rows())
    return page_of(site(tmp_path_factory.mktemp("addresses"), one), one, "speedups")


@pytest.fixture
def visit(chromium, made):
    """visit("#…") opens the speedup tables."""
    with visits(chromium, READY) as opened:
        yield lambda after="": opened(made, after=after)


def state(one):
    """What the reader sees: heads, rows, and the controls."""
    return one.page.evaluate(STATE)


def address_of(one):
    return one.page.url.partition("#")[2]


def test_everything_that_is_set_is_in_the_link(visit):
    one = visit()
    depth = one.page.evaluate("history.length")
    one.page.locator("#metric").select_option("throughput_per_s")
    until(one.page, "document.getElementById('grid').dataset.metric === 'throughput_per_s'")
    one.page.locator("#grid select[data-column=model]").select_option("gpt")
    one.page.locator("#grid input[type=search]").fill("float16")
    one.page.locator("#table .legend button", has_text="cuda-graph").click()
    for _ in range(2):
        one.page.locator("#grid thead th", has_text="default").click()
    assert sorted(parse_qsl(address_of(one))) == [
        ("hide", "cuda-graph"),
        ("metric", "throughput_per_s"),
        ("model", "gpt"),
        ("search", "float16"),
        ("sort", "desc:default"),
    ]
    assert one.page.evaluate("history.length") == depth, "Back leaves the page, whatever was set"
    assert state(visit(f"#{address_of(one)}")) == state(one)


@pytest.mark.parametrize("text", [f"{EVIL[0]}?", "((( [x", "__proto__"])
def test_what_the_page_does_not_know_is_left_out(visit, text):
    given = dict.fromkeys(("metric", "model", "bs", "dtype", "hide", "page", text), text)
    sort = f"sort={quote(f'desc:{text}')}&sort=sideways:bs&sort=desc"
    one = visit(f"#{urlencode(given)}&{sort}&%E0%A4%A")
    assert state(one) == state(visit())
    one.assert_quiet()
