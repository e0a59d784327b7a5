import datetime as dt
import shutil
from pathlib import Path

import pytest

from effbench.comparison.limits import COMPARED, SHIPPED, CellFacts, Limit, limits_of, read
from effbench.errors import ConfigError

CELL = CellFacts("llama-7b", 8, "default", "bfloat16", "inference", "cuda", "NVIDIA H200")
TODAY = dt.date(2026, 11, 21)


def exceptions(*rules):
    return limits_of({"exceptions": list(rules)}, today=TODAY)


def limit(floor=0.02, least=0.0, factor=1.25, ignore=False, reason=None):
    return Limit(floor, least, factor, ignore, reason)


def test_floors():
    limits = limits_of({})
    assert limits.metrics == list(COMPARED) and "speedup" not in COMPARED
    assert limits.of(CELL, "latency_ms") == limit()
    for value in ("3%", "0.03", 0.03, "3e-2", "3 %"):
        assert limits_of({"floor": value}).floor == pytest.approx(0.03)
    # a metric of its own limit keeps the common floor if it names none
    limits = limits_of(
        {
            "floor": 0.03,
            "limits": {"peak_allocated_bytes": {"least": 1e6}, "period_ms": {"floor": 0.1}},
        }
    )
    assert limits.of(CELL, "peak_allocated_bytes") == limit(0.03, 1e6)
    assert limits.of(CELL, "period_ms") == limit(0.1)
    assert limits.of(CELL, "latency_ms") == limit(0.03)


def test_an_exception_holds_where_all_of_its_patterns_fit():
    for pattern, fits in (
        ({"model": "llama-*"}, True),
        ({"model": "gpt*"}, False),
        ({"model": "LLAMA-*"}, False),
        ({"bs": 8}, True),
        ({"bs": 80}, False),
        ({"mode": "default", "metric": "latency_ms"}, True),
        ({"mode": "default", "metric": "period_ms"}, False),
        ({"hardware": "*H200"}, True),
        ({"phase": "training"}, False),
        ({}, True),
    ):
        limits = exceptions({**pattern, "floor": 0.5, "reason": "noise"})
        assert limits.of(CELL, "latency_ms").floor == (0.5 if fits else 0.02), pattern
        assert limits.exceptions[0].used is (fits or "metric" in pattern), (
            "of a cell, whatever metric is looked at"
        )


def test_the_last_exception_that_fits_counts_and_it_alone():
    limits = exceptions(
        {"model": "llama-*", "ignore": True, "reason": "first"},
        {"mode": "default", "floor": 0.1, "reason": "second"},
        {"mode": "eager", "floor": 0.3, "reason": "fits not"},
    )
    assert limits.of(CELL, "latency_ms") == limit(0.1, reason="second")
    assert limits.of(CELL, "kernels") == limit(), "no key of the last one counts for it"
    assert [rule.used for rule in limits.exceptions] == [True, True, False]
    # an exception holds through its last day
    for until, floor in (("2026-11-21", 0.1), ("2026-11-20", 0.02)):
        limits = exceptions({"floor": 0.1, "reason": "new driver", "until": until})
        assert (limits.of(CELL, "period_ms").floor, len(limits.expired)) == (floor, floor == 0.02)


def test_a_floor_for_all_goes_before_those_of_metrics_and_exceptions():
    rules = [
        {"mode": "default", "metric": "latency_ms", "floor": 0.1, "reason": "noise"},
        {"metric": "kernels", "ignore": True, "reason": "moving"},
        {"metric": "compile_c*", "factor": 2.0, "floor": 0.5, "reason": "slow disk"},
    ]
    limits = limits_of(
        {"limits": {"period_ms": {"floor": 0.05, "least": 0.1}}, "exceptions": rules}, today=TODAY
    )
    limits.floor_for_all = 0.3
    assert limits.of(CELL, "period_ms") == limit(0.3, 0.1)
    assert limits.of(CELL, "latency_ms").floor == 0.3
    assert limits.of(CELL, "kernels").ignore
    assert limits.of(CELL, "compile_cold_s") == limit(0.3, factor=2.0, reason="slow disk")


