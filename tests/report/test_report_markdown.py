"""The report as Markdown: the same answer, and names that stay text."""

import synthetic as make
from browsing import EVIL, device_sweep

from effbench.report import markdown


def test_the_answer_modes_speedups_and_failures():
    text = markdown.report([device_sweep(make.sample())])
    assert text.startswith("## h200 standard on NVIDIA H200\n")
    assert "Latency: compile+graph wins 6 of 9 points (model × batch size), 3 are ties" in text
    assert "58 of 63 results ok; 1 incorrect, 1 timeout, 1 oom, 1 unsupported, 1 degraded." in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    (line,) = [line for line in rows if line.startswith("| max-autotune | 1.")]
    assert "| 89 % (8 of 9) | 1 oom | +20 % (the same in all 8) | 48.0 s (the same in all 8) |" in line
    assert "- oom: transformer bs 64 max-autotune: CUDA out of memory: tried to allocate 12.5 GiB" in text
    assert "nan" not in text.lower().split() and "None" not in text


def test_nothing_measured():
    assert "no result" in markdown.report([])
    text = markdown.report([device_sweep([make.failed("mlp", 1, "eager", "error", "boom")])])
    assert "0 of 1 results ok; 1 error." in text and "- error: mlp bs 1 eager: boom" in text


def test_names_begin_no_markdown():
    rows = [make.row(name, 1, mode) for name in EVIL for mode in ("eager", "default")]
    rows.append(make.failed(EVIL[0], 8, "default", "error", f"{EVIL[1]}\n# heading\n| cell"))
    text = markdown.report([device_sweep(rows, {"name": EVIL[0], "label": EVIL[1]}, hardware=EVIL[2])])
    assert not any(tag in text for tag in ("<img", "<script", "<svg", "\n# heading"))
    assert {line.count(" | ") for line in text.splitlines() if line.startswith("|")} <= {3, 4, 5}
