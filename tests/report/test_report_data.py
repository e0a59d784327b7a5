"""What figures and the summary say, by numbers and without a browser; and colours that stay."""

import itertools
import math

import pandas as pd
import pytest
import synthetic as make

from effbench.analysis.mode_scores import describe, score
from effbench.analysis.statistics import mode_score
from effbench.analysis.row_labels import MODES
from effbench.report import summary
from effbench.report.colors import STYLES, THEMES, style_of
from effbench.report.figures import (
    all_figures,
    base,
    break_even,
    compile_seconds,
    latency,
    launch_bound,
    memory,
    pareto,
    speedup_heatmap,
    throughput,
)
from effbench.report.figures.base import tick_text
from effbench.report.frame import prepare
from effbench.report.speedup_table import speedup_table


@pytest.fixture(scope="module")
def tidy():
    return prepare(make.sample())


def test_prepare_orders_rows_and_adds_what_is_missing():
    frame = prepare(pd.DataFrame([make.row("b", 8, "default"), make.row("b", 8), make.row("b", 1), make.row("a", 2)]))
    assert list(zip(frame["case"], frame["bs"], frame["series"], strict=True)) == [
        ("b", 1, "eager"), ("b", 8, "eager"), ("b", 8, "default"), ("a", 2, "eager"),
    ]  # fmt: skip
    few = prepare(pd.DataFrame([{"model": "m", "bs": 1, "mode": "eager", "status": "ok", "latency_ms": 1.0}]))
    assert math.isnan(few["peak_reserved_bytes"].iloc[0])


def test_heatmap_has_a_logarithm_only_where_ok(tidy):
    table = speedup_heatmap.data(tidy)
    assert len(table) == 63
    graph = table.query("case == 'mlp' and bs == 1 and series == 'cuda-graph'").iloc[0]
    assert graph["log2"] == pytest.approx(math.log2(2.5))
    assert table.query("status != 'ok'")["log2"].isna().all()
    figure = speedup_heatmap.draw(table).validated()
    assert figure.data[0].zmin == -figure.data[0].zmax
    assert sorted(figure.data[2].text)[0] == "<b>degraded</b>" and len(figure.data[2].text) == 3 + 7


def test_heatmap_without_any_speedup_is_empty():
    assert speedup_heatmap.data(prepare(pd.DataFrame([make.row(speedup=None)]))).empty


def test_latency_lines_break_where_a_result_is_not_ok(tidy):
    table = latency.data(tidy)
    part = table[table["case"] == "transformer"]
    figure = latency.draw(part).validated()
    band, eager = (trace for trace in figure.data if trace.meta["mode"] == "eager")
    assert eager.x == (1, 8, 64)
    assert eager.y[2] is None and eager.y[0] == pytest.approx(2.5)
    assert band.x == (1, 8, 8, 1, 1)
    assert band.y == pytest.approx((2.6, 3.328, 3.072, 2.4, 2.6))
    assert figure.layout.yaxis.title.text == "latency (ms)"


def test_latency_of_one_batch_size_is_a_row_of_dots():
    figure = latency.draw(latency.data(prepare(make.cpu_quick()))).validated()
    assert [trace.mode for trace in figure.data] == ["markers"] * 3
    assert figure.layout.xaxis.title.text == "latency (ms), batch size 1"
    assert not figure.data[0].error_x.visible


def test_a_point_alone_has_a_band_as_wide_as_a_whisker(tidy):
    table = latency.data(tidy)
    part = table[(table["case"] == "resnet50") & (table["series"] == "max-autotune-no-cudagraphs")]
    first, last, line = latency.draw(part).validated().data
    assert line.y[1] is None
    assert (first.x, last.x) == (
        pytest.approx((0.97, 1.03, 1.03, 0.97, 0.97)),
        pytest.approx((62.08, 65.92, 65.92, 62.08, 62.08)),
    )


def test_throughput_has_the_bounds_of_the_period(tidy):
    row = throughput.data(tidy).iloc[0]
    assert (row["case"], row["bs"], row["series"]) == ("mlp", 1, "eager")
    assert row["throughput_low"] == pytest.approx(row["throughput_per_s"] / 1.02)
    assert row["throughput_high"] == pytest.approx(row["throughput_per_s"] / 0.98)