def test_what_makes_no_sense_is_refused_by_name():
    why = {"reason": "why"}
    for settings, said in (
        ({"flor": 0.1}, "unknown setting flor; choose from metrics, floor"),
        *(
            ({"floor": value}, "floor=.*expected a number of at least 0 and below 1")
            for value in (-0.1, True, float("nan"), 3, "x%", None, [1])
        ),
        *(({"q": value}, "q=.*expected a number") for value in (0, 5, None)),
        ({"on_missing": "skip"}, "on_missing: .*fail, ignore"),
        *(
            ({"metrics": [name]}, "cannot be compared; choose from latency_ms")
            for name in ("latency", ["latency_ms"], "throughput_per_s", "speedup")
        ),
        (
            {"limits": {"latency_ms": 0.1}},
            r"^limits.latency_ms: expected a mapping \(key: value\), got 0.1$",
        ),
        ({"limits": ["latency_ms"]}, r"^limits: expected a mapping .*, got \['latency_ms'\]$"),
        ({"metrics": "latency_ms"}, "^metrics: expected a list, got 'latency_ms'$"),
        ({"exceptions": None}, "^exceptions: expected a list, got nothing$"),
        ({"exceptions": ["gpt2"]}, r"^exceptions\[0\]: expected a mapping"),
        (
            {"limits": {"latency_ms": {"flor": 0.1}}},
            "unknown setting limits.latency_ms.flor; choose from floor",
        ),
        ({"limits": {"latency_ms": {"floor": 2}}}, "limits.latency_ms.floor=2"),
        ({"limits": {"compile_cold_s": {"factor": 0.5}}}, "at least 1"),
        ({"limits": {"kernels": {"floor": 0.5}}}, "limits.kernels.floor does nothing"),
        (
            {"exceptions": [{"metric": "kernels", "factor": 2, **why}]},
            r"exceptions\[0\].factor does nothing",
        ),
        ({"exceptions": [{"metric": "status", "floor": 0.1, **why}]}, "status only takes ignore"),
        (
            {"exceptions": [{"model": "a", "floor": 0.1, "reason": " "}]},
            r"exceptions\[0\] needs a reason",
        ),
        ({"exceptions": [{"model": "a", **why}]}, "changes nothing"),
        ({"exceptions": [{"modle": "a", "floor": 0.1, **why}]}, "unknown setting modle"),
        *(
            ({"exceptions": [{"floor": 0.1, **why, "until": until}]}, "expected a date")
            for until in ("soon", 2027)
        ),
        (
            {"exceptions": [{"metric": "kernel", "ignore": True, **why}]},
            "matches none of latency_ms",
        ),
        # a file cannot read the environment
        ({"floor": "${oc.env:HOME}"}, "is not allowed"),
        ({"exceptions": [{"model": "${oc.env:HOME}", "floor": 0.1, **why}]}, "is not allowed"),
    ):
        with pytest.raises(ConfigError, match=said):
            limits_of(settings)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def written(text, name="conf/check/ours.yaml"):
    path = Path(name).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def test_a_file_of_the_users_is_laid_over_what_ships():
    assert set(read().metrics) == set(COMPARED)
    path = written(
        """
        floor: 0.05
        limits: {latency_ms: {floor: 10%}}
        exceptions:
          - model: "m*"
            metric: kernels
            ignore: true
            until: 2999-03-31
            reason: moving to new kernels
    """
    )
    shutil.copy(path, "ours.yml")
    for name in (path, "ours", "conf/check/ours.yaml", "ours.yml"):
        limits = read(name)
        assert limits.of(CELL, "period_ms").floor == 0.05
        assert limits.of(CELL, "latency_ms").floor == pytest.approx(0.1)
        assert limits.of(CELL, "graph_pool_bytes").least == 2 * 2**20  # of the defaults
        assert limits.of(CELL, "latency_p95_ms").floor == 0.05
        assert limits.exceptions[0].until == dt.date(2999, 3, 31)


def test_the_users_own_default_is_found_by_itself(tmp_path, monkeypatch):
    assert read().source == read("default").source == "effbench's defaults"
    monkeypatch.chdir(SHIPPED.parents[1])
    assert read().source == "effbench's defaults", "in a checkout, too"
    monkeypatch.chdir(tmp_path)
    written("floor: 0.07\nlimits: {latency_ms: {floor: 0.2}}", "conf/check/default.yaml")
    found = [(limits.floor, limits.source) for limits in (read(), read("default"))]
    assert found == [(0.07, "conf/check/default.yaml over effbench's defaults")] * 2
    written("q: 0.01")
    limits = read("ours", ["on_missing=ignore"])
    assert (limits.floor, limits.q) == (0.02, 0.01)  # another name takes the place of the default
    assert limits.source == "conf/check/ours.yaml over effbench's defaults, on_missing=ignore"
    written("lr: 0.1", "conf/check/default.yaml")
    with pytest.raises(ConfigError, match=r"^unknown setting lr; .*\(in conf/check/default.yaml"):
        read()


def test_settings_go_on_top():
    path = written("floor: 0.05\nlimits: {latency_ms: {floor: 0.1}}")
    limits = read(
        path,
        ["floor=1e-05", "limits.latency_ms.least=0.5", "on_missing=ignore", "metrics=[latency_ms]"],
    )
    assert limits.floor == 1e-05
    assert limits.of(CELL, "latency_ms") == limit(0.1, 0.5)
    assert (limits.on_missing, limits.metrics) == ("ignore", ["latency_ms"])
    assert read(None, ["metrics=[kernels,kernels]"]).metrics == ["kernels"]
    assert read(None, ["metrics=[]"]).metrics == [*COMPARED]
    rule = "exceptions=[{mode: default, floor: 0.4, reason: noise}]"
    assert read(None, [rule]).of(CELL, "latency_ms").floor == 0.4
    for word in (
        "floor",
        "=3",
        "floor=[",
        "floor=",
        "floor.x=3",
        "a..b=1",
        "limits=3",
        "floor=nan",
        "floor=" + "[" * 9999,
    ):
        with pytest.raises(ConfigError):
            read(None, [word])


def test_files_that_cannot_be_used():
    Path("x.yaml").write_bytes(b"floor: \xff\xfe")
    for name, said in (
        (written("- a\n- b", "a.yaml"), r"expected a mapping \(key: value\), got \['a', 'b'\]"),
        (written("a: &a [*a]", "c.yaml"), "is not valid YAML"),
        ("x.yaml", "is not valid YAML"),
        ("nothing/there.yaml", "cannot read nothing/there.yaml: No such file"),
        ("defualt", "choose from default"),
        ("conf/check", "cannot read conf/check"),
    ):
        with pytest.raises(ConfigError, match=said):
            read(name)
