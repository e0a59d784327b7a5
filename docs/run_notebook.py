"""Run the notebook of the documentation: `python docs/run_notebook.py` also saves its output.

Charts are saved as PNG, because the data of an interactive chart is large.
"""

from __future__ import annotations

import base64
import os
import tempfile
from pathlib import Path

import nbformat
import plotly.io
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parent / "how-to" / "notebook.ipynb"
CHART = "application/vnd.plotly.v1+json"


def executed(folder: Path) -> nbformat.NotebookNode:
    """Return the notebook as it runs in `folder`. Raises CellExecutionError for a cell that
    fails."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=240, kernel_name="python3", record_timing=False)
    # one thread: two that wait for each other on a busy machine make times meaningless
    settings = {
        "PLOTLY_RENDERER": "plotly_mimetype",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    client.execute(cwd=str(folder), env={**os.environ, **settings})
    return notebook


def save() -> None:
    with tempfile.TemporaryDirectory() as folder:
        notebook = executed(Path(folder))
    for output in (output for cell in notebook.cells for output in cell.get("outputs", ())):
        if chart := output.get("data", {}).get(CHART):
            image = plotly.io.from_json(plotly.io.to_json(chart, validate=False)).to_image(
                "png", width=640, height=320
            )
            output["data"] = {"image/png": base64.b64encode(image).decode()}
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}
    }
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    save()
