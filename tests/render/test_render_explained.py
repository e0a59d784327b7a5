"""Where the time of a cell goes, on the site: it adds up, and is what `explain` says."""

import math
from dataclasses import replace

import pytest
from browsing import EVIL, content, report_of, site
from made_sweeps import a_cell, environment, steps
from test_render_cells import record, trial

from effbench.analysis.explain import Explanation
from effbench.core.trace import Kernel, Trace
from effbench.render.site import explained
from effbench.render.site.pages import index
from effbench.store import Store

GEMM = Kernel("nvjet_sm90_tst_64x32_64x16_2x4_h_bz_TNT", "(8,1,1)", "aten::addmm", 0.1, 0.1, 0.0)
GELU = Kernel("triton_poi_fused_gelu_0", "(4,1,1)", "triton_poi_fused_gelu_0", 0.02, 0.02, 0.005)
SLOWER = replace(GEMM, added_ms=0.15)
OF_USER = Kernel(EVIL[0], "", EVIL[1], 0.03, 0.03, 0.005)
EAGER, DEFAULT, GRAPH = (a_cell(mode) for mode in ("eager", "default", "cuda-graph"))
#: Cell -> its kernels, and the time before the first one in ms.
CALLS = {
    EAGER: ([GEMM, GELU, GEMM, GELU, OF_USER], 0.3),
    DEFAULT: ([SLOWER, SLOWER], 0.2),
    GRAPH: ([GEMM, GELU, GEMM, GELU, OF_USER], 0.02),
}


def traced(cell, round=0, **more):
    """A trial with a trace; its latency differs between rounds, and tracing adds 0.01 ms."""
    kernels, before_ms = CALLS[cell]
    before_ms = steps(before_ms, 0.01)[round]
    apart = [kernels[0], *(replace(kernel, gap_ms=0.02) for kernel in kernels[1:])]
    latency_ms = before_ms + 0.01 + sum(kernel.gap_ms + kernel.added_ms for kernel in apart)
    host = {"Python": before_ms, EVIL[2]: 0.01}
    facts = (latency_ms + 0.01, before_ms, 0.01, 3 * len(apart), tuple(apart), host)
    trace = Trace("cuda", 10, *facts)
    return trial(cell, round, latency_ms=latency_ms, trace=trace.to_json(), **more)


def record_traced(path, rounds=3, **more):
    cells = {cell: [traced(cell, number, **more) for number in range(rounds)] for cell in CALLS}
    return record(path, cells)


def own_sweep(path):
    (device_sweep,) = report_of(path).device_sweeps
    return device_sweep


def entries_of(data):
    return {key: entries[0] for key, entries in content(data / "cell-0.js").items()}


@pytest.fixture
def made(tmp_path):
    """The database, the site's data of its cells, and what explains them: cell key -> choices."""
    path = tmp_path / "r.db"
    record_traced(path)
    device_sweep = own_sweep(path)
    data = site(tmp_path / "site", device_sweep) / device_sweep.slug / "data"
    return path, data, content(data / "cell-explained-0.js")


def test_the_terms_add_up_from_one_latency_to_the_other(made):
    _, _, cells = made
    assert set(cells) == {cell.key for cell in CALLS}
    for choices in cells.values():
        for choice in choices:
            total = math.fsum(term["ms"]["value"] for term in choice["terms"])
            start_ms = choice["a_ms"]["value"] if "a_ms" in choice else 0.0
            assert start_ms + total == pytest.approx(choice["b_ms"]["value"], abs=1e-9)
            for term in choice["terms"]:
                difference = term["second_ms"] - term["first_ms"]
                assert term["ms"]["value"] == pytest.approx(difference, abs=1e-9)


def test_the_reference_mode_comes_first_and_the_cell_alone_last(made):
    _, _, cells = made
    names = {key: [choice.get("a") for choice in choices] for key, choices in cells.items()}
    assert names == {
        EAGER.key: ["default", "cuda-graph", None],
        DEFAULT.key: ["eager", "cuda-graph", None],
        GRAPH.key: ["eager", "default", None],
    }


