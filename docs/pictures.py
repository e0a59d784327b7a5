"""Take the pictures of README.md and docs/ again: `python docs/pictures.py [FOLDER]`.

Imports the sweeps of results/reference/ into a database, writes the site of the sweep `atlas` into
FOLDER (without it, into a temporary one), and takes screenshots of its pages with Chromium, into
docs/images/.
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
SWEEPS = ROOT / "results" / "reference" / "h200-sweeps.db"
IMAGES = ROOT / "docs" / "images"
SWEEP = "atlas"
#: Picture -> page of the sweep with its address, first element of it, height in pixels, theme.
PICTURES = {
    "overview": ("index.html", "main", 900, "light"),
    "speedups": ("speedups.html", "main", 900, "dark"),
    "scaling": ("charts.html", "#latency", 900, "light"),
}
WIDTH = 1260


def effbench(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "effbench", *words], cwd=ROOT, check=True)


def sweep_id() -> str:
    with closing(sqlite3.connect(SWEEPS)) as connection:
        return connection.execute("SELECT id FROM sweep WHERE name = ?", [SWEEP]).fetchone()[0]


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        db = f"{temporary}/reference.db"
        effbench("import", str(SWEEPS), "--db", db)
        effbench("report", "--db", db, "--sweep", SWEEP, "--out", str(folder))
    (pages,) = folder.glob(f"*{sweep_id()}*")
    browser_path = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for name, (address, first, height, theme) in PICTURES.items():
            page = browser.new_page(viewport={"width": WIDTH, "height": height}, color_scheme=theme)
            page.goto(((folder if address == "index.html" else pages) / address).resolve().as_uri())
            page.wait_for_timeout(1500)
            top = page.locator(first).bounding_box()["y"]
            page.evaluate(f"window.scrollTo(0, {max(0, top - 60) if first != 'main' else 0})")
            page.wait_for_timeout(1000)
            page.screenshot(path=IMAGES / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
