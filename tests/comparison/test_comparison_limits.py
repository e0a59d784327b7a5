import datetime as dt

import pytest

from effbench.comparison.limits import COMPARED, Limit, limits_of
from effbench.errors import ConfigError

CELL = {
    "model": "llama-7b", "bs": 8, "mode": "default", "dtype": "bfloat16", "phase": "inference", "device": "cuda",
    "hardware": "NVIDIA H200",
}  # fmt: skip
TODAY = dt.date(2026, 11, 21)


def exceptions(*rules):
    return limits_of({"exceptions": list(rules)}, TODAY)


def test_floors():
    limits = limits_of({})
    assert limits.metrics == COMPARED and "speedup" not in COMPARED
    assert limits.of(CELL, "latency_ms") == Limit(0.02)
    for value in ("3%", "0.03", 0.03, "3e-2", "3 %"):
        assert limits_of({"floor": value}).floor == pytest.approx(0.03)


def test_a_metric_of_its_own_limit_keeps_the_common_floor_where_it_names_none():
    limits = limits_of({"floor": 0.03, "limits": {"peak_allocated_bytes": {"least": 1e6}, "period_ms": {"floor": 0.1}}})
    assert limits.of(CELL, "peak_allocated_bytes") == Limit(0.03, 1e6)
    assert limits.of(CELL, "period_ms") == Limit(0.1)
    assert limits.of(CELL, "latency_ms") == Limit(0.03)


def test_an_exception_holds_where_all_of_its_patterns_fit():
    for pattern, fits in (
        ({"model": "llama-*"}, True), ({"model": "gpt*"}, False), ({"model": "LLAMA-*"}, False),
        ({"bs": 8}, True), ({"bs": 80}, False), ({"mode": "default", "metric": "latency_ms"}, True),
        ({"mode": "default", "metric": "period_ms"}, False), ({"hardware": "*H200"}, True),
        ({"phase": "training"}, False), ({}, True),
    ):  # fmt: skip
        limits = exceptions({**pattern, "floor": 0.5, "reason": "noise"})
        assert limits.of(CELL, "latency_ms").floor == (0.5 if fits else 0.02), pattern
        assert bool(limits.unused) is not (fits or "metric" in pattern), "of a cell, whatever metric is looked at"


def test_the_last_exception_that_fits_counts_and_it_alone():
    limits = exceptions(
        {"model": "llama-*", "ignore": True, "reason": "first"},
        {"mode": "default", "floor": 0.1, "reason": "second"},
        {"mode": "eager", "floor": 0.3, "reason": "fits not"},
    )
    assert limits.of(CELL, "latency_ms") == Limit(floor=0.1, reason="second")
    assert [rule.reason for rule in limits.unused] == ["fits not"]


def test_an_exception_holds_through_its_last_day():
    rule = {"floor": 0.1, "reason": "new driver"}
    assert exceptions({**rule, "until": "2026-11-21"}).of(CELL, "period_ms").floor == 0.1
    past = exceptions({**rule, "until": dt.date(2026, 11, 20)})
    assert past.of(CELL, "period_ms").floor == 0.02
    assert [rule.until for rule in past.expired] == [dt.date(2026, 11, 20)]
    assert past.unused == []


def test_what_makes_no_sense_is_refused_by_name():
    for settings, said in (
        ({"flor": 0.1}, "unknown setting flor; did you mean floor?"),
        ({"floor": -0.1}, "floor=-0.1 must be a number of at least 0"),
        ({"floor": True}, "must be a number"),
        ({"floor": float("nan")}, "must be a number"),
        ({"floor": 3}, "give a share below 100 %"),
        ({"floor": "x%"}, "floor=x% is no size"),
        ({"q": 0}, "between 0 and 1"),
        ({"q": 5}, "between 0 and 1"),
        ({"on_missing": "skip"}, "choose fail or ignore"),
        ({"metrics": "latency_ms"}, "metrics=latency_ms is no list"),
        ({"metrics": ["latency"]}, "did you mean latency_ms?"),
        ({"metrics": [["latency_ms"]]}, "unknown metric"),
        ({"metrics": ["throughput_per_s"]}, "follows from others"),
        ({"limits": 3}, "maps no metric to a limit"),
        ({"limits": {"latency_ms": 0.1}}, "maps floor, least, factor or ignore"),
        ({"limits": {"latency_ms": {"flor": 0.1}}}, "limits.latency_ms.flor; did you mean floor?"),
        ({"limits": {"latency_ms": {"floor": 2}}}, "is 200%"),
        ({"limits": {"latency_ms": {"ignore": "yes"}}}, "neither true nor false"),
        ({"limits": {"compile_cold_s": {"factor": 0.5}}}, "at least 1"),
        ({"limits": {"kernels": {"floor": 0.5}}}, "limits.kernels.floor does nothing"),
        ({"exceptions": [{"metric": "kernels", "factor": 2, "reason": "r"}]}, r"exceptions\[0\].factor does nothing"),
        ({"exceptions": {"floor": 1}}, "is no list"),
        ({"exceptions": ["gpt2"]}, "maps patterns and limits"),
        ({"exceptions": [{"model": "a", "floor": 0.1, "reason": " "}]}, r"exceptions\[0\] needs a reason"),
        ({"exceptions": [{"model": "a", "reason": "why"}]}, "changes nothing"),
        ({"exceptions": [{"modle": "a", "floor": 0.1, "reason": "why"}]}, "did you mean mode"),
        ({"exceptions": [{"floor": 0.1, "reason": "why", "until": "soon"}]}, "is no date such as"),
        ({"exceptions": [{"metric": "kernel", "ignore": True, "reason": "why"}]}, "fits no metric: did"),
    ):
        with pytest.raises(ConfigError, match=said):
            limits_of(settings)


def test_a_floor_for_all_goes_before_those_of_metrics_and_exceptions():
    rules = [
        {"mode": "default", "metric": "latency_ms", "floor": 0.1, "reason": "noise"},
        {"metric": "kernels", "ignore": True, "reason": "moving"},
        {"metric": "compile_c*", "factor": 2.0, "floor": 0.5, "reason": "slow disk"},
    ]
    limits = limits_of({"limits": {"period_ms": {"floor": 0.05, "least": 0.1}}, "exceptions": rules}, TODAY)
    limits.floor_for_all = 0.3
    assert limits.of(CELL, "gpu_busy_ms") == Limit(0.3)
    assert limits.of(CELL, "period_ms") == Limit(0.3, 0.1)
    assert limits.of(CELL, "latency_ms") == Limit(0.3)  # nothing of the exception is left: nor is its reason told
    assert limits.of(CELL, "kernels").ignore
    assert limits.of(CELL, "compile_cold_s") == Limit(0.3, factor=2.0, reason="slow disk")
    assert limits.unused == []
