"""The notebook of the documentation: it runs, and its saved output is small and names no
machine."""

from __future__ import annotations

import json
import re
import runpy

import pages
import pytest

NOTEBOOK = pages.DOCS / "how-to" / "notebook.ipynb"


def committed():
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def sources(cells):
    return [(cell["cell_type"], "".join(cell["source"])) for cell in cells]


def kinds(cells):
    """Of each cell: whether it has an output, and whether that is a table."""
    return [["text/html" in output["data"] for output in cell.get("outputs", ())] for cell in cells]


def test_the_saved_notebook_is_small_and_complete():
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert len(text) < 100_000 and "plotly" not in text.replace("import plotly", "")
    assert not re.search(r"(?<![\w.$~])/(work|home|root|opt|tmp|venvs)/", text)
    code = [cell for cell in committed() if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]
    assert all(cell["outputs"] for cell in code)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # Jupyter's own
def test_the_notebook_runs(tmp_path):
    notebook = runpy.run_path(str(pages.DOCS / "run_notebook.py"))["executed"](tmp_path)
    assert sources(notebook.cells) == sources(committed())
    assert kinds(notebook.cells) == kinds(committed())
    assert all(
        output["output_type"] != "stream"
        for cell in notebook.cells
        for output in cell.get("outputs", ())
    )
    assert not list(tmp_path.iterdir()), "the notebook leaves nothing in the working directory"
