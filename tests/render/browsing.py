"""Pages in a real browser: what they asked for, said and threw; and sites of made-up sweeps."""

import contextlib
import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import synthetic as make

from effbench.analysis.history import History
from effbench.render.data import DeviceSweep, ReportData, read
from effbench.render.site.build import write_site
from effbench.store import Store

EVIL = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    '"><svg onload=alert(3)>',
    "<a href='javascript:alert(4)'>x</a>",
    "%{x} {{ 7*7 }}",
    "<b>&lt;i&gt;</b>",
    "../../x",
    "');alert(5);//",
)


def chromium_path() -> str:
    path = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    assert path, "these tests need a Chromium on the PATH"
    return path


def device_sweep(
    rows: list[dict[str, Any]], sweep: dict[str, Any] | None = None, **more: Any
) -> DeviceSweep:
    known = {"hardware": "NVIDIA H200", "environments": [make.ENVIRONMENT]}
    return DeviceSweep(
        dataclasses.replace(make.SWEEP, **(sweep or {})), rows=make.label_rows(rows), **known | more
    )


def site(
    out: Path,
    *device_sweeps: DeviceSweep,
    database: str = "sqlite:///results/effbench.db",
    **more: Any,
) -> Path:
    """Writes a site; returns its folder."""
    more.setdefault("history", History([], {}, {}, [], []))
    write_site(ReportData(database, device_sweeps, **more), out)
    return out


def report_of(path: Path, references: Sequence[str] = ()) -> ReportData:
    """What a report of the database is made of."""
    with Store.open(path) as store:
        return read(store, str(path), references)


def content(path: Path) -> Any:
    """What a file of data holds."""
    return json.loads(
        path.read_text(encoding="utf-8").removeprefix("effbench.put(").removesuffix(");\n")
    )


def page_of(folder: Path, one: DeviceSweep, name: str) -> Path:
    return folder / one.slug / f"{name}.html"


def until(page: Any, condition: str, seconds: float = 30) -> None:
    """Wait for a JavaScript condition; Playwright's own way needs eval, which the page's policy
    forbids."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, f"not within {seconds} s: {condition}"
        page.wait_for_timeout(20)


class Visit:
    """A page opened in a browser, everything on it drawn."""

    def __init__(
        self, browser: Any, where: Path, width: int = 1200, theme: str = "light", after: str = ""
    ) -> None:
        self.requests, self.complaints, self.dialogs = [], [], []
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on(
            "dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss())
        )
        self.page.goto(where.resolve().as_uri() + after)
        self.home = next(
            parent for parent in where.resolve().parents if (parent / "site.json").exists()
        ).as_uri()
        self.draw()

    def draw(self) -> None:
        """As printing does: also the figures that are out of sight."""
        self.page.evaluate(
            "dispatchEvent(new Event('beforeprint')); dispatchEvent(new Event('afterprint'))"
        )
        until(
            self.page,
            "[...document.querySelectorAll('.chart[data-src]')]"
            ".every((chart) => chart.closest('[hidden]') || chart.dataset.drawn)",
        )
        until(
            self.page,
            "[...document.querySelectorAll('.grid-place[data-src], #grid')].every((place) =>"
            " place.closest('details:not([open]), [hidden]') || place.childElementCount)",
        )

    def __enter__(self) -> "Visit":
        return self

    def __exit__(self, *_: object) -> None:
        self.page.close()

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_inner_texts()

    def open_all(self) -> None:
        """Open whatever is folded, and draw what was in it."""
        self.page.evaluate(
            "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
        )
        self.draw()

    def assert_quiet(self) -> None:
        """Nothing was asked of another host or a folder above the site, nothing complained or
        opened."""
        own = (self.home + "/", "data:", "blob:")
        foreign = [url for url in self.requests if not url.startswith(own)]
        assert foreign == []
        assert self.complaints == []
        assert self.dialogs == []


@contextlib.contextmanager
def visits(browser: Any, ready: str) -> Iterator[Callable[..., Visit]]:
    """Opens pages as `Visit` does, waits until each is ready (a JavaScript condition), and closes
    them in the end."""
    opened: list[Visit] = []

    def open(where: Path, **more: Any) -> Visit:
        opened.append(Visit(browser, where, **more))
        until(opened[-1].page, ready)
        return opened[-1]

    yield open
    for one in opened:
        one.page.close()


def assert_accessible(one: Visit) -> None:
    """axe-core finds no serious violation, with everything opened."""
    from axe_playwright_python.sync_playwright import Axe

    one.open_all()
    found = Axe().run(one.page).response["violations"]
    bad = [
        (item["id"], item["nodes"][0]["html"][:200])
        for item in found
        if item["impact"] in ("serious", "critical")
    ]
    assert bad == []
