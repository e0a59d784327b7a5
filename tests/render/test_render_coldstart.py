"""How sentences, tables and pages show cold starts."""

import pytest
from browsing import Visit, assert_accessible, content
from made_coldstarts import STARTS, a_start, started
from made_sweeps import a_cell

from effbench.analysis.coldstart import cold_starts_of
from effbench.core.cell import COLDSTART
from effbench.core.labels import label_rows
from effbench.render.coldstart import portability_table, sentences, tables
from effbench.store import Store
from effbench.store.values import ResultKey


@pytest.fixture
def rows_of(made):
    """Returns the labelled results of a sweep of these cells."""

    def read(cells, **facts):
        sweep_id = made.sweep(cells, **facts)
        with Store.open(made.path) as store:
            return label_rows(store.results(sweep_id))

    return read


SLOW = {a_start(): started(2.4, 4.0), a_start("default"): started(22.4, 5.0)}


@pytest.mark.parametrize(
    ("cells", "sentence"),
    [
        (
            STARTS,
            "With a bundle (2.00 MiB) default answers after 6.40 s instead of 22.4 s; eager after"
            " 2.40 s; it pays from 4,000 requests (20 s of uptime) on.",
        ),
        (
            SLOW,
            "default answers after 22.4 s; eager after 2.40 s; it never pays: its calls are not"
            " faster.",
        ),
        ({a_start(): started(2.4, 4.0)}, "eager answers after 2.40 s."),
        ({a_start("default"): started(22.4, 5.0)}, "default answers after 22.4 s."),
        (
            {cell: {**figures, "disturbance": "host busy"} for cell, figures in STARTS.items()},
            "With a bundle (2.00 MiB) default answers after ~6.40 s instead of ~22.4 s; eager after"
            " ~2.40 s; it pays from ~4,000 requests (~20 s of uptime) on.",
        ),
        (
            {cell: {**figures, "disturbance": "host busy"} for cell, figures in SLOW.items()},
            "default answers after ~22.4 s; eager after ~2.40 s; it ~never pays: its calls are not"
            " faster.",
        ),
    ],
)
def test_the_sentence(rows_of, cells, sentence):
    assert sentences(cold_starts_of(rows_of(cells))) == [sentence]


@pytest.mark.parametrize("marked", [a_start(), a_start("default", "bundle")])
def test_a_disturbed_side_marks_the_comparison(rows_of, marked):
    cells = STARTS | {marked: {**STARTS[marked], "disturbance": "host busy"}}
    (sentence,) = sentences(cold_starts_of(rows_of(cells)))
    assert "it pays from ~4,000 requests" in sentence


@pytest.mark.parametrize(
    ("load_s", "env", "device", "advice"),
    [
        (37.0, {}, "cuda", "up to 37.0 s,TORCHINDUCTOR_VEC_ISA_OK=0 avoids"),
        (4.8, {}, "cpu", "up to 4.8 s,TORCHINDUCTOR_VEC_ISA_OK=1 avoids"),
        (1.8, {}, "cuda", ""),
        (4.8, {"TORCHINDUCTOR_VEC_ISA_OK": "1"}, "cpu", ""),
    ],
)
def test_a_package_that_loads_slowly_has_a_remedy(rows_of, load_s, env, device, advice):
    package = a_start("aot-inductor", "package", env=env, device=device)
    cells = {a_start(device=device): started(2.4, 4.0)}
    cells[package] = started(2.4 + load_s, 3.0, cold_load_s=load_s)
    lines = sentences(cold_starts_of(rows_of(cells)))
    assert len(lines) == (2 if advice else 1)
    assert all(words in lines[-1] for words in advice.split(","))


def test_each_case_has_a_sentence_with_its_name(rows_of):
    cells = {a_start(bs=bs): started(2.4, 4.0) for bs in (1, 8)}
    assert sentences(cold_starts_of(rows_of(cells))) == [
        "mlp · phase=coldstart · bs=1: eager answers after 2.40 s.",
        "mlp · phase=coldstart · bs=8: eager answers after 2.40 s.",
    ]


