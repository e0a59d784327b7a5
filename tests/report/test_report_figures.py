"""Numbers behind figures, without a browser."""

import dataclasses

import plotly.graph_objects as go
import pytest
import synthetic as make
from browsing import device_sweep
from synthetic import label_rows

from effbench.report import colors
from effbench.report.figures import all_figures, base, cost, scaling
from effbench.report.figures.base import points_of
from effbench.report.site.pages.charts import numbers
from effbench.report.site.pages.speedups import shown
from effbench.report.tables import speedup_table


def validated(drawing):
    """Return the drawing as Plotly's own class, which refuses what it does not know."""
    return go.Figure(vars(drawing))


def points(rows):
    return points_of(label_rows(rows), "eager")


def of(drawn, **wanted):
    """Return the points with these places."""
    found = list(drawn)
    for name, value in wanted.items():
        found = [point for point in found if getattr(point, name) == value]
    return found


def at(drawn, **changed):
    """Return the points with other columns, or at another axis."""
    return [dataclasses.replace(point, values={**point.values, **changed}) for point in drawn]


@pytest.fixture(scope="module")
def sample():
    return points(make.sample())


def test_the_rows_are_in_reading_order():
    found = points(
        [make.row("b", 8, "default"), make.row("b", 8), make.row("b", 1), make.row("a", 2)]
    )
    assert [(point.case, point.x, point.series) for point in found] == [
        ("b", 1, "eager"),
        ("b", 8, "eager"),
        ("b", 8, "default"),
        ("a", 2, "eager"),
    ]


def by_length(bs, seq):
    return make.row(
        "gpt2", bs, params={"model": {"module": {"seq": seq}}, "mode": {"name": "eager"}, "bs": bs}
    )


def test_the_x_axis_is_bs_or_the_swept_number():
    lengths = points([by_length(1, 128), by_length(1, 64), by_length(1, 256)])
    assert [(point.case, point.axis, point.x) for point in lengths] == [
        ("gpt2 · bs=1", "seq", 64),
        ("gpt2 · bs=1", "seq", 128),
        ("gpt2 · bs=1", "seq", 256),
    ]
    axis = scaling.LATENCY.draw(lengths).layout["xaxis"]
    assert (axis["title"]["text"], axis["tickvals"]) == ("seq", [64, 128, 256])
    prompts = [dataclasses.replace(point, axis="prompt") for point in lengths]
    assert (
        scaling.LATENCY.draw(prompts).layout["xaxis"]["title"]["text"] == "prompt length (tokens)"
    )
    both = label_rows([by_length(bs, seq) for bs in (1, 8) for seq in (64, 128)])
    by_bs, by_seq = points_of(both, "eager"), points_of(both, "eager", "model.module.seq")
    assert {point.case for point in by_bs} == {
        "gpt2 · model.module.seq=64",
        "gpt2 · model.module.seq=128",
    }
    assert {point.case for point in by_seq} == {"gpt2 · bs=1", "gpt2 · bs=8"}


@pytest.mark.parametrize("figure", all_figures(), ids=lambda figure: figure.name)
def test_every_figure_has_its_numbers_and_units(figure, sample):
    if figure is scaling.TAIL:
        assert not figure.data(sample) and not figure.absent, "the page omits it"
        sample = [dataclasses.replace(point, axis="stream.rate") for point in sample]
    data = figure.data(sample)
    figure_drawn = validated(figure.draw(of(data, case="mlp")))
    titles = [
        axis.title.text
        for axis in (figure_drawn.layout.xaxis, figure_drawn.layout.yaxis)
        if axis.title.text
    ]
    assert len(figure_drawn.data) > 0 and all("(" in title for title in titles)
    assert figure.caption and not figure.data([])
    names = list(data[0].values)
    table = numbers(figure.title, data, names)
    assert len(table.rows) == len(data) and len(table.columns) == 3 + len(names)


def test_names_are_text_and_every_value_is_in_the_hover_text(sample):
    assert base.safe("<b>&amp;\n%{x}") == "&lt;b&gt;&amp;amp; %{x}"
    data = scaling.latency_data(sample)
    graph = of(data, series="compile+graph", x=8)[0]
    text = base.hover(dataclasses.replace(graph, case="<i>"))
    assert (
        "&lt;i&gt;" in text
        and "latency: 0.0571 ms (95 %: 0.0549 ms to 0.0594 ms)<br>period: 0.0457 ms" in text
    )


def test_latency_lines_break_at_results_that_are_not_ok(sample):
    table = scaling.latency_data(sample)
    figure = validated(scaling.LATENCY.draw(of(table, case="transformer")))
    (eager,) = (trace for trace in figure.data if trace.meta["mode"] == "eager")
    assert eager.x == (1, 8, 64) and eager.y[2] is None and eager.y[0] == pytest.approx(2.5)
    assert eager.error_y.array == pytest.approx((0.1, 0.128, 0)) and eager.error_y.arrayminus[
        0
    ] == pytest.approx(0.1)
    wide = at(table, latency_ci_low_ms=0.4, latency_ms=1.0, latency_ci_high_ms=4.0)
    ticks = scaling.LATENCY.draw(wide).layout["yaxis"].get("dtick")
    assert ticks == "D2", "bars count, too: labels at every digit of two decades would overlap"
    alone = validated(scaling.LATENCY.draw(of(table, case="mlp", x=8)))
    assert [trace.y for trace in alone.data] == [(rank,) for rank in range(7)] and alone.data[
        0
    ].error_x.visible


