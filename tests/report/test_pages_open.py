"""Every page opens in a browser. What else the pages do in a browser is tested under the marker `slow`."""

from __future__ import annotations

import claim_sweeps
import pytest
from browsing import EVIL, Visit, until

from effbench.commands.claims import every_entry
from effbench.report.data import read
from effbench.report.site.build import write_site
from effbench.report.site.pages import all_pages
from effbench.store import Store

READY = {
    "cell": "document.querySelector('#list table')",
    "history": "document.querySelector('#series').dataset.series && document.querySelector('#series .main-svg')",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of a site with names that try to do harm, and the folder of its newest sweep."""
    database, _ = claim_sweeps.fill(tmp_path_factory.mktemp("database"))
    folder = tmp_path_factory.mktemp("site")
    with Store.open(database.path) as store:
        data = read(store, str(database.path))
        data.claims = every_entry(store)
    write_site(data, folder)
    return folder, folder / data.device_sweeps[0].slug


@pytest.mark.parametrize("page", all_pages(), ids=lambda page: page.name)
def test_page_opens(chromium, site, page):
    folder, of_sweep = site
    where = (of_sweep if page.of_device_sweep else folder) / f"{page.name}.html"
    with Visit(chromium, where, width=390) as one:
        one.home = folder.resolve().as_uri()
        until(one.page, READY.get(page.name, "true"))
        main = one.page.locator("main")
        assert one.page.evaluate("document.documentElement.scrollWidth") <= 390
        assert any(name in main.inner_text() for name in EVIL)
        assert not {"nan", "undefined"} & set(main.inner_text().lower().split())
        assert one.page.locator("img, main svg[onload], a[href^='javascript'], svg a").count() == 0
        one.assert_quiet()