def test_throughput_on_the_cpu_has_those_of_the_latency():
    frame = make.cpu_quick()
    frame["latency_ci_low_ms"], frame["latency_ci_high_ms"] = frame["latency_ms"] * 0.5, frame["latency_ms"] * 2
    row = throughput.data(prepare(frame)).iloc[0]
    assert row["throughput_low"] == pytest.approx(row["throughput_per_s"] / 2)
    assert row["throughput_high"] == pytest.approx(row["throughput_per_s"] * 2)


def test_the_launch_ratio_is_the_baselines(tidy):
    table = launch_bound.data(tidy)
    assert "eager" not in set(table["series"])
    found = table[(table["case"] == "mlp") & (table["bs"] == 1)]
    assert found["launch_ratio"].tolist() == pytest.approx([0.9 / 0.5] * 6)
    assert not len(table[(table["case"] == "transformer") & (table["bs"] == 64)]), "its baseline timed out"


def test_break_even_is_of_what_is_saved(tidy):
    table = break_even.data(tidy).set_index(["case", "bs", "series"])
    row = table.loc[("resnet50", 1, "default")]
    assert row["saved_ms"] == pytest.approx(2.5 - 2.5 / 1.3)
    assert table.loc[("resnet50", 64, "default"), "saved_ms"] < 0
    assert ("mlp", 1, "cuda-graph") not in table.index, "nothing is compiled"
    drawn = break_even.draw(break_even.data(tidy)).validated()
    marks = [trace for trace in drawn.data if trace.mode == "markers"]
    assert sum(len(trace.x) for trace in marks) == int((table["saved_ms"] > 0).sum())
    lines = [trace for trace in drawn.data if trace.mode == "lines"]
    for line, note in zip(lines, drawn.layout.annotations, strict=True):
        calls = 1e3 * line.x[0] / line.y[0]
        assert round(math.log10(calls), 6) == round(
            math.log10(float(note.text.replace(",", "").replace("10<sup>", "1e").split("<")[0].split()[0])), 6
        )


def test_break_even_where_nothing_is_saved(tidy):
    slow = tidy.assign(latency_ms=tidy["latency_ms"].where(tidy["is_baseline"], 100.0))
    figure = break_even.draw(break_even.data(slow)).validated()
    assert "none pays back" in figure.layout.annotations[0].text


@pytest.mark.parametrize(
    ("first", "second", "front"),
    [([1, 2, 3], [3, 2, 1], [True, True, True]), ([1, 2], [1, 2], [True, False]), ([1, 1], [1, 1], [True, True]),
     ([1, 1], [1, 2], [True, False]), ([], [], [])],
)  # fmt: skip
def test_a_front(first, second, front):
    assert pareto.on_front(first, second) == front


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.05, "0.05"), (500, "500"), (2000, "2000"), (20_000, "20k"), (3e6, "3M"), (5e9, "5G"), (1e-6, "1e-06")],
)
def test_tick_texts(value, text):
    assert tick_text(value) == text


def test_memory_in_binary_units_with_the_pool_inside(tidy):
    table = memory.data(tidy)
    figure = memory.draw(table[table["case"] == "mlp"]).validated()
    bars = {(trace.meta["mode"], trace.marker.pattern.shape): trace.y for trace in figure.data}
    assert bars["eager", None][0] == pytest.approx(42.5)
    assert bars["cuda-graph", None][0] == pytest.approx(51.0)
    assert bars["cuda-graph", "/"][0] == pytest.approx(42.5 * 0.3)
    assert ("eager", "/") not in bars
    assert figure.layout.yaxis.title.text == "device memory (MiB)"
    assert memory.unit_of(3 * 2**30) == ("GiB", 2**30) and memory.unit_of(10) == ("B", 1)


def test_memory_of_a_cpu_sweep_is_empty():
    assert memory.data(prepare(make.cpu_quick())).empty


