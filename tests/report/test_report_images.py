"""Figures as files, through kaleido and a real Chromium."""

from __future__ import annotations

import html
import sys

import pytest
import synthetic as make
from browsing import chromium_path, device_sweep

from effbench.errors import UsageError
from effbench.report.figures import images


@pytest.fixture
def one():
    return device_sweep([make.row("<b>mlp</b>", bs, mode) for bs in (1, 8) for mode in ("eager", "default")])


@pytest.mark.slow
def test_every_figure_is_a_file_with_title_and_legend(one, tmp_path, monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", chromium_path())
    paths = images.write_images([one], tmp_path, "svg")
    names = {path.relative_to(tmp_path / "images" / one.slug).name for path in paths}
    assert {"latency.svg", "speedup-heatmap.svg", "memory.svg", "break-even.svg"} <= names
    text = (tmp_path / "images" / one.slug / "latency.svg").read_text(encoding="utf-8")
    assert text.startswith("<svg")
    assert "Latency against batch size · <b>mlp</b>" in html.unescape(text) and "<b>" not in text
    assert ">eager</text>" in text and ">default</text>" in text
    assert all(path.stat().st_size > 1000 for path in paths)


def test_nothing_to_draw_writes_nothing(tmp_path):
    failed = device_sweep([make.failed("mlp", 1, "eager", "error", "boom")])
    assert images.write_images([failed], tmp_path, "png") == []
    assert list(tmp_path.iterdir()) == []


def test_what_is_missing_is_named(one, tmp_path, monkeypatch):
    import plotly.io

    def write(*args, **kwargs):
        raise RuntimeError("Kaleido requires Google Chrome to be installed.")

    monkeypatch.setattr(plotly.io, "write_images", write)
    with pytest.raises(UsageError, match="Chrome or Chromium"):
        images.write_images([one], tmp_path, "png")
    monkeypatch.setitem(sys.modules, "kaleido", None)
    with pytest.raises(UsageError, match=r"pip install 'effbench\[export\]'"):
        images.write_images([one], tmp_path, "png")
