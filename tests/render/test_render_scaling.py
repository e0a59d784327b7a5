"""How tables, sentences and pages show cells on several devices."""

import pytest
from browsing import Visit, content
from made_sweeps import a_cell, steps

SPLIT = {
    "ranks": 2,
    "collective_ms": 0.2,
    "exposed_collective_ms": 0.0,
    "rank_spread_ms": 0.01,
}


def timed(period, **more):
    return {"period_ms": steps(period, 0.001), "latency_ms": steps(2 * period, 0.001), **more}


CELLS = {
    a_cell(bs=1): timed(1.0),
    a_cell(bs=64): timed(4.0),
    a_cell(bs=1, parallel="tp2"): timed(1.25, **SPLIT),
    a_cell(bs=64, parallel="tp2"): timed(2.5, **SPLIT),
    a_cell(bs=64, phase="training"): timed(10.0),
    a_cell(bs=64, phase="training", parallel="ddp2"): timed(12.5, ranks=2),
}


@pytest.fixture
def shown(made, effbench, monkeypatch):
    """Returns a function that prints what `show` says of a sweep."""
    monkeypatch.setenv("COLUMNS", "250")

    def run(cells, *options):
        made.sweep(cells)
        done = effbench("show", *options)
        assert done.code == 0
        return done.out

    return run


def test_a_sentence_comes_before_the_table(shown):
    """Of the most and the least efficient cell of each value of `parallel`."""
    lines = shown(CELLS).splitlines()
    tp = (
        "tp2 takes 0.62× the time of one device (80 % efficiency) for mlp · phase=inference"
        " · bs=64 with eager, at worst 1.25× for mlp · phase=inference · bs=1 with eager"
    )
    ddp = (
        "ddp2 takes 1.25× the time of one device for 2 times the batches (80 % efficiency)"
        " for mlp · phase=training · bs=64 with eager"
    )
    heading = next(number for number, line in enumerate(lines) if "spread of ranks" in line)
    assert lines.index(tp) < lines.index(ddp) < heading


def test_the_table_has_what_explains_the_efficiency(shown):
    line = next(
        line for line in shown(CELLS).splitlines() if " 2.50 ms" in line and " 4.00 ms" in line
    )
    for text in (" 0.800 (", "0.0100 ms", "0.200 ms", " 0 ms"):
        assert text in line


def test_markdown_has_the_same_sentence(shown):
    assert "tp2 takes 0.62× the time of one device" in shown(CELLS, "--format", "markdown")


@pytest.mark.parametrize("options", [(), ("--format", "markdown")])
def test_a_sweep_on_single_devices_has_no_such_table(shown, options):
    text = shown({a_cell(): {}, a_cell("default"): {}}, *options)
    assert "efficiency" not in text


def test_the_efficiency_is_a_metric(shown):
    lines = shown(CELLS, "--metric", "scaling_efficiency").splitlines()
    (line,) = [line for line in lines if " tp2 " in line and " 64 " in line]
    assert " 0.800 (" in line


@pytest.mark.parametrize("metric", ["kernels", "enqueue_ms"])
def test_other_metrics_than_times_of_calls_have_no_such_table(shown, metric):
    assert "efficiency" not in shown(CELLS, "--metric", metric)


def test_marked_figures_have_a_sign_and_are_quoted_only_if_all_are_marked(shown):
    busy = {"disturbance": "host busy"}
    marked = {cell: {**figures, **busy} for cell, figures in CELLS.items() if cell.bs == 1}
    assert "tp2 takes 0.62× the time" in shown({**CELLS, **marked})
    assert "tp2 takes ~1.25× the time of one device" in shown(marked)


# --- the page of charts ---


def test_a_drawing_begins_with_one_device(site):
    folder = site(CELLS)
    points = content(folder / "data" / "charts-scaling-1.js")
    assert {point["model"] for point in points} == {"mlp · phase=inference · bs=64 · tp"}
    assert [point["x"] for point in points] == [1, 2]
    assert [point["figures"]["time"]["value"] for point in points] == pytest.approx([4.0, 2.5])
    efficiencies = [point["figures"]["scaling_efficiency"]["value"] for point in points]
    assert efficiencies == pytest.approx([1.0, 0.8])


def test_a_sweep_on_single_devices_has_no_such_section(site):
    folder = site({a_cell(): {}})
    assert not [*(folder / "data").glob("charts-scaling*")]
    assert 'id="efficiency"' not in (folder / "charts.html").read_text()


DRAWN = """(name) => [...document.querySelectorAll(`#${name} .chart`)].map(({ layout, data }) =>
  [layout.xaxis.title.text, layout.yaxis.type ?? "linear", data.map((trace) => trace.y)])"""


@pytest.mark.slow
def test_the_figures_are_drawn_against_the_number_of_devices(chromium, site):
    with Visit(chromium, site(CELLS) / "charts.html") as visit:
        efficiency = visit.page.evaluate(DRAWN, "efficiency")
        times = visit.page.evaluate(DRAWN, "devices")
        visit.assert_quiet()
    assert len(efficiency) == len(times) == 3
    assert {(title, kind) for title, kind, _ in efficiency} == {("number of devices", "linear")}
    assert {(title, kind) for title, kind, _ in times} == {("number of devices", "log")}
    assert times[1][2] == [pytest.approx([4.0, 2.5])]
