"""Marks: figures of a disturbed machine are shown with `~`, win nothing, and are explained once per
output."""

import pytest
import synthetic as make
from browsing import content, device_sweep, page_of, site
from synthetic import label_rows

from effbench.render import marks
from effbench.render.bottlenecks import shown_time
from effbench.render.summary import by_mode, headline
from effbench.render.tables import speedup_table

WHY = "host busy for 83 % of the timing"
BUSY = {"marked": True, "disturbance": WHY, "speedup_disturbance": WHY}
#: The speedup of the baseline is 1 by definition.
BUSY_BASELINE = {"marked": True, "disturbance": WHY}
OVER_BUSY = {"speedup_disturbance": f"the baseline's times: {WHY}"}


def timed(mode, latency_ms, low, high, **more):
    """A row with this latency; eager takes 1 ms."""
    times = {"latency_ms": latency_ms, "latency_ci_low_ms": low, "latency_ci_high_ms": high}
    ratio = {"speedup": 1 / latency_ms, "speedup_ci_low": 1 / high, "speedup_ci_high": 1 / low}
    return make.row(
        mode=mode,
        **{
            **times,
            **ratio,
            "marked": False,
            **more,
        },
    )


def eager(**more):
    return timed(
        "eager",
        1.0,
        0.99,
        1.01,
        speedup_ci_low=1.0,
        speedup_ci_high=1.0,
        **more,
    )


def graph(**more):
    return timed("cuda-graph", 0.4, 0.39, 0.41, **more)


EAGER, GRAPH = eager(), graph()
DEFAULT = timed("default", 0.7, 0.69, 0.71)
WIDE = timed("default", 0.7, 0.3, 1.6, **BUSY)


def row_of(*rows, metric="speedup"):
    (row, *_) = speedup_table(label_rows(rows), metric).rows
    return row


# --- tables ---


def test_a_marked_speedup_is_shown_with_its_interval_and_is_never_called_significant():
    figure = row_of(EAGER, WIDE, GRAPH).cells["default"]
    assert figure.text == "~1.43×"
    assert figure.interval == "0.62–3.33"
    assert figure.shown().tone == "unsure"
    assert figure.estimate.disturbance == WHY
    assert figure.significant is None


@pytest.mark.parametrize(
    ("metric", "text"), [("latency_ms", "~0.700 ms"), ("peak_reserved_bytes", "42.5 MiB")]
)
def test_a_busy_host_changes_times_and_not_memory(metric, text):
    assert row_of(EAGER, WIDE, metric=metric).cells["default"].text == text


@pytest.mark.parametrize(
    ("marked", "best", "stars"),
    [
        # all of its interval is worse
        (timed("default", 0.7, 0.5, 0.9, **BUSY), ["cuda-graph"], ["cuda-graph"]),
        # it may be better
        (timed("default", 0.7, 0.40, 0.9, **BUSY), ["cuda-graph", "default"], []),
        # it seems to be better
        (timed("default", 0.2, 0.19, 0.21, **BUSY), ["cuda-graph", "default"], []),
    ],
)
def test_a_marked_mode_leaves_the_star_to_another_only_if_it_cannot_be_better(marked, best, stars):
    row = row_of(EAGER, marked, GRAPH)
    assert row.winners == best
    assert [mode for mode, figure in row.cells.items() if figure.wins] == stars


def test_no_mode_wins_among_marked_ones():
    rows = label_rows([eager(**BUSY), graph(**BUSY)])
    table = speedup_table(rows)
    assert table.rows[0].winners == []
    assert headline(table, by_mode(rows)).startswith("No mode wins: ")


def test_the_baseline_of_marked_pairs_does_not_win():
    slower = timed(
        "default",
        2.0,
        1.9,
        2.1,
        speedup_from="pairs",
        **BUSY,
    )
    rows = label_rows([eager(**BUSY_BASELINE), slower])
    assert speedup_table(rows).rows[0].winners == []


def test_a_speedup_over_a_marked_baseline_is_marked():
    row = row_of(eager(**BUSY_BASELINE), graph(**OVER_BUSY))
    assert [figure.text for figure in row.cells.values()] == ["~1.00 ms", "~2.50×"]
    assert row.winners == [], "a ratio to a marked time names no winner"