def test_it_is_what_explain_says(made):
    path, _, cells = made
    with Store.open(path, mode="read") as store:
        (sweep,) = store.sweeps()
        environment_id = environment().id
        sides = [store.traces(sweep.id, cell.key, environment_id) for cell in (EAGER, DEFAULT)]
    explanation = Explanation.of(*sides, ("eager", "default"))
    choice = cells[DEFAULT.key][0]
    assert choice["with"] == EAGER.key
    assert choice["sentence"] == explanation.sentence
    assert choice["b_ms"]["value"] - choice["a_ms"]["value"] == pytest.approx(
        explanation.latency.ms.value
    )
    assert [term["name"] for term in choice["terms"]] == [term.name for term in explanation.terms]
    assert len(choice["kernels"]) == choice["all_kernels"] == len(explanation.kernel_changes) > 0
    assert {work["name"] for work in choice["host"]} == {"Python", EVIL[2]}


def test_only_the_largest_differences_of_kernels_are_kept(made, monkeypatch, tmp_path):
    path, *_ = made
    monkeypatch.setattr(explained, "MOST_KERNELS", 1)
    device_sweep = own_sweep(path)
    data = site(tmp_path / "short", device_sweep) / device_sweep.slug / "data"
    choice = content(data / "cell-explained-0.js")[DEFAULT.key][0]
    assert len(choice["kernels"]) == 1 < choice["all_kernels"]


def test_marked_results_have_a_sign(tmp_path):
    path = tmp_path / "r.db"
    record_traced(path, disturbance="heat")
    device_sweep = own_sweep(path)
    assert all(row.marked for row in device_sweep.rows)
    data = site(tmp_path / "site", device_sweep) / device_sweep.slug / "data"
    (first, *_) = content(data / "cell-explained-0.js")[DEFAULT.key]
    assert first["sentence"].startswith("~default takes ")


def test_each_entry_names_its_file_or_says_why_there_is_none(tmp_path):
    path = tmp_path / "r.db"
    lost = trial(GRAPH, extra={"no_trace": "its calls differ"})
    plain = trial(DEFAULT)
    record(path, {EAGER: [traced(EAGER)], GRAPH: [lost], DEFAULT: [plain]})
    device_sweep = own_sweep(path)
    data = site(tmp_path / "site", device_sweep) / device_sweep.slug / "data"
    entries = entries_of(data)
    assert entries[EAGER.key]["explained"] == "data/cell-explained-0.js"
    assert entries[GRAPH.key]["explained"] is None
    assert entries[GRAPH.key]["not_traced"] == "its calls differ"
    assert entries[DEFAULT.key]["not_traced"].startswith("measured by an older version")
    (alone,) = content(data / "cell-explained-0.js")[EAGER.key]
    assert "with" not in alone, "the other cells of its row have no trace"


def test_without_traces_there_is_no_file(tmp_path):
    path = tmp_path / "r.db"
    record(path, {cell: [trial(cell)] for cell in CALLS})
    device_sweep = own_sweep(path)
    data = site(tmp_path / "site", device_sweep) / device_sweep.slug / "data"
    assert not list(data.glob("cell-explained*"))
    assert explained.best_reports(device_sweep, 60) == {}


def test_the_overview_names_the_cause_and_links_to_what_explains_it(made):
    path, *_ = made
    device_sweep = own_sweep(path)
    first, *others = index.heatmap(device_sweep).rows
    why = first["why"]
    assert why.text.startswith("the host takes less time before the first kernel (Python): -0.2")
    assert why.details == "cuda-graph against eager"
    assert why.hint.startswith("cuda-graph takes ")
    key = f"{device_sweep.slug}/cell.html#cell={GRAPH.key[:16]}"
    assert why.href == f"{key}&with={EAGER.key[:16]}"
    assert all(row["why"] == "" for row in others), "the period is not explained"
