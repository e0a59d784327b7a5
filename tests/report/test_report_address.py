"""What is set in the speedup table is in the URL: a link shows the same again."""

from urllib.parse import parse_qsl, quote, urlencode

import pytest
import synthetic as make
from browsing import EVIL, device_sweep, page_of, site, until, visits

READY = "document.querySelector('#grid tbody') && document.getElementById('grid').dataset.metric"
STATE = """() => ({
    heads: [...document.querySelectorAll('#grid thead th:not([hidden])')].map((th) => th.innerText + (th.ariaSort || '')),
    rows: [...document.querySelectorAll('#grid tbody tr')].map((tr) => tr.innerText),
    controls: [...document.querySelectorAll('#table select, #table input')].map((one) => one.value),
    pressed: [...document.querySelectorAll('#table .legend button')].map((one) => one.ariaPressed),
})"""  # noqa: E501 - one property a line


def many_rows():
    """More than 25 rows, so that there is a search."""
    measured = make.rows(
        ("mlp", "gpt", "vit"), (1, 2, 4, 8, 16, 32), ("eager", "default", "cuda-graph")
    )
    rows = [one | {"dtype": dtype} for one in measured for dtype in ("bfloat16", "float16")]
    return [*rows, make.failed("mlp", 64, "default", "oom", "full"), make.row("mlp", 64, "eager")]


def evil_rows():
    rows = [
        make.row(name, bs, mode, dtype=dtype)
        for name in EVIL[:4]
        for bs in (1, 8)
        for mode in ("eager", EVIL[0])
        for dtype in EVIL[:2]
    ]
    return [*rows, make.failed(EVIL[1], 64, EVIL[0], "error", EVIL[3], dtype=EVIL[0])]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    sweeps = {
        "many": device_sweep(many_rows()),
        "evil": device_sweep(evil_rows(), {"name": EVIL[0]}, hardware=EVIL[6]),
    }
    return site(tmp_path_factory.mktemp("addresses"), *sweeps.values()), sweeps


@pytest.fixture
def visit(chromium, made):
    """visit("many", "#…") opens the speedup tables."""
    folder, sweeps = made
    with visits(chromium, READY) as opened:
        yield lambda name, after="": opened(page_of(folder, sweeps[name], "speedups"), after=after)


def state(one):
    """What the reader sees: heads, rows, and the controls."""
    return one.page.evaluate(STATE)


def test_everything_that_is_set_is_in_the_link(visit):
    one = visit("many")
    depth = one.page.evaluate("history.length")
    one.page.locator("#metric").select_option("throughput_per_s")
    until(one.page, "document.getElementById('grid').dataset.metric === 'throughput_per_s'")
    one.page.locator("#grid select[data-column=model]").select_option("gpt")
    one.page.locator("#grid input[type=search]").fill("float16")
    one.page.locator("#table .legend button", has_text="cuda-graph").click()
    for _ in range(2):
        one.page.locator("#grid thead th", has_text="default").click()
    address = one.page.url.partition("#")[2]
    assert sorted(parse_qsl(address)) == [
        ("hide", "cuda-graph"),
        ("metric", "throughput_per_s"),
        ("model", "gpt"),
        ("search", "float16"),
        ("sort", "desc:default"),
    ]
    assert one.page.evaluate("history.length") == depth, "Back leaves the page, whatever was set"
    before = state(one)
    assert len(before["rows"]) == 12 and not any("cuda-graph" in head for head in before["heads"])
    again = visit("many", "#" + address)
    assert state(again) == before
    # what is taken back leaves the URL
    again.page.locator("#grid select[data-column=model]").select_option("")
    again.page.locator("#grid input[type=search]").fill("")
    again.page.locator("#table .legend button", has_text="cuda-graph").click()
    assert dict(parse_qsl(again.page.url.partition("#")[2])).keys() == {"metric", "sort"}
    one.assert_quiet()
    again.assert_quiet()


def test_an_address_is_input(visit):
    """What the page does not know is left out; what it searches for is text; names that it knows
    are found."""
    plain, found = state(visit("evil")), visit("many")
    for text in (f"{EVIL[0]}?", "((( [x", "__proto__"):
        given = dict.fromkeys(("metric", "model", "bs", "dtype", "hide", "page", text), text)
        one = visit(
            "evil",
            f"#{urlencode(given)}&sort={quote(f'desc:{text}')}&sort=sideways:bs&sort=desc&%E0%A4%A",
        )
        assert state(one) == plain
        one.assert_quiet()
        found.page.evaluate("hash => { location.hash = hash }", f"#search={quote(text)}")
        until(found.page, "document.querySelectorAll('#grid tbody tr').length === 1")
        assert found.texts("#grid tbody tr") == ["No row matches the filters."]
        found.page.evaluate("location.hash = '#search='")
        until(found.page, "document.querySelectorAll('#grid tbody tr').length > 1")
    found.assert_quiet()
    known = visit(
        "evil", f"#{urlencode({'model': EVIL[1], 'dtype': EVIL[0], 'bs': 64, 'hide': EVIL[0]})}"
    )
    assert state(known)["pressed"] == ["true", "false"] and len(state(known)["rows"]) == 1
    known.assert_quiet()
