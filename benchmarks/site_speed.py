"""Measure time and memory of `effbench report` for a large database, and the loading time of its pages.

    python benchmarks/site_speed.py [--trials 100000] [--one-sweep] [--db FILE] [--out DIR]

The database is synthetic (benchmarks/many_trials.py): sweeps of 40 models that alternate between two GPUs, or one of
160 models. The output lists the command's time and memory, the size of the site, the bytes that a browser loads for
each kind of page at first and with everything open (without plotly.min.js, which all pages share; more than 5 MiB is
an error), and the time until the overview's first table is readable in Chromium. Then the command runs over a small
sweep.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import unquote, urlparse

from many_trials import Shape, fill
from playwright.sync_api import Browser, sync_playwright

SHARED = "plotly.min.js"
#: Largest size of what a page loads, without the shared script.
MOST_MIB = 5.0
SMALL = Shape(trials=525, models=3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--one-sweep", action="store_true", help="all trials in one sweep")
    parser.add_argument("--db", help="an existing database, or the file to create (default: a temporary one)")
    parser.add_argument("--out", help="folder of the site (default: a temporary folder)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        db = Path(args.db or Path(folder) / "many.db")
        out = Path(args.out or Path(folder) / "site")
        if not db.exists():
            start = time.perf_counter()
            fill(db, Shape(trials=args.trials, one_sweep=args.one_sweep))
            print(f"{db}: {db.stat().st_size / 2**20:.0f} MiB, made in {time.perf_counter() - start:.0f} s", flush=True)
        print(written(db, out), flush=True)
        chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if chromium:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                look(browser, out)
                browser.close()
        else:
            print("no Chromium on the PATH; pages were not opened")
        fill(Path(folder) / "small.db", SMALL)
        print("small sweep:", written(Path(folder) / "small.db", Path(folder) / "small"))


def written(db: Path, out: Path) -> str:
    """Run the command; return its wall time, CPU time, peak memory of all its processes, and the site's size."""
    command = [sys.executable, "-m", "effbench", "report", "--db", str(db), "--out", str(out)]
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    shared = [0.0]
    over = threading.Event()
    watcher = threading.Thread(target=watch, args=(child.pid, over, shared))
    watcher.start()
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - start
    over.set()
    watcher.join()
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    sizes = [path.stat().st_size for path in out.rglob("*") if path.is_file()]
    largest = max((path.stat().st_size, path.name) for path in out.rglob("*.js") if path.parent.name == "data")
    return (
        f"{seconds:.1f} s ({usage.ru_utime + usage.ru_stime:.1f} s of CPU time), peak {usage.ru_maxrss / 2**10:.0f} "
        f"MiB of one process, {max(shared):.0f} MiB of all, {len(sizes)} files, {sum(sizes) / 2**20:.0f} MiB, largest "
        f"{largest[1]} {largest[0] / 2**20:.2f} MiB"
    )


def watch(pid: int, over: threading.Event, shared: list[float]) -> None:
    """Record every 0.5 s the memory in MiB of the process and its children, with shared memory counted once (Linux)."""
    while not over.wait(0.5):
        shared.append(sum(map(share, [pid, *children(pid)])))


def children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def share(pid: int) -> float:
    """Return the proportional memory of a process in MiB; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 2**10


def look(browser: Browser, out: Path) -> None:
    """Open the overview to time it, then every page of the first device sweep to measure its size."""
    times = []
    for _ in range(3):
        page = browser.new_page()
        start = time.perf_counter()
        page.goto((out / "index.html").resolve().as_uri(), wait_until="domcontentloaded")
        page.locator("table").first.wait_for(state="visible")
        times.append(time.perf_counter() - start)
        page.close()
    print(f"overview usable after {sorted(times)[1]:.2f} s (median of 3)", flush=True)
    folder = next(path.parent for path in sorted(out.glob("*/cell.html")))
    keys = (folder / "data" / "cells-0.js").read_text(encoding="utf-8")
    key = keys[keys.index('"') + 1 :].partition('"')[0]
    pages = [out / "index.html", *sorted(folder.glob("*.html"))]
    worst = 0.0
    for path, after in [*((path, "") for path in pages), (folder / "cell.html", f"#cell={key}")]:
        first, seconds, whole, parts = opened(browser, path, after)
        # for models on several pages, measure each page as if it were opened alone
        wholes = [whole, *(opened(browser, path, f"#page={part}")[2] for part in range(2, parts + 1))]
        where = f" (largest of {parts} pages of models)" if parts > 1 else ""
        print(
            f"{path.name + after[:12]}: {first:.2f} MiB at first (loaded in {seconds:.1f} s), "
            f"{max(wholes):.2f} MiB with everything open{where}"
        )
        worst = max(worst, *wholes)
    if worst > MOST_MIB:
        raise SystemExit(f"a page loads {worst:.2f} MiB, more than {MOST_MIB} MiB")


def opened(browser: Browser, path: Path, after: str) -> tuple[float, float, float, int]:
    """Return the MiB loaded at first, the seconds until then, the MiB with everything open, and the pages of models."""
    asked: list[str] = []
    page = browser.new_page()
    page.on("request", lambda request: asked.append(request.url))
    start = time.perf_counter()
    page.goto(path.resolve().as_uri() + after, wait_until="load", timeout=120_000)
    page.wait_for_timeout(1500)
    first = total(asked)
    seconds = time.perf_counter() - start - 1.5
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.evaluate("dispatchEvent(new Event('beforeprint')); dispatchEvent(new Event('afterprint'))")
    page.wait_for_timeout(3000)
    whole, parts = total(asked), page.locator("#models-page option").count()
    page.close()
    return first, seconds, whole, parts


def total(urls: list[str]) -> float:
    """Return the size of these files in MiB, each counted once, without the shared script."""
    paths = {Path(unquote(urlparse(url).path)) for url in urls if url.startswith("file:")}
    return sum(path.stat().st_size for path in paths if path.name != SHARED) / 2**20


if __name__ == "__main__":
    main()
