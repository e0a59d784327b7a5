import datetime as dt

import pytest

from effbench.comparison.limits import COMPARED, Limit
from effbench.comparison.settings import read
from effbench.errors import ConfigError

CELL = {"model": "mlp", "bs": 8, "mode": "eager", "dtype": "float32", "phase": "inference", "device": "cuda",
        "hardware": "H"}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(folder, text, name="conf/check/ours.yaml"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def test_what_ships_compares_every_metric_that_can_be():
    limits = read()
    assert set(limits.metrics) == set(COMPARED)
    assert limits.exceptions == []
    assert (limits.floor, limits.q, limits.on_missing) == (0.02, 0.05, "fail")
    assert limits.of(CELL, "compile_cold_s") == Limit(0.02, 1.0, 1.25)
    assert limits.of(CELL, "graph_pool_bytes") == Limit(0.02, 2 * 2**20)
    assert limits.of(CELL, "peak_allocated_bytes") == Limit(0.02, 2**20)


def test_a_file_of_the_users_is_laid_over_it(folder):
    text = """
        floor: 0.05
        limits: {latency_ms: {floor: 10%}}
        exceptions:
          - {model: "m*", metric: kernels, ignore: true, until: 2027-03-31, reason: moving to new kernels}
    """
    path = written(folder, text)
    for name in (path, "ours", "conf/check/ours.yaml"):
        limits = read(name)
        assert limits.of(CELL, "period_ms").floor == 0.05
        assert limits.of(CELL, "latency_ms").floor == pytest.approx(0.1)
        assert limits.of(CELL, "graph_pool_bytes").least == 2 * 2**20  # of the defaults
        assert limits.exceptions[0].until == dt.date(2027, 3, 31)


def test_the_users_own_default_is_found_by_itself(folder):
    assert read().source == read("default").source == "effbench's defaults"
    written(folder, "floor: 0.07\nlimits: {latency_ms: {floor: 0.2}}", "conf/check/default.yaml")
    for name in (None, "default"):
        limits = read(name)
        assert limits.floor == 0.07
        assert limits.of(CELL, "graph_pool_bytes").least == 2 * 2**20  # of what ships
        assert limits.source == "conf/check/default.yaml over effbench's defaults"
    written(folder, "q: 0.01")
    limits = read("ours", ["on_missing=ignore"])
    assert (limits.floor, limits.q) == (0.02, 0.01)  # another name takes the place of the default
    assert limits.source == "conf/check/ours.yaml over effbench's defaults, on_missing=ignore"


def test_settings_go_on_top(folder):
    path = written(folder, "floor: 0.05\nlimits: {latency_ms: {floor: 0.1}}")
    limits = read(path, ["floor=1e-05", "limits.latency_ms.least=0.5", "on_missing=ignore", "metrics=[latency_ms]"])
    assert limits.floor == 1e-05
    assert limits.of(CELL, "latency_ms") == Limit(0.1, 0.5)
    assert (limits.on_missing, limits.metrics) == ("ignore", ("latency_ms",))
    rule = "exceptions=[{mode: eager, floor: 0.4, reason: noise}]"
    assert read(None, [rule]).of(CELL, "latency_ms").floor == 0.4


def test_what_cannot_be_used(folder):
    (folder / "x.yaml").write_bytes(b"floor: \xff\xfe")
    for name, text, said in (
        (None, "- a\n- b", "holds no mapping"),
        (None, "floor: [", "is no YAML"),
        (None, "flor: 0.1", "unknown setting flor; did you mean floor?"),
        ("x.yaml", None, "is no YAML"),
        ("nothing/there.yaml", None, "cannot read nothing/there.yaml: No such file"),
        ("defualt", None, "did you mean default?"),
        ("conf/check", None, "cannot read conf/check"),
    ):
        with pytest.raises(ConfigError, match=said):
            read(name or written(folder, text))
    for word in ("floor", "=3", "floor=[", "floor=", "floor.x=3", "a..b=1", "limits=3", "floor=nan"):
        with pytest.raises(ConfigError):
            read(None, [word])
    # a file that was found by itself is named
    written(folder, "lr: 0.1", "conf/check/default.yaml")
    with pytest.raises(ConfigError, match=r"^conf/check/default.yaml: unknown setting lr"):
        read()


def test_interpolations_stay_text(folder, monkeypatch):
    """A file cannot read the environment."""
    monkeypatch.setenv("SECRET", "0.5")
    with pytest.raises(ConfigError, match=r"floor=\$\{oc.env:SECRET\}"):
        read(written(folder, "floor: ${oc.env:SECRET}"))
