"""Numbers behind figures and summary, without a browser; and colours that remain the same."""

import itertools
import math

import pytest
import synthetic as make

from effbench.labels import MODES, label_rows
from effbench.report import summary
from effbench.report.colors import STYLES, THEMES, style_of
from effbench.report.data import frame_of
from effbench.report.figures import (
    all_figures,
    base,
    compiling,
    curves,
    launch_bound,
    memory,
    speedup_heatmap,
)
from effbench.report.tables import speedup_table


def frame(rows):
    return frame_of(label_rows(rows), "eager")


@pytest.fixture(scope="module")
def labelled():
    return label_rows(make.sample())


@pytest.fixture(scope="module")
def sample():
    return frame(make.sample())


def test_the_frame_is_in_reading_order_and_has_every_column():
    found = frame([make.row("b", 8, "default"), make.row("b", 8), make.row("b", 1), make.row("a", 2)])
    assert list(zip(found["case"], found["bs"], found["series"], strict=True)) == [
        ("b", 1, "eager"), ("b", 8, "eager"), ("b", 8, "default"), ("a", 2, "eager"),
    ]  # fmt: skip
    few = frame([{"model": "m", "bs": 1, "mode": "eager", "status": "ok", "latency_ms": 1.0}])
    assert math.isnan(few["peak_reserved_bytes"].iloc[0])


# --- figures ---


@pytest.mark.parametrize("figure", all_figures(), ids=lambda figure: figure.name)
def test_every_figure_has_its_numbers_and_units(figure, sample):
    data = figure.data(sample)
    assert {*base.KEY_HEADINGS, *figure.numbers} <= set(data.columns)
    drawn = figure.draw(data[data["case"] == "mlp"]).validated()
    titles = [axis.title.text for axis in (drawn.layout.xaxis, drawn.layout.yaxis) if axis.title.text]
    assert len(drawn.data) > 0 and all("(" in title for title in titles)
    assert base.safe("<b>&amp;\n%{x}") == "&lt;b&gt;&amp;amp; %{x}"
    assert figure.caption and figure.absent and figure.data(sample.iloc[:0]).empty


def test_heatmap_has_a_logarithm_only_for_ok_results(sample):
    table = speedup_heatmap.data(sample)
    graph = table.query("case == 'mlp' and bs == 1 and series == 'cuda-graph'").iloc[0]
    assert len(table) == 63 and graph["log2"] == pytest.approx(math.log2(2.5))
    assert table.query("status != 'ok'")["log2"].isna().all()
    figure = speedup_heatmap.draw(table).validated()
    assert figure.data[0].zmin == -figure.data[0].zmax
    assert sorted(figure.data[2].text)[0] == "<b>degraded</b>" and len(figure.data[2].text) == 3 + 7
    assert speedup_heatmap.data(frame([make.row(speedup=None)])).empty


def test_latency_lines_break_at_results_that_are_not_ok(sample):
    table = curves.latency_data(sample)
    figure = curves.LATENCY.draw(table[table["case"] == "transformer"]).validated()
    band, eager = (trace for trace in figure.data if trace.meta["mode"] == "eager")
    assert eager.x == (1, 8, 64) and eager.y[2] is None and eager.y[0] == pytest.approx(2.5)
    assert band.x == (1, 8, 8, 1, 1) and band.y == pytest.approx((2.6, 3.328, 3.072, 2.4, 2.6))
    # a point alone has a band as wide as a whisker
    part = table[(table["case"] == "resnet50") & (table["series"] == "max-autotune-no-cudagraphs")]
    first, last, line = curves.LATENCY.draw(part).validated().data
    assert line.y[1] is None and first.x == pytest.approx((0.97, 1.03, 1.03, 0.97, 0.97))
    assert last.x == pytest.approx((62.08, 65.92, 65.92, 62.08, 62.08))


def test_throughput_has_the_bounds_of_the_period_or_of_the_latency(sample):
    row = curves.throughput_data(sample).iloc[0]
    assert (row["case"], row["bs"], row["series"]) == ("mlp", 1, "eager")
    bounds = (row["throughput_per_s"] / 1.02, row["throughput_per_s"] / 0.98)
    assert (row["throughput_low"], row["throughput_high"]) == pytest.approx(bounds)
    cpu = [one | {f"latency_ci_{end}_ms": factor * (one["latency_ms"] or math.nan)
                  for end, factor in (("low", 0.5), ("high", 2))} for one in make.cpu_quick()]  # fmt: skip
    row = curves.throughput_data(frame(cpu)).iloc[0]
    bounds = (row["throughput_per_s"] / 2, row["throughput_per_s"] * 2)
    assert (row["throughput_low"], row["throughput_high"]) == pytest.approx(bounds)


def test_the_launch_ratio_is_the_baselines(sample):
    table = launch_bound.data(sample)
    assert "eager" not in set(table["series"])
    ratios = table[(table["case"] == "mlp") & (table["bs"] == 1)]["launch_ratio"]
    assert ratios.tolist() == pytest.approx([0.9 / 0.5] * 6)
    assert table[(table["case"] == "transformer") & (table["bs"] == 64)].empty, "its baseline timed out"


