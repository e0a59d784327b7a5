"""Figures of cells of phase=coldstart."""

import pytest
from made_sweeps import a_cell, steps

from effbench.store import Store

SETTINGS = {"change": "none", "processes": 1, "sizes": 1}


def cold_cell(mode="eager", cache="none", **settings):
    return a_cell(mode, phase="coldstart", coldstart=SETTINGS | settings, cache=cache)


def seconds(cold_s, latency_ms=1.0, **figures):
    return {"cold_s": steps(cold_s, 0.01), "latency_ms": steps(latency_ms, 0.01), **figures}


UNSUPPORTED = {"status": "unsupported", "reason": "eager compiles nothing"}


@pytest.fixture
def results_of(made):
    """Records a sweep of these cells, and returns the results in the order of the cells."""

    def record(cells):
        made.sweep(cells)
        with Store.open(made.path) as store:
            return store.results()

    return record


def test_a_cold_start_has_an_interval_over_its_trials(results_of):
    (result,) = results_of({cold_cell(): seconds(2.0, cold_imports_s=1.5)})
    assert result.cold_s == pytest.approx(2.0)
    assert result.cold_ci_low_s < 2.0 < result.cold_ci_high_s
    assert result.cold_imports_s == pytest.approx(1.5)


def test_a_part_that_takes_no_time_in_most_trials_takes_none(results_of):
    (result,) = results_of({cold_cell(): seconds(2.0, cold_load_s=[0.0, 0.0, 0.0, 0.1, 0.1])})
    assert result.cold_load_s == 0.0


@pytest.mark.parametrize(
    ("reuses", "expected"),
    [
        (["whole"] * 5, "whole"),
        (["whole", "part", "whole", "whole", "whole"], "part"),
        (["whole", "part", "none", "part", "whole"], "none"),
        ([None] * 5, None),
    ],
)
def test_the_least_reuse_of_all_trials_counts(results_of, reuses, expected):
    cell = cold_cell("default", "folder")
    (result,) = results_of({cell: seconds(2.0, cache_reuse=reuses)})
    assert result.cache_reuse == expected


@pytest.mark.parametrize("caches", [("folder", "none"), ("none", "folder")])
def test_eager_without_a_cache_is_the_baseline_of_all_caches(results_of, caches):
    cells = {}
    for cache in caches:
        cells[cold_cell("eager", cache)] = seconds(1.0, 4.0) if cache == "none" else UNSUPPORTED
        cells[cold_cell("default", cache)] = seconds(3.0, 2.0)
    by_cell = {(row.mode, row.params["cache"]): row for row in results_of(cells)}
    assert by_cell["eager", "none"].is_baseline
    assert not by_cell["eager", "folder"].is_baseline
    assert by_cell["default", "none"].speedup == pytest.approx(2.0)
    assert by_cell["default", "folder"].speedup == pytest.approx(2.0)


@pytest.mark.parametrize(("change", "throughput"), [("none", 4000.0), ("bs", None)])
def test_a_changed_batch_size_has_no_throughput(results_of, change, throughput):
    cell = cold_cell("default", "folder", change=change)
    (result,) = results_of({cell: {"cold_s": 2.0, "period_ms": 2.0}})
    assert result.throughput_per_s == (throughput and pytest.approx(throughput))


@pytest.mark.parametrize(("cold_s", "calls"), [(2.999, 1000), (1.0, 0), (0.5, 0)])
def test_the_longer_cold_start_pays_for_itself(results_of, cold_s, calls):
    baseline = {cold_cell(): {"cold_s": 1.0, "latency_ms": 4.0}}
    *_, result = results_of(
        baseline | {cold_cell("default"): {"cold_s": cold_s, "latency_ms": 2.0}}
    )
    assert result.break_even_calls == calls