def test_the_tables_have_a_row_for_each_mode_and_cache(rows_of):
    costs, parts = tables(cold_starts_of(rows_of(STARTS | SLOW)))
    assert [row["mode"] for row in costs.rows] == ["eager", "default", "default", "default"]
    assert costs.rows[0]["requests"].text == "" and costs.rows[1]["requests"].text == "never"
    assert costs.rows[1]["requests"].hint == "its calls are not faster"
    titles = [column.heading for column in parts.used]
    assert titles == [
        "model", "bs", "mode", "cache",
        "interpreter", "imports", "device", "build", "compile", "first call",
    ]  # fmt: skip
    assert parts.rows[1]["cold_compile_s"].text == "20.00"
    assert parts.rows[0]["cold_compile_s"].text == "", "eager compiles nothing"


def test_the_parts_of_a_disturbed_start_are_marked(rows_of):
    cells = STARTS | {a_start(): started(2.4, 4.0, disturbance="host busy")}
    _, parts = tables(cold_starts_of(rows_of(cells)))
    assert [row["cold_imports_s"].text for row in parts.rows] == ["~1.50", "1.50", "1.50", "1.50"]


CHANGED = {
    a_start("default", "folder"): started(7.4, 3.0, cache_reuse="whole"),
    a_start("default", "bundle"): started(6.4, 3.0, cache_reuse="whole"),
    a_start("default", "folder", "bs"): started(20.0, 3.0, cache_reuse="none"),
    a_start("default", "bundle", "bs"): started(13.0, 3.0, cache_reuse="part"),
    a_start("default", "folder", "gpu"): {"status": "unsupported", "reason": "needs 2 GPUs"},
}


def test_changes_are_rows_and_caches_columns(rows_of):
    rows = rows_of(CHANGED)
    misses = {"missed": ["input 0: shape", "code", "flags", "version"]}
    facts = {
        ResultKey(row.cell_key, row.environment_id): {COLDSTART: misses}
        for row in rows
        if row.cache_reuse in ("part", "none")
    }
    table = portability_table(rows, facts)
    lines = [[shown.line for shown in cells] for cells in table.cells]
    missed = "missed: input 0: shape, code, flags and 1 more"
    assert lines == [
        ["default", "nothing", "whole, 7.40 s", "whole, 6.40 s"],
        ["default", "the batch size", f"none, 20.0 s ({missed})", f"part, 13.0 s ({missed})"],
        ["default", "the GPU", "unsupported (needs 2 GPUs)", ""],
    ]
    assert table.records()[1]["bundle"] == "part"


# --- the page of charts ---


def test_a_drawing_has_a_bar_for_each_start(site):
    folder = site(STARTS)
    starts = content(folder / "data" / "charts-coldstart-0.js")
    assert [start["name"] for start in starts] == [
        "eager, none",
        "default, none",
        "default, folder",
        "default, bundle",
    ]
    assert starts[1]["parts"]["cold_compile_s"] == pytest.approx(20.0)
    figure = content(folder / "data" / "charts-coldstart-index.js")["figures"]["coldstart"]
    titles = [part["title"] for part in figure["parts"]]
    assert titles == ["interpreter", "imports", "device", "build", "compile", "first call"]


def test_the_overview_begins_with_the_sentence(site):
    overview = (site(STARTS).parent / "index.html").read_text()
    assert '<p class="lead">With a bundle (2.00 MiB) default answers after 6.40 s' in overview


def test_a_sweep_of_another_phase_has_no_such_section(site):
    folder = site({a_cell(): {}})
    assert not [*(folder / "data").glob("charts-coldstart*")]
    assert 'id="coldstart"' not in (folder / "charts.html").read_text()


BARS = """() =>
  document.querySelector("#coldstart .chart").data.map((trace) => [trace.name, trace.x])"""


@pytest.mark.slow
def test_the_bars_are_drawn(chromium, site):
    with Visit(chromium, site(STARTS) / "charts.html") as visit:
        bars = dict(visit.page.evaluate(BARS))
        visit.assert_quiet()
        assert_accessible(visit)
    assert bars["imports"] == [1.5] * 4
    assert bars["compile"] == pytest.approx([0.0, 20.0, 5.0, 4.0])
