"""Every page opens in a browser, and hides no row. What else pages do is tested under the marker
`slow`."""

import pytest
from browsing import EVIL, Visit, assert_accessible, until

from effbench.render.site.build import PAGES

READY = {
    "cell": "document.querySelector('#list table')",
    "history": (
        "document.querySelector('#series').dataset.series && document.querySelector('#series"
        " .main-svg')"
    ),
}
EMPTY = """(() => {
  const box = document.createElement("div");
  const rows = [[{ text: "open" }], [{}]]; // a cell that is new has no state
  const source = { caption: "", columns: [{ title: "state", filter: true }], rows };
  effbench.grid(box, source, { state: { filters: new Map() } });
  const options = [...box.querySelectorAll("option")];
  return [box.querySelectorAll("tbody tr").length, options.map((option) => option.text)];
})()"""


def opened(chromium, claims_site, page, **more):
    _, _, report, folder = claims_site
    of_sweep = folder / report.device_sweeps[0].slug
    one = Visit(
        chromium,
        (of_sweep if page.of_device_sweep else folder) / f"{page.name}.html",
        width=390,
        **more,
    )
    until(one.page, READY.get(page.name, "true"))
    return one


def assert_harmless(one):
    """No name is more than text, nothing is wider than the screen, and nothing else was asked
    for."""
    assert one.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert (
        one.page.locator("img, main svg[onload], a[href^='javascript'], svg a, td b, th b").count()
        == 0
    )
    one.assert_quiet()


@pytest.mark.parametrize(
    "page",
    [
        # test_render_figures.py opens that of the charts
        pytest.param(page, id=page.name, marks=pytest.mark.slow if page.name == "charts" else ())
        for page in PAGES
    ],
)
def test_page_opens(chromium, claims_site, page):
    with opened(chromium, claims_site, page) as one:
        text = one.page.locator("main").inner_text()
        assert any(name in text for name in EVIL)
        assert not {"nan", "undefined"} & set(text.lower().split())
        assert_harmless(one)


def test_rows_without_a_text_are_not_all_that_is_shown(chromium, claims_site):
    claims = next(page for page in PAGES if page.name == "claims")
    with opened(chromium, claims_site, claims) as one:
        assert one.page.evaluate(EMPTY) == [2, ["all", "open"]]


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_everything_opened_is_accessible_and_harmless(chromium, claims_site, page, theme):
    with opened(chromium, claims_site, page, theme=theme) as one:
        one.open_all()
        for button in one.page.locator(".legend button").all()[-2:]:
            button.click()
        assert_harmless(one)
        assert_accessible(one)