def test_means_of_marked_speedups_are_marked_and_no_narrower_than_these():
    wide = timed("cuda-graph", 0.4, 0.2, 0.8, bs=8, **BUSY)
    rows = label_rows([EAGER, GRAPH, eager(bs=8), wide])
    base, score = [mode.speedups["speedup"] for mode in by_mode(rows)]
    assert base.text == "1.00×"
    assert score.text == "~2.50×"
    assert score.low < 2.5 / 2**0.5 and score.high > 2.5 * 2**0.5, "half of its interval, and more"


@pytest.mark.parametrize(("marks_of", "sign"), [({}, ""), (BUSY, "~")])
@pytest.mark.parametrize("metric", ["speedup", "latency_ms"])
def test_what_a_degraded_mode_measured_is_shown_with_its_mark(marks_of, sign, metric):
    degraded = timed(
        "default",
        0.7,
        0.6,
        0.8,
        status="degraded",
        reason="break",
        **marks_of,
    )
    rows = label_rows([EAGER, {**degraded, "speedup": None}])
    table = speedup_table(rows, metric)
    assert table.rows[0].cells["default"].text == f"{sign}0.700 ms (degraded)"
    assert table.is_marked is bool(sign), "a note below the table explains the mark"
    assert shown_time(rows[1], "latency_ms").text == f"{sign}0.700 ms"


# --- the note ---


def busy(mode, bs, why=WHY):
    return timed(mode, 0.7, 0.6, 0.8, bs=bs, **{**BUSY, "disturbance": why})


FOREIGN = "another process works on this GPU (process 7)"


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (
            [EAGER, WIDE, graph(**BUSY)],
            "(2 of 3 results): mlp bs=1 default bfloat16, mlp bs=1 cuda-graph bfloat16: host busy",
        ),
        ([busy("eager", 1), busy("default", 1)], f"(2 of 2 results): {WHY}. "),
        (
            [*(busy("eager", bs) for bs in (1, 2, 4)), GRAPH],
            f"(3 of 4 results): all of eager: {WHY}. ",
        ),
        (
            [*(busy(mode, bs) for mode in ("eager", "default") for bs in (1, 2)), GRAPH],
            f"(4 of 5 results): all of eager, default: {WHY}. ",
        ),
        (
            [*(busy("eager", 2**power) for power in range(12)), eager(bs=3)],
            f"mlp bs=4 eager bfloat16 and 9 more: {WHY}. ",
        ),
        (
            [busy("eager", 1), busy("eager", 2), busy("default", 1), DEFAULT | {"bs": 2}],
            "(3 of 4 results): all of eager, and mlp bs=1 default bfloat16: host busy",
        ),
        (
            [busy("eager", 1), busy("eager", 2, "host busy for 9.5 % of the timing")],
            f"(2 of 2 results): for example, {WHY}. ",
        ),
        (
            [busy("default", 1, FOREIGN), busy("eager", 1), busy("eager", 2)],
            f"(3 of 3 results): all of eager: {WHY}; mlp bs=1 default bfloat16: {FOREIGN}. ",
        ),
    ],
)
def test_the_note_groups_the_cells_by_reason(rows, text):
    assert text in marks.explain_marks(label_rows(rows))


def test_the_note_is_one_line_and_tells_what_to_do():
    text = marks.explain_marks(label_rows([EAGER, WIDE]))
    assert "Free the GPU and its host" in text
    assert "\n" not in text
    assert "threads=1" not in text, "that is for a CPU"


# --- other outputs ---


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    one = device_sweep([EAGER, WIDE, GRAPH])
    return site(tmp_path_factory.mktemp("marks"), one), one


@pytest.mark.parametrize("page", ["index", "speedups", "charts", "cell"])
def test_every_page_explains_marks_once(made, page):
    folder, one = made
    path = folder / "index.html" if page == "index" else page_of(folder, one, page)
    assert path.read_text(encoding="utf-8").count("measured on a disturbed machine") == 1


def test_pages_show_marked_figures_with_the_reason(made):
    folder, one = made
    html = (folder / "index.html").read_text(encoding="utf-8")
    assert ">~1.43×<" in html
    assert f"marked: {WHY}" in html
    grid = content(folder / one.slug / "data" / "speedups-latency_ms.js")
    cells = [cell for row in grid["rows"] for cell in row if isinstance(cell, dict)]
    (hint,) = [cell["hint"] for cell in cells if cell.get("text", "").startswith("~")]
    assert hint.endswith(f"5 trials, marked: {WHY}")
    points = content(folder / one.slug / "data" / "charts-0.js")
    assert {point["mode"]: point["mark"] for point in points}["default"] == WHY
