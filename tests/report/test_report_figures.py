"""Numbers behind figures, without a browser."""

import math

import plotly.graph_objects as go
import pytest
import synthetic as make
from browsing import device_sweep

from effbench.labels import MODES, label_rows
from effbench.report.data import frame_of
from effbench.report.figures import all_figures, base, compiling, curves, launch_bound, memory
from effbench.report.site.page import numbers
from effbench.report.site.pages.speedups import shown
from effbench.report.tables import speedup_table


def validated(drawing):
    """Return the drawing as Plotly's own class, which refuses what it does not know."""
    return go.Figure(vars(drawing))


def frame(rows):
    return frame_of(label_rows(rows), "eager")


@pytest.fixture(scope="module")
def sample():
    return frame(make.sample())


def test_the_frame_is_in_reading_order():
    found = frame([make.row("b", 8, "default"), make.row("b", 8), make.row("b", 1), make.row("a", 2)])
    assert list(zip(found["case"], found["x"], found["series"], strict=True)) == [
        ("b", 1, "eager"), ("b", 8, "eager"), ("b", 8, "default"), ("a", 2, "eager"),
    ]  # fmt: skip


def by_length(bs, seq):
    return make.row("gpt2", bs, params={"model": {"module": {"seq": seq}}, "mode": {"name": "eager"}, "bs": bs})


def test_the_x_axis_is_bs_or_the_swept_number():
    lengths = frame([by_length(1, 128), by_length(1, 64), by_length(1, 256)])
    assert [*zip(lengths["case"], lengths["axis"], lengths["x"], strict=True)] == [
        ("gpt2 · bs=1", "seq", 64), ("gpt2 · bs=1", "seq", 128), ("gpt2 · bs=1", "seq", 256),
    ]  # fmt: skip
    drawn = curves.LATENCY.draw(lengths).layout["xaxis"]
    assert (drawn["title"]["text"], drawn["tickvals"]) == ("seq", [64, 128, 256])
    both = label_rows([by_length(bs, seq) for bs in (1, 8) for seq in (64, 128)])
    assert {*frame_of(both, "eager")["case"]} == {"gpt2 · model.module.seq=64", "gpt2 · model.module.seq=128"}
    assert {*frame_of(both, "eager", "model.module.seq")["case"]} == {"gpt2 · bs=1", "gpt2 · bs=8"}


@pytest.mark.parametrize("figure", all_figures(), ids=lambda figure: figure.name)
def test_every_figure_has_its_numbers_and_units(figure, sample):
    if figure is curves.TAIL:
        assert figure.data(sample).empty and not figure.absent, "the page omits it"
        sample = sample.assign(axis="stream.rate")
    data = figure.data(sample)
    assert set(base.KEYS) < set(data.columns)
    drawn = validated(figure.draw(data[data["case"] == "mlp"]))
    titles = [axis.title.text for axis in (drawn.layout.xaxis, drawn.layout.yaxis) if axis.title.text]
    assert len(drawn.data) > 0 and all("(" in title for title in titles)
    assert figure.caption and figure.data(sample.iloc[:0]).empty
    table = numbers(figure.title, data)
    assert len(table.rows) == len(data) and len(table.columns) == len(data.columns) - 2


def test_names_are_text_and_every_value_is_in_the_hover_text(sample):
    assert base.safe("<b>&amp;\n%{x}") == "&lt;b&gt;&amp;amp; %{x}"
    data = curves.latency_data(sample)
    graph = next(row for row in data.itertuples(index=False) if row.series == "compile+graph" and row.x == 8)
    text = base.hover(graph._replace(case="<i>"))
    assert "&lt;i&gt;" in text and "latency: 0.0571 ms (95 %: 0.0549 ms to 0.0594 ms)<br>period: 0.0457 ms" in text


def test_latency_lines_break_at_results_that_are_not_ok(sample):
    table = curves.latency_data(sample)
    figure = validated(curves.LATENCY.draw(table[table["case"] == "transformer"]))
    (eager,) = (trace for trace in figure.data if trace.meta["mode"] == "eager")
    assert eager.x == (1, 8, 64) and eager.y[2] is None and eager.y[0] == pytest.approx(2.5)
    assert eager.error_y.array == pytest.approx((0.1, 0.128, 0)) and eager.error_y.arrayminus[0] == pytest.approx(0.1)
    alone = validated(curves.LATENCY.draw(table[(table["case"] == "mlp") & (table["x"] == 8)]))
    assert [trace.y for trace in alone.data] == [(rank,) for rank in range(7)] and alone.data[0].error_x.visible


