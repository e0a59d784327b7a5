"""A browser for tests of pages."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("browsing")


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests in a browser are slow, except that each page opens."""
    for item in items:
        if "chromium" in getattr(item, "fixturenames", ()) and item.path.name != "test_pages_open.py":
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def chromium():
    from browsing import chromium_path
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=["--no-sandbox"])
        yield browser
        browser.close()
