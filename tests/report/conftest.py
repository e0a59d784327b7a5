"""A browser for tests of pages."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("browsing")


@pytest.fixture(scope="session")
def chromium():
    from browsing import chromium_path
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=["--no-sandbox"])
        yield browser
        browser.close()
