"""One file a page. Each module holds a `PAGE`; the site finds it by itself."""

from __future__ import annotations

import importlib
import pkgutil

from effbench.report.site.pages.base import Page


def all_pages() -> list[Page]:
    """The `PAGE` of every module in this package, in reading order."""
    modules = (importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
    return sorted((m.PAGE for m in modules if hasattr(m, "PAGE")), key=lambda page: (page.order, page.name))
