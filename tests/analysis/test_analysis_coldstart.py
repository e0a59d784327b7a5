"""What the first answer of a fresh process costs, and from which request on a mode pays."""

import pytest
from made_coldstarts import STARTS, a_start, started
from made_sweeps import a_cell

from effbench.analysis.coldstart import NOT_FASTER, NOT_SIGNIFICANT, cold_starts_of, fastest
from effbench.core.labels import label_rows
from effbench.store import Store


@pytest.fixture
def starts_of(made):
    """Returns what `cold_starts_of` finds in a sweep of these cells."""

    def find(cells, **facts):
        sweep_id = made.sweep(cells, **facts)
        with Store.open(made.path) as store:
            return cold_starts_of(label_rows(store.results(sweep_id)))

    return find


def names(starts):
    return [(start.row.mode_label, start.cache) for start in starts]


def test_starts_are_in_the_order_of_modes_and_know_those_without_a_cache(starts_of):
    starts = starts_of(STARTS)
    assert names(starts) == [
        ("eager", "none"),
        ("default", "none"),
        ("default", "folder"),
        ("default", "bundle"),
    ]
    assert {start.reference.mode for start in starts} == {"eager"}
    assert [start.uncached.cold_s for start in starts] == pytest.approx([2.4, 22.4, 22.4, 22.4])
    assert starts[0].is_reference and starts[0].requests is None and starts[0].never == ""


@pytest.mark.parametrize(
    ("cold_s", "latency_ms", "requests"),
    [
        (22.4, 3.5, 40_000),  # 20 s for 0.5 ms a call
        (3.4, 2.0, 500),
        (2.4, 2.0, 1),
        (1.4, 2.0, 1),
    ],
)
def test_a_mode_pays_once_its_calls_have_saved_the_longer_start(
    starts_of, cold_s, latency_ms, requests
):
    cells = {
        a_start(): started(2.4, 4.0, spread=0.0),
        a_start("default"): started(cold_s, latency_ms, spread=0.0),
    }
    _, start = starts_of(cells)
    assert start.requests == pytest.approx(requests, abs=1)
    assert start.uptime_s == pytest.approx(cold_s + start.requests * latency_ms / 1000)
    assert start.never == ""


@pytest.mark.parametrize(
    ("latency_ms", "spread", "never"),
    [(4.0, 0.0, NOT_FASTER), (5.0, 0.001, NOT_FASTER), (3.9, 0.05, NOT_SIGNIFICANT)],
)
def test_a_mode_never_pays_whose_calls_are_not_faster(starts_of, latency_ms, spread, never):
    cells = {
        a_start(): started(2.4, 4.0, spread=spread),
        a_start("default"): started(22.4, latency_ms, spread=spread),
    }
    _, start = starts_of(cells)
    assert (start.never, start.requests, start.uptime_s) == (never, None, None)


def test_a_single_round_pays_by_its_figures(starts_of):
    cells = {
        a_start(): {"cold_s": 2.0, "latency_ms": 4.0},
        a_start("default"): {"cold_s": 3.0, "latency_ms": 3.0},
    }
    _, start = starts_of(cells, rounds=1)
    assert start.requests == pytest.approx(1000, abs=1)


def test_without_the_reference_mode_nothing_pays(starts_of):
    (start,) = starts_of({a_start("default"): started(22.4, 3.0)})
    assert (start.reference, start.requests, start.never) == (None, None, "")


def test_cases_have_references_of_their_own(starts_of):
    cells = {}
    for bs in (1, 8):
        cells[a_start(bs=bs)] = started(2.0 + bs, 4.0)
        cells[a_start("default", bs=bs)] = started(30.0, 3.0)
    starts = starts_of(cells)
    assert [start.reference.bs for start in starts] == [1, 1, 8, 8]


@pytest.mark.parametrize(
    "other",
    [a_cell(), a_start(change="bs", cache="bundle"), a_start("default", "folder")],
    ids=["another phase", "after a change", "failed"],
)
def test_other_results_are_no_cold_starts(starts_of, other):
    figures = {} if other.phase == "inference" else {"status": "error", "reason": "why"}
    if other.coldstart and other.coldstart["change"] != "none":
        figures = started(3.0, 4.0)
    assert names(starts_of({a_start(): started(2.4, 4.0), other: figures})) == [("eager", "none")]


def test_the_fastest_is_the_soonest_answer_of_the_mode_with_the_fastest_calls(starts_of):
    graph = {
        a_start("reduce-overhead"): started(25.0, 1.0),
        a_start("reduce-overhead", "bundle"): started(9.0, 1.0),
    }
    chosen = fastest(starts_of(STARTS | graph))
    assert (chosen.row.mode_label, chosen.cache) == ("reduce-overhead", "bundle")
    assert fastest(starts_of({a_start(): started(2.4, 4.0)})).is_reference
