"""A browser for tests of pages, and a site to be opened."""

import pytest

pytest.register_assert_rewrite("browsing")


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests in a browser are slow, except that each page opens and figures show numbers."""
    for item in items:
        if "chromium" in getattr(item, "fixturenames", ()) and item.path.name not in (
            "test_pages_open.py",
            "test_render_figures.py",
        ):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def chromium():
    from browsing import chromium_path
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def claims_site(tmp_path_factory: pytest.TempPathFactory):
    """Made-up sweeps whose names try to do harm: their database and ids, what a site of the newest
    and of one before it is made of, and the site's folder. Only to be read."""
    import browsing
    import claim_sweeps

    from effbench.render.site.build import write_site

    database, ids = claim_sweeps.fill(tmp_path_factory.mktemp("claims_site"))
    report = browsing.report_of(database.path, [ids[-1], ids[4]])
    folder = tmp_path_factory.mktemp("site")
    write_site(report, folder)
    return database, ids, report, folder


@pytest.fixture
def site(made, tmp_path):
    """Returns a function that writes the site of a sweep, and returns the folder of its pages."""
    from browsing import report_of

    from effbench.render.site.build import write_site

    def write(cells):
        made.sweep(cells)
        report = report_of(made.path)
        write_site(report, tmp_path / "site")
        return tmp_path / "site" / report.device_sweeps[0].slug

    return write
