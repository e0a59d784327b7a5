from pathlib import Path

import pytest
from made_sweeps import H200, a_result

from effbench.analysis.limits import COMPARED, Limit, limits_of, read
from effbench.core.errors import ConfigError

CELL = a_result(model="llama-7b", bs=8, mode="default", dtype="bfloat16", device="cuda")


def exceptions(*rules):
    return limits_of({"exceptions": list(rules)})


def limit(floor=0.02, least=0.0, factor=1.25, ignore=False, reason=None):
    return Limit(
        floor,
        least,
        factor,
        ignore,
        reason,
    )


@pytest.mark.parametrize("value", ["3 %", "3e-2", 0.03])
def test_a_floor(value):
    assert limits_of({"floor": value}).floor == pytest.approx(0.03)


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ({"model": "llama-*"}, True),
        ({"bs": 8}, True),
        ({"bs": 80}, False),
        ({"mode": "default", "metric": "period_ms"}, False),
        ({"hardware": "*H200"}, True),
        ({}, True),
    ],
)
def test_an_exception_holds_where_all_of_its_patterns_fit(pattern, fits):
    limits = exceptions({**pattern, "floor": 0.5, "reason": "noise"})
    assert limits.of(CELL, H200, "latency_ms").floor == (0.5 if fits else 0.02)


def test_the_last_exception_that_fits_counts_and_it_alone():
    limits = exceptions(
        {"model": "llama-*", "ignore": True, "reason": "first"},
        {"mode": "default", "floor": 0.1, "reason": "second"},
        {"mode": "eager", "floor": 0.3, "reason": "fits not"},
    )
    assert limits.of(CELL, H200, "latency_ms") == limit(0.1, reason="second")
    assert limits.of(CELL, H200, "kernels") == limit(), "no key of the last one counts for it"


WHY = {"reason": "why"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"flor": 0.1}, "^unknown setting `flor`$"),
        ({"floor": -0.1}, "^floor: expected a number of at least 0 and below 1.*got -0.1"),
        ({"on_missing": "skip"}, "^on_missing: invalid enum value 'skip'"),
        ({"metrics": ["speedup"]}, "cannot be compared; choose from latency_ms"),
        ({"limits": {"speedup": {}}}, "^limits: unknown setting `speedup`"),
        ({"limits": {"kernels": {"flor": 1}}}, "^limits.kernels: unknown setting `flor`"),
        ({"limits": {"compile_cold_s": {"factor": 0.5}}}, ">= 1.0"),
        ({"exceptions": [{"modle": "a", **WHY}]}, "unknown setting `modle`"),
        ({"exceptions": [{"floor": 0.1, "reason": " "}]}, r"^exceptions\[0\].reason: expected"),
        ({"exceptions": [{"floor": 0.1, **WHY, "until": 2027}]}, "unknown setting `until`"),
        ({"exceptions": [{"metric": "kernel", "ignore": True, **WHY}]}, "matches none of"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(settings, said):
    with pytest.raises(ConfigError, match=said):
        limits_of(settings)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def written(text):
    path = Path("ours.yaml").absolute()
    path.write_text(text)
    return str(path)


def test_a_file_of_the_users_is_laid_over_what_ships():
    rule = '{model: "m*", metric: kernels, ignore: true, reason: moving}'
    path = written(f"floor: 0.05\nlimits: {{latency_ms: {{floor: 10%}}}}\nexceptions: [{rule}]")
    limits = read(path)
    assert limits.of(CELL, H200, "period_ms").floor == 0.05
    assert limits.of(CELL, H200, "latency_ms").floor == pytest.approx(0.1)
    # the defaults give its `least`, and no floor
    assert limits.of(CELL, H200, "graph_pool_bytes") == limit(0.05, 2 * 2**20)
    assert limits.exceptions[0].reason == "moving"
    assert (read().source, limits.source) == (
        "effbench's defaults",
        f"{path} over effbench's defaults",
    )


def test_a_wrong_setting_of_a_file_is_refused_with_its_name():
    path = written("lr: 0.1")
    with pytest.raises(ConfigError, match=r"^unknown setting `lr` \(in .*ours.yaml"):
        read(path)


def test_settings_go_on_top():
    path = written("floor: 0.05\nlimits: {latency_ms: {floor: 0.1}}")
    rule = "exceptions=[{mode: eager, floor: 0.4, reason: noise}]"
    words = ["floor=1e-05", "limits.latency_ms.least=0.5", "on_missing=ignore", rule]
    limits = read(path, words)
    assert limits.floor == 1e-05
    assert limits.of(CELL, H200, "latency_ms") == limit(0.1, 0.5)
    assert limits.on_missing == "ignore"
    assert limits.exceptions[0].floor == 0.4


@pytest.mark.parametrize(("word", "names"), [("[kernels,kernels]", ["kernels"]), ("[]", COMPARED)])
def test_metrics(word, names):
    assert read(None, [f"metrics={word}"]).metrics == list(names)


@pytest.mark.parametrize(
    "word", ["floor", "=3", "floor=[", "floor.x=3", "limits=3", "floor=" + "[" * 400]
)
def test_settings_that_make_no_sense(word):
    with pytest.raises(ConfigError):
        read(None, [word])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken.yaml", "is not valid YAML"),
        ("bytes.yaml", "is not valid YAML"),
        ("nothing/there.yaml", "cannot read nothing/there.yaml: No such file"),
    ],
)
def test_files_that_cannot_be_used(name, said):
    Path("broken.yaml").write_text("a: [")
    Path("bytes.yaml").write_bytes(b"floor: \xff\xfe")
    with pytest.raises(ConfigError, match=said):
        read(name)
