"""Pages of the site: each module defines a `PAGE` or several `PAGES`, which `all_pages` finds."""

from __future__ import annotations

import importlib
import pkgutil

from effbench.report.site.page import Page


def all_pages() -> list[Page]:
    """Return the pages of all modules, in reading order."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    pages = [page for module in modules for page in getattr(module, "PAGES", [getattr(module, "PAGE", None)])]
    return sorted((page for page in pages if page), key=lambda page: (page.order, page.name))
