"""Figures on the page of charts show the numbers of the results."""

import pytest
import synthetic as make
from browsing import Visit, content, device_sweep, page_of, site
from synthetic import label_rows

from effbench.render.site.pages.charts import PLOTS
from effbench.render.site.pages.speedups import shown
from effbench.render.tables import speedup_table

DRAWN = """([figure, model]) => {
  for (const panel of document.querySelectorAll(`#${figure} figure`)) {
    if (panel.querySelector("figcaption").textContent !== model) continue;
    const { data, layout } = panel.querySelector(".chart");
    return { data, titles: [layout.xaxis.title.text, layout.yaxis.title.text] };
  }
}"""


SWEEPS = {
    "sample": make.sample(),
    "single": [make.row("mlp", 8, mode, period_ms=None) for mode in make.MODES],
}


@pytest.fixture(scope="module")
def drawn(chromium, tmp_path_factory):
    """drawn("latency", "mlp") returns the traces and titles of a drawing; `of` names a sweep."""
    sweeps = {name: device_sweep(rows, {"id": name}) for name, rows in SWEEPS.items()}
    folder = site(tmp_path_factory.mktemp("figures"), *sweeps.values())
    visits = {}

    def draw(figure, model, of="sample"):
        if of not in visits:
            visits[of] = Visit(chromium, page_of(folder, sweeps[of], "charts"))
        return visits[of].page.evaluate(DRAWN, [figure, model])

    yield draw
    for visit in visits.values():
        visit.assert_quiet()
        visit.page.close()


def trace_of(drawing, mode):
    return next(trace for trace in drawing["data"] if trace["meta"]["mode"] == mode)


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.name)
def test_every_plot_has_units(plot, drawn):
    drawing = drawn(plot.name, "mlp")
    assert drawing["data"]
    assert all("(" in title for title in drawing["titles"] if title)


def test_the_text_on_hover_has_every_value(drawn):
    text = trace_of(drawn("latency", "mlp"), "compile+graph")["hovertext"][1]
    assert text == (
        "<b>compile+graph</b> · mlp · bs 8<br>latency: 0.0571 ms (95 %: 0.0549–0.0594)"
        "<br>period: 0.0457 ms (95 %: 0.0448–0.0466)<br>throughput: 175000 samples/s<br>trials: 5"
    )


def test_latency_lines_break_at_results_that_are_not_ok(drawn):
    eager = trace_of(drawn("latency", "transformer"), "eager")
    assert eager["x"] == [1, 8, 64]
    assert eager["y"] == [pytest.approx(2.5), pytest.approx(3.2), None]
    assert eager["error_y"]["array"] == pytest.approx([0.1, 0.128, 0])


def test_a_single_size_has_a_row_per_mode(drawn):
    traces = drawn("latency", "mlp", of="single")["data"]
    assert [trace["y"] for trace in traces] == [[row] for row in range(len(make.MODES))]
    assert traces[0]["error_x"]["array"][0] > 0


@pytest.mark.parametrize(
    ("of", "axis", "bound"), [("sample", "y", 1 / 0.98), ("single", "x", 1 / 0.96)]
)
def test_throughput_has_the_bounds_of_the_period_or_the_latency(drawn, of, axis, bound):
    eager = trace_of(drawn("throughput", "mlp", of=of), "eager")
    value, above = eager[axis][0], eager[f"error_{axis}"]["array"][0]
    assert (value + above) / value == pytest.approx(bound)


def test_memory_in_mebibytes_with_the_pool_inside(drawn):
    bars = {}
    for bar in drawn("memory", "mlp")["data"]:
        bars[bar["meta"]["mode"], "pattern" in bar["marker"]] = bar["y"][0]
    assert bars["eager", False] == pytest.approx(42.5)
    assert bars["cuda-graph", False] == pytest.approx(51.0)
    assert bars["cuda-graph", True] == pytest.approx(42.5 * 0.3)
    assert ("eager", True) not in bars


def test_compile_seconds_cold_and_warm(drawn):
    traces = drawn("compile", "mlp")["data"]
    assert {trace["meta"]["mode"] for trace in traces} == set(make.MODES) - {"eager", "cuda-graph"}
    cold, warm = (trace for trace in traces if trace["meta"]["mode"] == "max-autotune")
    assert cold["x"] == [48.0] * 3
    assert warm["x"] == pytest.approx([14.4] * 3)


def test_the_x_axis_is_the_swept_number_if_bs_was_not_swept(tmp_path):
    swept = [{"model": {"module": {"seq": seq}}, "mode": {"name": "eager"}} for seq in (128, 64)]
    one = device_sweep([make.row("gpt2", params=params) for params in swept])
    data = site(tmp_path, one) / one.slug / "data"
    assert content(data / "charts-index.js")["axis"] == {"label": "seq", "title": "seq"}
    points = content(data / "charts-0.js")
    assert {(point["model"], point["x"]) for point in points} == {
        ("gpt2 · bs=1", 64),
        ("gpt2 · bs=1", 128),
    }


# --- colours ---


@pytest.mark.parametrize(
    ("value", "low", "high", "tone", "text"),
    [
        (2.0, 1.9, 2.1, "faster", "2.00×"),
        (2.0, 0.9, 4.4, "unsure", "2.00× n.s."),
        (2.0, None, None, "", "2.00×"),
        (0.1, 0.09, 0.11, "slower", "0.10×"),
    ],
)
def test_a_speedup_is_coloured_if_it_is_significant(value, low, high, tone, text):
    bounds = {"speedup_ci_low": low, "speedup_ci_high": high}
    other = make.row(
        mode="default",
        latency_ms=0.06,
        speedup=value,
        **bounds,
    )
    (row,) = speedup_table(label_rows([make.row(latency_ms=0.06), other])).rows
    cell = shown(row.cells["default"], url="", brief=False)
    assert cell.tone == tone
    assert cell.text == text


@pytest.mark.parametrize(
    ("mode", "figures", "details"),
    [
        ("default", {"speedup_ci_low": 1.9, "speedup_ci_high": 2.1}, "1.90–2.10"),
        ("default", {"speedup_ci_low": 0.9, "speedup_ci_high": 4.4}, "0.90–4.40"),
        (
            "default",
            {"speedup_ci_low": 1.9, "speedup_ci_high": 2.1, "speedup_disturbance": "host busy"},
            "1.90–2.10",
        ),
        ("default", {"speedup_ci_low": None, "speedup_ci_high": None}, ""),
        ("eager", {}, ""),
    ],
)
def test_the_overview_shows_intervals_without_a_pointer(mode, figures, details):
    other = make.row(
        mode="default",
        latency_ms=0.03,
        speedup=2.0,
        **figures,
    )
    (row,) = speedup_table(label_rows([make.row(latency_ms=0.06), other])).rows
    assert shown(row.cells[mode], url="", brief=True).details == details
