"""`effbench explain` and `show --why` over traced sweeps of known kernels: which cells are
compared, the answer in each format, and what has no explanation."""

import json
import shlex
from pathlib import Path

import pytest
from made_sweeps import A100, EAGER, FAST, GRAPH, SLOW, a_cell, steps

from effbench.cli import options
from effbench.core.trace import Kernel


def kernel(name, operator, ms):
    return Kernel(name, "", operator, ms, ms, 0.0)


GEMM = kernel("nvjet_sm90_tst_128x64_64x8_1x2_h_bz_TNT", "aten::addmm", 0.6)
COPY = kernel("Memcpy DtoD (Device -> Device)", "aten::copy_", 0.1)
FASTEST = {"latency_ms": steps(0.8, 0.001)}
PLAIN, COPYING = [GEMM], [GEMM, COPY]


@pytest.fixture
def sweep(made):
    """Records a sweep of cells with their figures, whose trials have a trace of these kernels."""

    def record(cells, **facts):
        sweep_id = made.sweep({cell: figures for cell, (figures, _) in cells.items()}, **facts)
        for cell, (_, kernels) in cells.items():
            if kernels:
                made.trace(sweep_id, cell, kernels)
        return sweep_id

    return record


@pytest.fixture
def modes(sweep):
    """A sweep of three modes at two batch sizes; `default` has a copy more than eager."""
    cells = {}
    for bs in (1, 8):
        cells[a_cell("eager", bs=bs)] = FAST, PLAIN
        cells[a_cell("default", bs=bs)] = SLOW, COPYING
        cells[a_cell("cuda-graph", bs=bs)] = FASTEST, PLAIN
    return sweep(cells, name="modes")


def sentences(done):
    """The sentence of each pair of cells."""
    assert (done.code, done.err) == (0, "")
    return [record["sentence"].split(" ms ")[0] for record in json.loads(done.out)["cells"]]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # the reference mode and the best mode of each row
        ("", ["mlp bs=1: cuda-graph takes 0.200", "mlp bs=8: cuda-graph takes 0.200"]),
        ("bs=8", ["mlp bs=8: cuda-graph takes 0.200"]),
        # one mode: against the reference mode
        ("default bs=1", ["mlp bs=1: default takes 0.100"]),
        ("eager default bs=1", ["mlp bs=1: default takes 0.100"]),
        ("bs=1 mode=default eager model=mlp", ["mlp bs=1: eager takes 0.100"]),
        ("eager default", ["mlp bs=1: default takes 0.100", "mlp bs=8: default takes 0.100"]),
        (
            "eager default,cuda-graph bs=1",
            ["mlp bs=1: default takes 0.100", "mlp bs=1: cuda-graph takes 0.200"],
        ),
        ("bs=1 bs=8 mode=eager", ["mlp eager: bs=8 takes 1.00"]),
        ("'mode=eager bs=1' 'mode=default bs=8'", ["mlp: bs=8 default takes 0.100"]),
    ],
)
def test_which_cells_are_compared(modes, effbench, words, expected):
    import shlex

    done = effbench("explain", *shlex.split(words), "--format", "json")
    assert sentences(done) == expected


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        ("nosuch", 3, "no cells fit both sides and differ only in mode\nmeasured: mlp bs=1 eager"),
        ("eager eager", 3, "no cells fit both sides and differ only in mode"),
        ("eager default bs=99", 3, "no cells fit both sides"),
        ("dtype=float32 dtype=bfloat16", 3, "no cells fit both sides and differ only in dtype"),
        ("eager default --sweep other", 3, "no sweep 'other'"),
        ("'eager", 2, "is no override such as mode=default, and no mode"),
    ],
)
def test_what_does_not_fit(modes, effbench, words, code, expected):
    done = effbench("explain", *words.split(" "))
    assert (done.code, done.out) == (code, "")
    assert expected in done.err and len(done.err.splitlines()) <= 2


@pytest.mark.parametrize(
    "words", ["sweep=before sweep=last", "gpu=H200 'gpu=A100 sweep=last' sweep=before"]
)
def test_a_cell_in_two_sweeps(sweep, effbench, words):
    """On one GPU, and on two."""
    sweep({EAGER: (FAST, PLAIN), GRAPH: (FAST, PLAIN)}, name="before")
    sweep({EAGER: (SLOW, COPYING)}, name="after", env=A100 if "gpu" in words else None)
    done = effbench("explain", *shlex.split(words))
    assert (done.code, done.err) == (0, "")
    after = "gpu_name=NVIDIA A100 sweep=after" if "gpu" in words else "sweep=after"
    assert done.out.startswith(f"mlp bs=8 eager: {after} takes 0.100 ms longer than ")
    assert "1 copy operation is new (Memcpy DtoD)" in done.out


def test_the_table(modes, effbench):
    done = effbench("explain", "default", "bs=8")
    assert (done.code, done.err) == (0, "")
    sentence, _, heading, *rows = [line.rstrip() for line in done.out.splitlines()]
    assert sentence == (
        "mlp bs=8: default takes 0.100 ms longer than eager (1.100 instead of 1.000 ms):"
        " +0.100 ms because 1 copy operation is new (Memcpy DtoD)."
    )
    assert heading.split("  ")[0] == "part of the latency"
    assert rows[0].split() == ["eager", "1.000", "█" * 36]
    assert rows[-4].split() == ["default", "1.000", "1.100", "+0.100", "±", "0.002", "█" * 40]
    copies = ["copies", "and", "casts", "0.000", "0.100", "+0.100", "±", "0.000"]
    assert [*copies, "·" * 36 + "█" * 4] in [row.split() for row in rows]
    assert rows[-2].startswith("kernels that differ (1 of 1 kinds)")
    assert rows[-1].split() == ["1", "new:", "Memcpy", "DtoD", "0.000", "0.100", "+0.100"]