def test_break_even(sample):
    table = compiling.break_even_data(sample).set_index(["case", "bs", "series"])
    assert table.loc[("resnet50", 1, "default"), "saved_ms"] == pytest.approx(2.5 - 2.5 / 1.3)
    assert table.loc[("resnet50", 64, "default"), "saved_ms"] < 0
    assert ("mlp", 1, "cuda-graph") not in table.index, "nothing is compiled"
    drawn = compiling.break_even_draw(compiling.break_even_data(sample)).validated()
    marks = [trace for trace in drawn.data if trace.mode == "markers"]
    assert sum(len(trace.x) for trace in marks) == int((table["saved_ms"] > 0).sum())
    lines = [trace for trace in drawn.data if trace.mode == "lines"]
    for line, note in zip(lines, drawn.layout.annotations, strict=True):
        calls = float(note.text.replace(",", "").replace("10<sup>", "1e").split("<")[0].split()[0])
        assert 1e3 * line.x[0] / line.y[0] == pytest.approx(calls)
    slow = sample.assign(latency_ms=sample["latency_ms"].where(sample["is_baseline"], 100.0))
    assert (
        "none pays back"
        in compiling.break_even_draw(compiling.break_even_data(slow)).validated().layout.annotations[0].text
    )


def test_pareto_front():
    for pairs, front in [
        ([(1, 3), (2, 2), (3, 1)], [True, True, True]), ([(1, 1), (2, 2)], [True, False]),
        ([(1, 1), (1, 1)], [True, True]), ([(1, 1), (1, 2)], [True, False]), ([], []),
    ]:  # fmt: skip
        assert memory.on_front(pairs) == front


def test_memory_in_binary_units_with_the_pool_inside(sample):
    table = memory.data(sample)
    figure = memory.draw(table[table["case"] == "mlp"]).validated()
    bars = {(trace.meta["mode"], trace.marker.pattern.shape): trace.y for trace in figure.data}
    assert bars["eager", None][0] == pytest.approx(42.5) and bars["cuda-graph", None][0] == pytest.approx(51.0)
    assert bars["cuda-graph", "/"][0] == pytest.approx(42.5 * 0.3) and ("eager", "/") not in bars
    assert figure.layout.yaxis.title.text == "device memory (MiB)"
    assert memory.unit_of(3 * 2**30) == ("GiB", 2**30) and memory.unit_of(10) == ("B", 1)
    assert memory.data(frame(make.cpu_quick())).empty


def test_compile_seconds_cold_and_warm(sample):
    table = compiling.data(sample)
    assert set(table["series"]) == set(MODES) - {"eager", "cuda-graph"}
    figure = compiling.draw(table[table["case"] == "mlp"]).validated()
    cold, warm = (trace for trace in figure.data if trace.meta["mode"] == "max-autotune")
    assert cold.x == (48.0,) * 3 and warm.x == pytest.approx((14.4,) * 3)
    assert warm.marker.symbol.endswith("-open") and not cold.marker.symbol.endswith("-open")


# --- summary ---


def test_the_headline_counts_significant_winners_alone(labelled):
    sentence = summary.headline(speedup_table(labelled), summary.by_mode(labelled))
    assert (
        sentence.startswith("compile+graph is the fastest mode in 6 of 9") and "no significant winner in 3" in sentence
    )
    alone = label_rows([make.row()])
    assert "Only the mode eager" in summary.headline(speedup_table(alone), summary.by_mode(alone))


def test_a_speedup_reads_the_same_in_the_table_and_the_heatmap():
    for low, high, text in [
        (1.9, 2.1, "2.00×"), (0.9, 4.4, "2.00× n.s."), (0.01, 400, "unclear"), (None, None, "2.00×"),
    ]:  # fmt: skip
        more = {"latency_ms": 0.06, "speedup": 2.0, "speedup_ci_low": low, "speedup_ci_high": high}
        rows = [make.row(), make.row(mode="default", **more)]
        drawn = speedup_heatmap.draw(speedup_heatmap.data(frame(rows))).validated().data[0]
        assert drawn.text[0][1] == speedup_table(label_rows(rows)).rows[0].cells["default"].short == text
        assert (drawn.z[0][1] == 0) is (text == "unclear"), "no colour of a gain"


# --- colours ---


def luminance(color):
    parts = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_every_mode_has_its_own_look_with_contrast_in_both_themes():
    assert tuple(STYLES) == MODES
    for a, b in itertools.combinations(STYLES.values(), 2):
        assert a.color != b.color and a.symbol != b.symbol and a.glyph != b.glyph
    for style, theme in itertools.product(STYLES.values(), THEMES.values()):
        light, dark = sorted((luminance(style.color), luminance(theme["paper"])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) > 2.75
    assert style_of("torchscript") == style_of("torchscript") != style_of("onnx")
    assert style_of("torchscript").color not in {style.color for style in STYLES.values()}