def test_compile_seconds_cold_and_warm(tidy):
    table = compile_seconds.data(tidy)
    assert set(table["series"]) == set(MODES) - {"eager", "cuda-graph"}
    figure = compile_seconds.draw(table[table["case"] == "mlp"]).validated()
    cold, warm = (trace for trace in figure.data if trace.meta["mode"] == "max-autotune")
    assert cold.x == (48.0,) * 3 and warm.x == pytest.approx((14.4,) * 3)
    assert warm.marker.symbol.endswith("-open") and not cold.marker.symbol.endswith("-open")


@pytest.mark.parametrize("figure", all_figures(), ids=lambda figure: figure.name)
def test_every_figure_has_its_numbers_and_units(figure, tidy):
    data = figure.data(tidy)
    assert set(figure.numbers) <= set(data.columns)
    drawn = figure.draw(data[data["case"] == "mlp"]).validated()
    assert len(drawn.data) > 0
    titles = [axis.title.text for axis in (drawn.layout.xaxis, drawn.layout.yaxis) if axis.title.text]
    assert all("(" in title for title in titles)
    assert figure.caption and figure.absent and figure.data(tidy.iloc[:0]).empty


def test_counts_tell_failures_from_answers(tidy):
    found = summary.counts(tidy)
    assert (found.total, found.ok, found.failed, found.other) == (63, 58, 2, 3)
    assert list(found.by_status) == ["incorrect", "timeout", "oom", "unsupported", "degraded", "ok"]


def test_fastest_names_the_mode_and_what_it_cannot_be_told_from(tidy):
    best = summary.fastest(tidy)
    first, tied = best["mlp"][1], best["mlp"][64]
    assert (first.series, first.speedup, first.speedup_text, first.tied) == ("compile+graph", 2.8, "2.80×", ())
    assert tied.tied == ("reduce-overhead", "cuda-graph")
    alone = summary.fastest(prepare(pd.DataFrame([make.failed("mlp", 1, "eager", "oom", "full")])))
    assert alone == {"mlp": {1: None}}


def test_the_baseline_can_be_the_fastest_and_is_never_insignificant():
    rows = [make.row(speedup_ci_low=1.0, speedup_ci_high=1.0), make.row(mode="default", latency_ms=9.0)]
    item = summary.fastest(prepare(pd.DataFrame(rows)))["mlp"][1]
    assert (item.series, item.baseline, item.speedup_text) == ("eager", True, "1.00×")


def test_geometric_mean_stands_beside_its_pass_rate():
    rows = [make.row(), make.row(bs=8), make.row(mode="default", speedup=2.0), make.row("b", 1, "default", speedup=8.0)]
    rows.append(make.failed("c", 1, "default", "oom", "full"))
    modes = summary.by_mode(prepare(pd.DataFrame(rows))).set_index("series")
    default = modes.loc["default"]
    assert default["speedup"] == pytest.approx(4.0)
    assert default["pass_rate"] == pytest.approx(2 / 3)
    assert (default["speedup_results"], default["results"], default["not_ok"]) == (2, 3, "1 oom")


def test_each_headline_has_an_interval_or_says_why_not(tidy):
    modes = {row["series"]: row for row in summary.by_mode(tidy).to_dict("records")}
    notes = {name: summary.notes(row) for name, row in modes.items()}
    # 8 of 9 ok, memory 1 ÷ 1.2 in all, 48 s in all
    assert notes["max-autotune"]["pass_rate"] == "57–98 %"
    assert notes["max-autotune"]["memory_ratio"] == "the same in all 8"
    assert notes["eager"]["compile_cold_s"] == "" and math.isnan(modes["eager"]["compile_cold_s"])
    rows = [make.row("mlp", bs, "default", memory_ratio=ratio, compile_cold_s=seconds)
            for bs, ratio, seconds in ((1, 0.8, 2.0), (2, 1.0, 3.0), (4, 1.25, 9.0))]  # fmt: skip
    (row,) = summary.by_mode(prepare(pd.DataFrame(rows))).to_dict("records")
    assert row["memory_ratio"] == pytest.approx(1.0)
    # logs ±0.2231 and 0: standard error 0.2231 ÷ √3, t(2) = 4.3027
    assert (row["memory"].low, row["memory"].high) == (
        pytest.approx(0.57446, abs=1e-5),
        pytest.approx(1.74076, abs=1e-5),
    )
    assert summary.notes(row)["memory_ratio"] == "0.57–1.74"
    assert summary.notes(row)["compile_cold_s"] == "2.00 s to 9.00 s, least and largest"
    assert summary.percents(row["passed"]) == "44–100 %"
    (row,) = summary.by_mode(prepare(pd.DataFrame([make.row(speedup_ci_low=1.0, speedup_ci_high=1.0)]))).to_dict(
        "records"
    )
    assert summary.notes(row)["speedup"] == "by definition"