@pytest.mark.parametrize("width", [90, 100, 110, 200])
def test_bars_fit_the_console(modes, effbench, monkeypatch, width):
    monkeypatch.setattr(options, "PLAIN_WIDTH", width)
    effbench("explain", "default", "bs=8", "--out", "wide.txt")
    lines = Path("wide.txt").read_text().splitlines()
    assert not [line for line in lines if not line.strip(" ·█▒▏") and line.strip()]
    longest = max(line.count("█") for line in lines)
    assert longest == min(40, width - 66 - len("eager") - len("default"))


def test_several_rows_have_a_sentence_each_and_the_first_one_tables(modes, effbench):
    first, second, more, *_ = effbench("explain").out.splitlines()
    assert first.startswith("mlp bs=1: cuda-graph") and second.startswith("mlp bs=8: cuda-graph")
    assert more == "Tables of mlp bs=1; settings such as bs=8 choose another cell:"


def test_json(modes, effbench):
    (record,) = json.loads(effbench("explain", "default", "bs=8", "--format", "json").out)["cells"]
    assert [record[name] for name in ("cell", "a", "b")] == ["mlp bs=8", "eager", "default"]
    assert record["cause"] == "1 copy operation is new (Memcpy DtoD): +0.100 of +0.100 ms"
    whole = record["difference_ms"]["value"]
    assert whole == pytest.approx(record["b_ms"]["value"] - record["a_ms"]["value"])
    assert sum(term["ms"]["value"] for term in record["terms"]) == pytest.approx(whole)
    assert [change["kind"] for change in record["kernels"]] == ["new"]


def test_what_has_no_explanation(sweep, effbench):
    failed = {"status": "unsupported", "reason": "needs CUDA"}
    cells = {EAGER: (FAST, PLAIN), a_cell("default"): (SLOW, None), GRAPH: (failed, None)}
    sweep(cells, overrides=["mode=eager,default"])
    done = effbench("explain", "default")
    assert done.code == 3
    assert done.out == (
        "mlp bs=8: default was not traced: measured by an older version, or with"
        " protocol.profile=false; to measure again: effbench -m mode=eager,default\n"
    )
    done = effbench("explain", "cuda-graph")
    assert (done.code, done.out) == (3, "mlp bs=8: cuda-graph is unsupported: needs CUDA\n")


def test_one_trial_and_a_disturbed_host(sweep, effbench):
    slow = {"latency_ms": 1.1, "disturbance": "host busy"}
    sweep({EAGER: ({}, PLAIN), a_cell("default"): (slow, COPYING)}, rounds=1)
    done = effbench("explain", "default")
    assert done.code == 0
    sentence, *rows = done.out.splitlines()
    assert sentence.startswith("~mlp bs=8: default takes 0.100 ms longer than eager")
    assert sentence.endswith("A single trial has no intervals.")
    assert "95 %" not in rows[1] and "±" not in done.out
    assert rows[-1].startswith(
        "~ measured on a disturbed machine (1 of 2 results): mlp bs=8 default"
    )


PAIRED = {"pair_speedup": 1.25, "pair_speedup_low": 1.2, "pair_speedup_high": 1.3}
BUSY = {"disturbance": "host busy"}


@pytest.mark.parametrize(
    ("words", "figures", "expected"),
    [
        (
            "default",
            PAIRED | BUSY,
            "Timed in turn in one process, the speedup is 1.25× (1.20–1.30).",
        ),
        (
            "default",
            PAIRED | BUSY | {"pair_disturbance": "host busy"},
            "Timed in turn in one process, the speedup is ~1.25× (1.20–1.30).",
        ),
        ("default", PAIRED, ""),
        ("default", BUSY, ""),
        ("default eager", PAIRED | BUSY, ""),
    ],
)
def test_marked_times_come_with_the_speedup_of_pairs(sweep, effbench, words, figures, expected):
    sweep(
        {EAGER: ({}, PLAIN), a_cell("default"): ({"latency_ms": 1.1} | figures, COPYING)}, rounds=1
    )
    sentence, *_ = effbench("explain", *words.split(" ")).out.splitlines()
    _, _, more = sentence.partition("A single trial has no intervals.")
    assert more.strip() == expected


def test_show_why_names_the_largest_parts(modes, sweep, effbench):
    rows = json.loads(effbench("show", "--why", "--format", "json").out)
    parts = {row["mode"]: row["parts"] for row in rows if row["bs"] == "8"}
    assert parts["eager"] == "matrix products 60 %, host before the first kernel 40 %"
    assert "matrix products 60 %" in effbench("show", "--why").out
    sweep({a_cell(device="cpu"): ({"gpu_busy_ms": None, "kernels": None}, PLAIN)})
    assert "matrix products 60 %" in effbench("show", "--why").out
