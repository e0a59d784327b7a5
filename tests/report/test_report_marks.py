"""Marks: figures of a disturbed machine are shown with `~`, win nothing, and are explained once per
output."""

import csv
import io
import json

import pytest
import synthetic as make
from browsing import content, device_sweep, page_of, site
from synthetic import label_rows

from effbench.report import markdown, marks
from effbench.report.bottlenecks import bottleneck_table, time_cells
from effbench.report.figures import scaling
from effbench.report.figures.base import points_of
from effbench.report.reasons import sentence
from effbench.report.summary import by_mode, headline, score_text
from effbench.report.tables import figure_texts, speedup_table

WHY = "host busy for 83 % of the timing"
BUSY = {"marked": True, "disturbance": WHY, "speedup_disturbance": WHY}


def timed(mode, latency_ms, low, high, **more):
    """A row with this latency; eager takes 1 ms."""
    times = {
        "latency_ms": latency_ms,
        "latency_ci_low_ms": low,
        "latency_ci_high_ms": high,
        "speedup": 1 / latency_ms,
    }
    bounds = {"speedup_ci_low": 1 / high, "speedup_ci_high": 1 / low}
    return make.row(mode=mode, **{**times, **bounds, "marked": False, **more})


EAGER = timed("eager", 1.0, 0.99, 1.01, speedup_ci_low=1.0, speedup_ci_high=1.0)
DEFAULT = timed("default", 0.7, 0.69, 0.71)
GRAPH = timed("cuda-graph", 0.4, 0.39, 0.41)

#: The speedup of the baseline is 1 by definition.
BUSY_EAGER = BUSY | {"speedup_disturbance": None}


def row_of(*rows, metric="speedup"):
    (row, *_) = speedup_table(label_rows(rows), metric).rows
    return row


def test_a_marked_figure_is_shown_with_its_interval_and_is_never_called_significant():
    wide = timed("default", 0.7, 0.3, 1.6, **BUSY)
    entry = row_of(EAGER, wide, GRAPH).cells["default"]
    assert (entry.text, entry.interval, entry.tone) == ("~1.43×", "0.62–3.33", "unsure")
    assert (entry.marked, entry.disturbance, entry.significant) == (True, BUSY["disturbance"], None)
    assert row_of(EAGER, wide, metric="latency_ms").cells["default"].text == "~0.700 ms"
    memory = row_of(EAGER, wide, metric="peak_reserved_bytes").cells["default"]
    assert (memory.text, memory.marked) == ("42.5 MiB", False), "a busy host does not change memory"
    assert figure_texts("latency_ms", 1.0, 0.001, 90.0, marked=True) == (
        "~1.00 ms",
        "0.00100–90.0",
    ), "never hidden"
    assert figure_texts("latency_ms", None, None, None, marked=True) == ("—", "")


@pytest.mark.parametrize(
    ("marked", "winner", "best"),
    [
        # all of its interval is worse
        (timed("default", 0.7, 0.5, 0.9, **BUSY), "cuda-graph", ["cuda-graph"]),
        # it may be better
        (timed("default", 0.7, 0.40, 0.9, **BUSY), None, ["cuda-graph", "default"]),
        # it seems to be better
        (timed("default", 0.2, 0.19, 0.21, **BUSY), None, ["cuda-graph", "default"]),
    ],
)
def test_a_marked_mode_wins_nothing_and_leaves_the_star_only_if_it_cannot_be_better(
    marked, winner, best
):
    row = row_of(EAGER, marked, GRAPH)
    assert (row.winner, row.best) == (winner, best)
    assert [mode for mode, entry in row.cells.items() if entry.best] == ([winner] if winner else [])


def test_no_mode_wins_among_marked_ones():
    rows = [item | BUSY for item in (EAGER, DEFAULT, GRAPH)]
    row = row_of(*rows)
    assert (row.best, row.leader) == ([], None) and not any(
        entry.best for entry in row.cells.values()
    )
    assert sentence([row]) == "all figures are marked (~), so no mode wins."
    labelled = label_rows(rows)
    assert (
        headline(speedup_table(labelled), by_mode(labelled))
        == "All figures are marked (~), so no mode wins."
    )


OVER_BUSY = {"speedup_disturbance": f"the baseline's times: {BUSY['disturbance']}"}


def test_a_speedup_over_a_marked_baseline_is_marked():
    row = row_of(EAGER | BUSY_EAGER, DEFAULT | OVER_BUSY, GRAPH | OVER_BUSY)
    entry = row.cells["cuda-graph"]
    assert [it.text for it in row.cells.values()] == ["~1.00 ms", "~1.43×", "~2.50×"]
    assert entry.disturbance == "the baseline's times: host busy for 83 % of the timing"
    assert row.winner == "cuda-graph" and not entry.best, (
        "the mode wins by its own time, but its ratio gets no star"
    )
    assert "(~2.50×)" in sentence([row])
    times = row_of(EAGER | BUSY_EAGER, DEFAULT, GRAPH, metric="latency_ms").cells
    assert [it.marked for it in times.values()] == [True, False, False] and times["cuda-graph"].best


