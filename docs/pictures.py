"""Take the README's pictures again: `python docs/pictures.py [FOLDER]`.

Writes the site of the results in results/reference/ into FOLDER (a temporary one without it) and takes screenshots of
it with Chromium, into docs/images/.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from playwright.sync_api import sync_playwright  # noqa: E402

from effbench.report.site.build import write_site  # noqa: E402
from effbench.report.site.material import Material, Subject  # noqa: E402

ROWS = ROOT / "results" / "reference" / "h200.jsonl"
IMAGES = ROOT / "docs" / "images"
#: Picture -> page, first element of it, height in pixels, theme.
PICTURES = {
    "overview": ("index", "main", 900, "light"),
    "speedups": ("speedups", "main", 900, "dark"),
    "scaling": ("scaling", "#latency", 900, "light"),
}
WIDTH = 1180


def reference() -> Subject:
    """The measured sweep as the site takes it; of what is not in the export nothing is shown."""
    rows = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]
    first = rows[0]
    sweep = {"id": first["sweep_id"], "name": first["sweep_name"], "label": first["label"], "state": "completed",
             "started_at": first["started_at"], "baseline_mode": "eager", "protocol": {}, "command": []}  # fmt: skip
    of_rows = ("gpu_name", "torch_version", "python")
    environment = {"id": first["environment_id"], **{name: first[name] for name in of_rows}}
    environment |= {"cpu_name": "", "platform": "", "flags": {}, "details": {}}
    known = ("gpu_memory_bytes", "driver_version", "cuda_version", "triton_version", "first_seen_at")
    environment |= dict.fromkeys(known)
    return Subject(sweep=sweep, hardware=first["gpu_name"], rows=rows, environments=[environment])


def main(folder: Path) -> None:
    subject = reference()
    database = "results/reference/h200.jsonl"
    write_site(Material(database, [subject], sweeps=[subject.sweep], environments=subject.environments), folder)
    browser_path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for name, (page_name, first, height, theme) in PICTURES.items():
            page = browser.new_page(viewport={"width": WIDTH, "height": height}, color_scheme=theme)
            path = folder / "index.html" if page_name == "index" else folder / subject.slug / f"{page_name}.html"
            page.goto(path.resolve().as_uri())
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
