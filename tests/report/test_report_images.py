"""Figures as files, through kaleido and a real Chromium."""

from __future__ import annotations

import html
import sys

import pytest
import synthetic as make
from browsing import chromium_path, device_sweep

from effbench.errors import UsageError
from effbench.report.figures import images

ONE = device_sweep([make.row("<b>mlp</b>", bs, mode) for bs in (1, 8) for mode in ("eager", "default")])


@pytest.mark.slow
def test_every_figure_is_a_file_with_title_and_legend(tmp_path, monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", chromium_path())
    paths = images.write_images([ONE], tmp_path, "svg")
    folder = tmp_path / "images" / ONE.slug
    names = {path.relative_to(folder).name for path in paths}
    assert {"latency-0.svg", "speedup-heatmap-0.svg", "memory-0.svg", "break-even-0.svg"} <= names
    text = (folder / "latency-0.svg").read_text(encoding="utf-8")
    assert text.startswith("<svg") and text.count(">eager</text>") == 1 and text.count(">default</text>") == 1
    assert "Latency against batch size · <b>mlp</b>" in html.unescape(text) and "<b>" not in text


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    import plotly.io

    def write(*args, **kwargs):
        raise RuntimeError("Kaleido requires Google Chrome to be installed.")

    monkeypatch.setattr(plotly.io, "write_images", write)
    with pytest.raises(UsageError, match="Chrome or Chromium"):
        images.write_images([ONE], tmp_path, "png")
    monkeypatch.setitem(sys.modules, "kaleido", None)
    with pytest.raises(UsageError, match=r"effbench\[export\]"):
        images.write_images([ONE], tmp_path, "png")