def test_throughput_has_the_bounds_of_the_period_or_of_the_latency(sample):
    cpu = [one | {f"latency_ci_{end}_ms": factor * (one["latency_ms"] or math.nan)
                  for end, factor in (("low", 0.5), ("high", 2))} for one in make.cpu_quick()]  # fmt: skip
    for rows, low, high in ((sample, 1 / 1.02, 1 / 0.98), (frame(cpu), 1 / 2, 2)):
        row = curves.throughput_data(rows).iloc[0]
        bounds = (row["throughput_per_s"] * low, row["throughput_per_s"] * high)
        assert (row["throughput_ci_low"], row["throughput_ci_high"]) == pytest.approx(bounds)


def test_the_launch_ratio_is_the_most_that_a_graph_alone_can_gain(sample):
    table = launch_bound.data(sample)
    assert "eager" not in set(table["series"])
    ratios = table[(table["case"] == "mlp") & (table["x"] == 1)]["launch_ratio"]
    assert ratios.tolist() == pytest.approx([1.0 / 0.5] * 6)
    names = [note.text for note in validated(launch_bound.draw(table)).layout.annotations]
    assert "mlp · bs 1" in names and len(names) == len(set(names)) <= 9
    assert table[(table["case"] == "transformer") & (table["x"] == 64)].empty, "its baseline timed out"


def test_break_even(sample):
    table = compiling.break_even_data(sample).set_index(["case", "x", "series"])
    assert table.loc[("resnet50", 1, "default"), "saved_ms"] == pytest.approx(2.5 - 2.5 / 1.3)
    assert table.loc[("resnet50", 64, "default"), "saved_ms"] < 0
    assert ("mlp", 1, "cuda-graph") not in table.index, "nothing is compiled"
    drawn = validated(compiling.break_even_draw(compiling.break_even_data(sample)))
    marks = [trace for trace in drawn.data if trace.mode == "markers"]
    assert sum(len(trace.x) for trace in marks) == int((table["saved_ms"] > 0).sum())
    lines = [trace for trace in drawn.data if trace.mode == "lines"]
    for line, note in zip(lines, drawn.layout.annotations, strict=True):
        assert 1e3 * line.x[0] / line.y[0] == pytest.approx(float(note.text.replace(",", "").split()[0]))
    slow = sample.assign(latency_ms=sample["latency_ms"].where(sample["is_baseline"], 100.0))
    assert compiling.break_even_data(slow).empty, "no empty plot: the page says that nothing pays back"


def test_memory_in_mebibytes_with_the_pool_inside(sample):
    table = memory.data(sample)
    figure = validated(memory.draw(table[table["case"] == "mlp"]))
    bars = {(trace.meta["mode"], trace.marker.pattern.shape): trace.y for trace in figure.data}
    assert bars["eager", None][0] == pytest.approx(42.5) and bars["cuda-graph", None][0] == pytest.approx(51.0)
    assert bars["cuda-graph", "/"][0] == pytest.approx(42.5 * 0.3) and ("eager", "/") not in bars
    cold = table.assign(peak_reserved_cold_bytes=table["peak_reserved_bytes"].where(table["x"] > 1, 60 * 2**20))
    figure = validated(memory.draw(cold[(cold["case"] == "mlp") & (cold["series"] == "default")]))
    assert figure.data[0].error_y.array == pytest.approx([17.5, 0.0, 0.0]) and not bars.get(("default", "/"))


def test_compile_seconds_cold_and_warm(sample):
    table = compiling.data(sample)
    assert set(table["series"]) == set(MODES) - {"eager", "cuda-graph"}
    figure = validated(compiling.draw(table[table["case"] == "mlp"]))
    cold, warm = (trace for trace in figure.data if trace.meta["mode"] == "max-autotune")
    assert cold.x == (48.0,) * 3 and warm.x == pytest.approx((14.4,) * 3)


def test_a_speedup_is_coloured_by_its_size_and_pale_unless_it_is_significant():
    for value, low, high, tone, text in [
        (2.0, 1.9, 2.1, "heat v3 faster", "2.00×"), (0.25, 0.2, 0.3, "heat v6 slower", "0.25×"),
        (2.0, 0.9, 4.4, "heat v3 faster pale", "2.00× n.s."), (2.0, None, None, "heat v3 faster pale", "2.00×"),
        (2.0, 0.01, 400, "pale", "unclear"), (20.0, 19.0, 21.0, "heat v9 faster", "20.00× ↑"),
        (0.1, 0.09, 0.11, "heat v9 slower", "0.10× ↓"),
    ]:  # fmt: skip
        more = {"latency_ms": 0.06, "speedup": value, "speedup_ci_low": low, "speedup_ci_high": high}
        (row,) = speedup_table(label_rows([make.row(latency_ms=0.06), make.row(mode="default", **more)])).rows
        entry = shown(row.cells["default"], "speedup", device_sweep(make.rows()))
        assert (entry.tone, entry.text) == (tone, text)