@pytest.mark.parametrize(
    ("ends", "kind"),
    [((19.5, 22.7), None), ((4.0, 16.0), None), ((3.0, 3.0), None), ((1.0, 9.0), "log")],
)
def test_a_small_axis_is_logarithmic_if_its_labels_have_room(ends, kind):
    assert base.small_axis("s", ends).get("type") == kind


def assert_bounds(point, low, high):
    value = point["throughput_per_s"]
    assert point["throughput_ci_low"] == pytest.approx(value * low)
    assert point["throughput_ci_high"] == pytest.approx(value * high)


def test_throughput_has_the_bounds_of_the_period(sample):
    assert_bounds(scaling.throughput_data(sample)[0], 1 / 1.02, 1 / 0.98)


def test_throughput_without_a_period_has_the_bounds_of_the_latency():
    bounds = {"latency_ms": 2.0, "latency_ci_low_ms": 1.0, "latency_ci_high_ms": 4.0}
    cpu = points([row | bounds for row in make.cpu_quick()[:2]])
    assert_bounds(scaling.throughput_data(cpu)[0], 1 / 2, 2)


def test_a_saturated_server_has_no_latency_beside_its_tail():
    rows = points([make.row(), make.row(mode="default", status="degraded")])
    table = scaling.tail_data([dataclasses.replace(row, axis="stream.rate") for row in rows])
    assert [(row["latency_p99_ms"] is None, row["latency_ms"] is None) for row in table] == [
        (False,) * 2,
        (True,) * 2,
    ]


def test_the_launch_ratio_is_the_most_that_a_graph_alone_can_gain(sample):
    table = scaling.launch_bound_data(sample)
    assert not of(table, series="eager")
    ratios = [row["launch_ratio"] for row in of(table, case="mlp", x=1)]
    assert ratios == pytest.approx([1.0 / 0.5] * 6)
    assert len(validated(scaling.launch_bound_draw(table)).data) == 6, "one trace per mode"
    assert not of(table, case="transformer", x=64), "its baseline timed out"
    alike = at(table, launch_ratio=8.0, speedup=2.0)
    axes = scaling.launch_bound_draw(alike).layout
    assert axes["xaxis"]["dtick"] == axes["yaxis"]["dtick"] == "D2", (
        "the axes show the whole diagonal, from 1 to 8"
    )


def test_memory_in_mebibytes_with_the_pool_inside(sample):
    table = cost.memory_data(sample)
    figure = validated(cost.memory_draw(of(table, case="mlp")))
    bars = {(trace.meta["mode"], trace.marker.pattern.shape): trace.y for trace in figure.data}
    assert bars["eager", None][0] == pytest.approx(42.5) and bars["cuda-graph", None][
        0
    ] == pytest.approx(51.0)
    assert bars["cuda-graph", "/"][0] == pytest.approx(42.5 * 0.3) and ("eager", "/") not in bars
    cold = []
    for point in of(table, case="mlp", series="default"):
        peak = point["peak_reserved_bytes"] if point.x > 1 else 60 * 2**20
        cold += at([point], peak_reserved_cold_bytes=peak)
    figure = validated(cost.memory_draw(cold))
    assert figure.data[0].error_y.array == pytest.approx([17.5, 0.0, 0.0]) and not bars.get(
        ("default", "/")
    )


def test_compile_seconds_cold_and_warm(sample):
    table = cost.compile_data(sample)
    assert {point.series for point in table} == set(make.MODES) - {"eager", "cuda-graph"}
    figure = validated(cost.compile_draw(of(table, case="mlp")))
    cold, warm = (trace for trace in figure.data if trace.meta["mode"] == "max-autotune")
    assert cold.x == (48.0,) * 3 and warm.x == pytest.approx((14.4,) * 3)


@pytest.mark.parametrize(
    ("value", "low", "high", "tone", "text"),
    [
        (2.0, 1.9, 2.1, "heat v3 faster", "2.00×"),
        (0.25, 0.2, 0.3, "heat v6 slower", "0.25×"),
        (2.0, 0.9, 4.4, "heat v3 faster pale", "2.00× n.s."),
        (2.0, None, None, "heat v3 faster pale", "2.00×"),
        (2.0, 0.01, 400, "pale", "unclear"),
        (20.0, 19.0, 21.0, "heat v9 faster", "20.00× ↑"),
        (0.1, 0.09, 0.11, "heat v9 slower", "0.10× ↓"),
    ],
)
def test_a_speedup_is_coloured_by_its_size_and_pale_unless_it_is_significant(
    value, low, high, tone, text
):
    figures = {"speedup": value, "speedup_ci_low": low, "speedup_ci_high": high}
    rows = [make.row(latency_ms=0.06), make.row(mode="default", latency_ms=0.06, **figures)]
    (row,) = speedup_table(label_rows(rows)).rows
    entry = shown(row.cells["default"], "speedup", device_sweep(make.rows()))
    assert (entry.tone, entry.text) == (tone, text)


def test_no_mode_has_the_mark_of_the_best_one():
    assert "★" not in {
        colors.style_of(mode).glyph for mode in [*colors.STYLES, *map(str, range(50))]
    }
