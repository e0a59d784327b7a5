"""Take the pictures of README.md and docs/ again: `python docs/pictures.py`.

Writes the site of the sweep `atlas` of results/reference/ into a temporary folder, and takes
screenshots of its pages with Chromium, into docs/images/.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
WIDTH, HEIGHT = 1260, 900


@dataclass(frozen=True)
class Picture:
    """`page`: a file in the site, `*` for the sweep's folder. `first`: the element at the top."""

    name: str
    page: str
    first: str
    theme: str


PICTURES = (
    Picture("overview", "index.html", "header", "light"),
    Picture("speedups", "*/speedups.html", "header", "dark"),
    Picture("scaling", "*/charts.html", "#latency", "light"),
)


def main(folder: Path) -> None:
    database = folder / "reference.db"
    shutil.copy(ROOT / "results" / "reference" / "h200-sweeps.db", database)
    report = ["report", "--sweep", "atlas", "--out", str(folder / "site")]
    for words in (["db", "upgrade"], report):
        command = [sys.executable, "-m", "effbench", *words, "--db", str(database)]
        subprocess.run(command, cwd=ROOT, check=True)
    names = ("chromium", "chromium-browser", "google-chrome")
    browser_path = next(filter(None, map(shutil.which, names)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for picture in PICTURES:
            page = browser.new_page(
                viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=picture.theme
            )
            (path,) = (folder / "site").glob(picture.page)
            page.goto(path.as_uri())
            page.wait_for_timeout(1500)
            page.locator(picture.first).evaluate("element => element.scrollIntoView()")
            page.wait_for_timeout(1000)
            page.screenshot(path=IMAGES / f"{picture.name}.png")
        browser.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