def test_means_of_marked_speedups_are_marked_and_no_narrower_than_these():
    rows = label_rows(
        [EAGER, GRAPH, EAGER | {"bs": 8}, timed("cuda-graph", 0.4, 0.2, 0.8, bs=8, **BUSY)]
    )
    (eager, graph) = by_mode(rows)
    score = graph.scores["speedup"]
    assert (score_text(eager.scores["speedup"]), score_text(score)) == ("1.00×", "~2.50×")
    assert score.low < 2.5 / 2**0.5 and score.high > 2.5 * 2**0.5, (
        "half of the marked speedup's interval, and more"
    )
    clean = by_mode(label_rows([EAGER, GRAPH]))[1].scores["speedup"]
    assert (clean.marked, score_text(clean)) == (False, "2.50×")


def test_the_note_names_the_cells_how_disturbed_and_what_to_do():
    other = {"marked": True, "disturbance": "host busy for 40 % of the timing"}
    text = marks.note(
        label_rows([EAGER, DEFAULT | BUSY | {"device": "cpu"}, GRAPH | other | {"device": "cpu"}])
    )
    assert "mlp device=cpu bs=1 default" in text and "2 of 3 results" in text
    assert (
        "host busy for 40–83 % of the timing" in text and "threads=1" in text and "\n" not in text
    )
    assert "threads=1" not in marks.note(label_rows([EAGER, DEFAULT | BUSY])), "advice for a CPU"
    assert marks.note(label_rows([EAGER | BUSY_EAGER, DEFAULT | BUSY])).count("all 2 results") == 1
    assert marks.note(label_rows([EAGER, DEFAULT])) == ""
    assert marks.disturbances(["clocks", "busy 5 %", "busy 12.5 %", "busy 7 %"]) == [
        "busy 5–12.5 %",
        "clocks",
    ]


def test_markdown_csv_and_json_have_the_marks():
    wide = timed("default", 0.7, 0.3, 1.6, **BUSY)
    table = speedup_table(label_rows([EAGER, wide, GRAPH]))
    assert "| ~1.43× (0.62–3.33, ~0.700 ms) |" in table.render("markdown")
    lines = list(csv.DictReader(io.StringIO(table.render("csv"))))
    marked = {
        line["mode"]: (line["marked"], line["disturbance"])
        for line in lines
        if line["metric"] == "speedup"
    }
    assert marked == {
        "eager": ("false", ""),
        "default": ("true", BUSY["disturbance"]),
        "cuda-graph": ("false", ""),
    }
    cells = json.loads(table.render("json"))["rows"][0]["cells"]
    assert (cells["default"]["marked"], cells["default"]["value"]) == (True, pytest.approx(1 / 0.7))
    report = markdown.report([device_sweep([EAGER, wide, GRAPH])])
    assert report.count("measured on a disturbed machine") == 1
    data = json.loads(bottleneck_table(label_rows([EAGER, wide])).render("json"))
    assert [row["marked"] for row in data] == [False, True]


def test_every_page_shows_a_mark_and_explains_it_once(tmp_path):
    one = device_sweep([EAGER, timed("default", 0.7, 0.3, 1.6, **BUSY), GRAPH])
    folder = site(tmp_path, one)
    for page in ("speedups", "charts", "cell"):
        html = page_of(folder, one, page).read_text(encoding="utf-8")
        assert html.count("measured on a disturbed machine") == 1, page
    html = (folder / "index.html").read_text(encoding="utf-8")
    assert html.count("measured on a disturbed machine") == 1
    assert ">~1.43×<" in html and "marked: host busy for 83 % of the timing" in html
    grid = content(folder / one.slug / "data" / "speedups-latency_ms.js")
    shown = [cell for row in grid["rows"] for cell in row if isinstance(cell, dict) and "t" in cell]
    assert [cell["d"] for cell in shown if cell["t"].startswith("~")] == [
        f"5 trials, marked: {BUSY['disturbance']}"
    ]
    clean = device_sweep([EAGER, DEFAULT])
    assert "disturbed machine" not in (site(tmp_path / "clean", clean) / "index.html").read_text(
        encoding="utf-8"
    )


def test_points_of_marked_results_are_open_and_keep_their_interval():
    rows = label_rows(
        [EAGER, timed("default", 0.7, 0.3, 1.6, **BUSY), timed("default", 0.9, 0.8, 1.0, bs=8)]
    )
    drawing = scaling.LATENCY.draw(scaling.LATENCY.data(points_of(rows, "eager")))
    (trace,) = [trace for trace in drawing.data if trace["meta"]["mode"] == "default"]
    assert trace["marker"]["symbol"] == ["square-open", "square"]
    assert trace["error_y"]["array"][0] == pytest.approx(0.9)
    assert "~0.700 ms" in trace["hovertext"][0] and "marked: host busy" in trace["hovertext"][0]
    assert "~" not in trace["hovertext"][1]


def test_what_a_degraded_mode_measured_is_shown():
    rows = label_rows(
        [EAGER, DEFAULT | {"status": "degraded", "reason": "one graph break", "speedup": None}]
    )
    assert speedup_table(rows, "latency_ms").rows[0].cells["default"].text == "0.700 ms (degraded)"
    assert speedup_table(rows).rows[0].cells["default"].text == "degraded", "it has no speedup"
    assert time_cells(rows[1])["latency_ms"].text == "0.700 ms"