def test_the_lead_counts_significant_winners_alone(tidy):
    lead = summary.lead(summary.fastest(tidy), summary.by_mode(tidy))
    assert lead == ("compile+graph", 6, 9, 3)
    assert "6 of 9" in lead.sentence and "no significant winner in 3" in lead.sentence


def test_the_overview_and_the_table_agree_on_who_wins(tidy):
    best = summary.fastest(tidy)
    for row in speedup_table(make.sample()).rows:
        starred = [mode for mode, entry in row.cells.items() if entry.best]
        point = best[row.labels["model"]][row.labels["bs"]]
        assert starred == ([point.series] if point.wins else [])


@pytest.mark.parametrize(
    ("bounds", "text"),
    [((1.9, 2.1), "2.00×"), ((0.9, 4.4), "2.00× n.s."), ((0.01, 400.0), "unclear"), ((None, None), "2.00×")],
)
def test_a_speedup_reads_the_same_in_the_overview_and_the_heatmap(bounds, text):
    low, high = bounds
    more = {"latency_ms": 0.06, "speedup": 2.0, "speedup_ci_low": low, "speedup_ci_high": high}
    frame = prepare(pd.DataFrame([make.row(), make.row(mode="default", **more)]))
    drawn = speedup_heatmap.draw(speedup_heatmap.data(frame)).validated().data[0]
    assert drawn.text[0][1] == summary.fastest(frame)["mlp"][1].speedup_text == text
    assert (drawn.z[0][1] == 0) is (text == "unclear"), "no colour of a gain"


def test_a_mean_with_a_wide_interval_is_unclear():
    wide = {"speedup": 136.0, "speedup_ci_low": 0.6, "speedup_ci_high": 29_540.0, "trials": 2}
    (_, row) = summary.by_mode(prepare(pd.DataFrame([make.row(), make.row(mode="default", **wide)]))).to_dict("records")
    assert row["speedup_text"] == "unclear" and summary.notes(row)["speedup"] == "0.61–30,176"
    assert "unclear" in describe(score([make.row(**wide)])) and "136" not in describe(score([make.row(**wide)]))
    assert not mode_score([("ok", 2.0, 0.9, 3.7, 5)]).clear and mode_score([("ok", 2.0, 1.1, 4.3, 5)]).clear


def test_log_axis_has_ticks_inside_its_range():
    for low, high in ((1, 1), (0.03, 0.05), (0.1, 80), (1e-3, 1e4)):
        axis = base.log_axis("t (s)", pd.Series([low, high]))
        assert axis["range"][0] < math.log10(low) and axis["range"][1] > math.log10(high)
        assert "tickvals" not in axis or len(axis["tickvals"]) >= 2


def test_short_and_wrapped_text():
    assert base.short("max-autotune-no-cudagraphs", 18) == "max-autotun…graphs"
    assert base.wrapped("max-autotune-no-cudagraphs") == "max-autotune-<br>no-cudagraphs"
    assert base.safe("<b>&amp;\n%{x}") == "&lt;b&gt;&amp;amp; %{x}"


def luminance(color):
    parts = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_every_mode_has_its_own_look_with_contrast_in_both_themes():
    assert tuple(STYLES) == MODES
    for a, b in itertools.combinations(STYLES.values(), 2):
        assert a.color != b.color and a.symbol != b.symbol and a.glyph != b.glyph
    for style in STYLES.values():
        for theme in THEMES.values():
            light, dark = sorted((luminance(style.color), luminance(theme["paper"])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) > 2.75


def test_an_unknown_mode_keeps_its_look():
    assert style_of("torchscript") == style_of("torchscript") != style_of("onnx")
    assert style_of("torchscript").color not in {style.color for style in STYLES.values()}
