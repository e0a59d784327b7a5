"""Numbers behind figures, without a browser."""

import dataclasses

import plotly.graph_objects as go
import pytest
import synthetic as make
from browsing import device_sweep
from synthetic import label_rows

from effbench.render.figures import all_figures, base, cost, scaling
from effbench.render.figures.base import points_of
from effbench.render.site.pages.speedups import shown
from effbench.render.tables import speedup_table


def validated(drawing):
    """Return the drawing as Plotly's own class, which refuses what it does not know."""
    return go.Figure(data=drawing.data, layout=drawing.layout)


def points(rows):
    return points_of(label_rows(rows))


def of(drawn, **wanted):
    """Return the points with these places."""
    return [
        point
        for point in drawn
        if all(getattr(point, name) == value for name, value in wanted.items())
    ]


def trace_of(figure, mode):
    (trace, *_) = [trace for trace in validated(figure).data if trace.meta["mode"] == mode]
    return trace


@pytest.fixture(scope="module")
def sample():
    return points(make.sample())


# --- the x axis ---


def by_length(bs, seq):
    params = {"model": {"module": {"seq": seq}}, "mode": {"name": "eager"}, "bs": bs}
    return make.row("gpt2", bs, params=params)


def test_the_x_axis_is_the_swept_number_if_bs_was_not_swept():
    lengths = points([by_length(1, 128), by_length(1, 64), by_length(1, 256)])
    assert [(point.case, point.axis, point.x) for point in lengths] == [
        ("gpt2 · bs=1", "seq", seq) for seq in (64, 128, 256)
    ]
    axis = scaling.LATENCY.draw(lengths).layout["xaxis"]
    assert (axis["title"]["text"], axis["tickvals"]) == ("seq", [64, 128, 256])


@pytest.mark.parametrize(
    ("ends", "kind"),
    [((19.5, 22.7), None), ((4.0, 16.0), None), ((3.0, 3.0), None), ((1.0, 9.0), "log")],
)
def test_a_small_axis_is_logarithmic_if_its_labels_have_room(ends, kind):
    assert base.small_axis("s", ends).get("type") == kind


# --- figures ---


@pytest.mark.parametrize("figure", all_figures(), ids=lambda figure: figure.name)
def test_every_figure_has_units(figure, sample):
    if figure is scaling.TAIL:
        assert not figure.data(sample) and not figure.absent, "the page omits it"
        sample = [dataclasses.replace(point, axis="stream.rate") for point in sample]
    data = figure.data(sample)
    drawn = validated(figure.draw(of(data, case="mlp")))
    titles = [drawn.layout.xaxis.title.text, drawn.layout.yaxis.title.text]
    assert len(drawn.data) > 0 and all("(" in title for title in titles if title)
    assert figure.caption and not figure.data([])


def test_names_are_text_and_every_value_is_in_the_hover_text(sample):
    assert base.safe("<b>&amp;\n%{x}") == "&lt;b&gt;&amp;amp; %{x}"
    (graph,) = of(sample, case="mlp", series="compile+graph", x=8)
    text = base.hover(dataclasses.replace(graph, case="<i>"), scaling.LATENCY_CURVE.names)
    values = "latency: 0.0571 ms (95 %: 0.0549 ms to 0.0594 ms)<br>period: 0.0457 ms"
    assert "&lt;i&gt;" in text and values in text


def test_latency_lines_break_at_results_that_are_not_ok(sample):
    data = of(scaling.LATENCY.data(sample), case="transformer")
    eager = trace_of(scaling.LATENCY.draw(data), "eager")
    assert eager.x == (1, 8, 64) and eager.y[2] is None and eager.y[0] == pytest.approx(2.5)
    assert eager.error_y.array == pytest.approx((0.1, 0.128, 0))


def test_a_single_size_has_a_row_per_mode(sample):
    data = of(scaling.LATENCY.data(sample), case="mlp", x=8)
    drawn = validated(scaling.LATENCY.draw(data))
    assert [trace.y for trace in drawn.data] == [(rank,) for rank in range(7)]
    assert drawn.data[0].error_x.array[0] > 0


@pytest.mark.parametrize(
    ("rows", "low", "high"),
    [
        (make.sample(), 1 / 1.02, 1 / 0.98),
        # without a period
        ([make.row(period_ms=None)], 1 / 1.04, 1 / 0.96),
    ],
)
def test_throughput_has_the_bounds_of_the_period_or_the_latency(rows, low, high):
    point = scaling.THROUGHPUT.data(points(rows))[0]
    assert scaling.throughput_bounds(point) == pytest.approx(
        [point["throughput_per_s"] * bound for bound in (low, high)]
    )


def test_memory_in_mebibytes_with_the_pool_inside(sample):
    drawn = validated(cost.memory_draw(of(cost.memory_data(sample), case="mlp")))
    bars = {(bar.meta["mode"], bar.marker.pattern.shape): bar.y[0] for bar in drawn.data}
    assert bars["eager", None] == pytest.approx(42.5)
    assert bars["cuda-graph", None] == pytest.approx(51.0)
    assert bars["cuda-graph", "/"] == pytest.approx(42.5 * 0.3) and ("eager", "/") not in bars


def test_compile_seconds_cold_and_warm(sample):
    data = cost.compile_data(sample)
    assert {point.series for point in data} == set(make.MODES) - {"eager", "cuda-graph"}
    drawn = validated(cost.compile_draw(of(data, case="mlp", series="max-autotune")))
    cold, warm = drawn.data
    assert cold.x == (48.0,) * 3 and warm.x == pytest.approx((14.4,) * 3)


# --- colours ---


@pytest.mark.parametrize(
    ("value", "low", "high", "tone", "text"),
    [
        (2.0, 1.9, 2.1, "heat v3 faster", "2.00×"),
        (0.25, 0.2, 0.3, "heat v6 slower", "0.25×"),
        (2.0, 0.9, 4.4, "heat v3 faster pale", "2.00× n.s."),
        (2.0, None, None, "heat v3 faster pale", "2.00×"),
        (20.0, 19.0, 21.0, "heat v9 faster", "20.00× ↑"),
        (0.1, 0.09, 0.11, "heat v9 slower", "0.10× ↓"),
    ],
)
def test_a_speedup_is_coloured_by_its_size_and_pale_unless_it_is_significant(
    value, low, high, tone, text
):
    bounds = {"speedup_ci_low": low, "speedup_ci_high": high}
    other = make.row(mode="default", latency_ms=0.06, speedup=value, **bounds)
    (row,) = speedup_table(label_rows([make.row(latency_ms=0.06), other])).rows
    cell = shown(row.cells["default"], device_sweep(make.rows()))
    assert (cell.tone, cell.text) == (tone, text)
