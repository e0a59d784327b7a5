"""Verdicts: what rows and checks say of a claim, and what they leave open."""

import math

import pytest

from effbench.experiments import Claim, Found, geomean, highest, mean, only, relative, where
from effbench.experiments.figures import NO_INTERVAL, ClaimError, Facts, Missing
from effbench.experiments.frames import frame_of
from effbench.experiments.judge import judge
from effbench.store.decisions import ClaimVerdict as Verdict


def row(
    mode="cuda-graph", speedup=2.0, bs=1, model="mlp", status="ok", spread=0.05, settings=(), **more
):
    """`settings`: of the mode. `spread`: half the width of the speedup's interval; None: a single
    trial."""
    alone = spread is None or mode == "eager"
    is_ok = status == "ok"
    return {
        "sweep_id": "s",
        "environment_id": "here",
        "model": model,
        "bs": bs,
        "mode": mode,
        "status": status,
        "reason": None if is_ok else "why",
        "trials": 3,
        "latency_ms": 1.0 / speedup if is_ok else None,
        "latency_ci_low_ms": 0.9 / speedup,
        "latency_ci_high_ms": 1.1 / speedup,
        "speedup": speedup if is_ok else None,
        "speedup_ci_low": None if alone else speedup - spread,
        "speedup_ci_high": None if alone else speedup + spread,
        "graph_pool_bytes": 5,
        "cell_key": f"{model}{bs}{mode}{dict(settings)}",
        "params": {"model": {"name": model}, "mode": {"name": mode, **dict(settings)}, "bs": bs},
        **more,
    }


def eager(**more):
    return row("eager", 1.0, **more)


def faster(rows):
    gain = geomean(where(rows, mode="cuda-graph").speedup)
    return Found(gain > 1.1, gain)


def of(*rows, function=faster, each=(), **frame_settings):
    claim = Claim("P1", "a graph is faster", unit="×", each=each, function=function)
    return judge(claim, {"rows": frame_of(rows, **frame_settings)})


def by_checks(function, **checks):
    return judge(Claim("S1", "x", function=function), checks)


def test_a_claim_follows_its_interval():
    for speedup, spread, verdict, reason in (
        (2.0, 0.05, Verdict.CONFIRMED, "holds"),
        (1.0, 0.05, Verdict.REFUTED, "does not hold"),
        (1.12, 0.05, Verdict.UNDECIDED, "the interval leaves it open"),
        (9.0, None, Verdict.UNDECIDED, NO_INTERVAL),
    ):
        found = of(eager(), row(speedup=speedup, spread=spread))
        assert (found.verdict, found.reason) == (verdict, reason)
        assert found.value.value == pytest.approx(speedup)

    def undefined(rows):
        return Found(mean(rows.latency_ms) / (mean(rows.bs) - 1) > 1)

    found = of(eager(), function=undefined)
    assert found.verdict == Verdict.UNDECIDED and "not defined" in found.reason


def test_parts():
    rows = [
        eager(),
        row(speedup=2.0),
        eager(bs=8),
        row(speedup=1.0, bs=8),
        eager(bs=64),
        row(speedup=1.11, bs=64),
    ]
    found = of(*rows, each=["model", "bs"])
    assert found.verdict == Verdict.DEPENDS
    assert found.reason == "holds for mlp bs=1; not for mlp bs=8; open for mlp bs=64"
    assert [part.holds.holds for part in found.parts] == [True, False, None]
    assert [part.value.value for part in found.parts] == pytest.approx([2, 1, 1.11])
    commas = Facts({"small, warm": True, "small, cold": True, "large": False})
    found = by_checks(lambda facts: Found(dict(facts)), facts=commas)
    assert found.reason == "holds for small, warm · small, cold; not for large"
    assert of(row(bs=1), row(bs=2, speedup=1.11), each="bs").verdict == Verdict.UNDECIDED
    assert of(row(bs=1, speedup=1.0), row(bs=2, speedup=0.5), each="bs").verdict == Verdict.REFUTED

    def single(rows):
        figure = only(where(rows, mode="cuda-graph").speedup)
        return Found(figure > 1.1, figure)

    found = of(eager(), row(), eager(bs=8), row(speedup=1.0, bs=8), each="bs", function=single)
    assert (found.verdict, found.value) == (
        Verdict.DEPENDS,
        None,
    ), "a figure of each part need not be one of all"
    for each in ("bs", ()):
        with pytest.raises(ClaimError, match="but 2 are left"):
            of(eager(), row(), row(model="gpt2"), each=each, function=single)


def test_failed_rows_are_left_out_and_named():
    failed = [row(bs=bs, status="error") for bs in (2, 4, 8, 16)]
    found = of(eager(), row(), *failed, row("default", status="oom"))
    assert found.verdict == Verdict.CONFIRMED
    assert (
        found.reason
        == "holds; left out: mlp bs 2 cuda-graph error, mlp bs 4 cuda-graph error, mlp bs 8"
        " cuda-graph error and 1 more (why)"
    ), "not those of a mode that is not meant"
    assert [part.label for part in of(eager(), row(), *failed, each="bs").parts] == ["bs=1"]


def test_a_comparison_with_a_missing_figure_decides_nothing():
    def first(rows):
        return Found(rows.speedup.iloc[0] > 1.1, rows.speedup.iloc[0])

    assert of(row(), function=first).verdict == Verdict.CONFIRMED
    assert of(row(status="error"), row(bs=8), function=first).verdict == Verdict.NOT_MEASURED
    assert (
        of(row(status="error"), row(bs=8), function=first, each="bs").verdict == Verdict.CONFIRMED
    )


def test_nothing_was_measured():
    for status, verdict in (("unsupported", Verdict.NOT_MEASURABLE), ("oom", Verdict.NOT_MEASURED)):
        for each in ((), "bs"):
            found = of(eager(), row(status=status), row("default", speedup=1.5), each=each)
            assert (found.verdict, found.value) == (verdict, None)
            assert found.reason.endswith(f"left out: mlp bs 1 cuda-graph {status} (why)")
    assert of().verdict == Verdict.NOT_MEASURED
    found = of(
        eager(), row(status="unsupported"), function=lambda rows: Found(highest(rows.speedup) > 0.5)
    )
    assert (found.verdict, found.reason) == (
        Verdict.NOT_MEASURABLE,
        "why",
    ), "a baseline alone says something else"
    found = judge(Claim("S13", "x", not_measurable="it is about code"), {})
    assert (found.verdict, found.reason) == (Verdict.NOT_MEASURABLE, "it is about code")


def test_facts_of_checks():
    def works(warm):
        return Found(
            (warm.fewest == 2) & warm.works,
            warm.fewest,
            {"list": warm["sizes"], "other": warm.works},
        )

    for fewest, held, verdict in (
        (2, True, Verdict.CONFIRMED),
        (3, True, "refuted"),
        (2, False, "refuted"),
    ):
        assert by_checks(works, warm=Facts(fewest=fewest, works=held, sizes=[1])).verdict == verdict
    found = by_checks(works, warm=Facts(fewest=None, works=True, sizes=[]))
    assert (found.verdict, found.reason) == (Verdict.NOT_MEASURED, "it has no value")
    with pytest.raises(ClaimError, match="it has fewest"):
        by_checks(works, warm=Facts(fewest=2))
    missing = {
        "unsupported: needs CUDA": Verdict.NOT_MEASURABLE,
        "error: ValueError: no": Verdict.NOT_MEASURED,
    }
    for reason, verdict in missing.items():
        assert by_checks(works, warm=Missing(reason)).verdict == verdict


def test_a_part_of_a_check_that_could_not_be_shown():
    def both(triton):
        return Found({"a CPU": triton.cpu.compiles, "a GPU": triton.cuda.compiles})

    for part, verdict, reason in (
        ({"unsupported": "no CUDA here"}, Verdict.NOT_MEASURABLE, "unsupported: no CUDA here"),
        (
            {"succeeded": False, "error_type": "timeout", "error": "180 s"},
            Verdict.NOT_MEASURED,
            "timeout: 180 s",
        ),
    ):
        facts = Facts(cpu={"compiles": True}, cuda=part)
        assert (
            by_checks(lambda triton: Found(triton.cuda.compiles), triton=facts).verdict == verdict
        )
        found = by_checks(both, triton=facts)
        assert found.verdict == Verdict.UNDECIDED
        assert found.reason == f"holds for a CPU; not measured for a GPU ({reason})"


def test_relative():
    measured = [
        eager(graph_pool_bytes=10),
        row(),
        row(bs=8),
        row(model="gpt2", settings={"pool": "a"}),
    ]
    measured.append(eager(sweep_id="other", graph_pool_bytes=30))
    measured.append(eager(model="gpt2", sweep_id="other", graph_pool_bytes=20))
    rows = frame_of(measured, {"pool": "mode.pool"})
    found = relative(rows, "graph_pool_bytes", "mode", "eager")
    assert [None if isinstance(one, float) else one.value for one in found] == [1, 2, None, 4, 1, 1]
    part = relative(where(rows, model="gpt2", pool="a"), "graph_pool_bytes", "mode", "eager")
    assert only(part).value == 4, "the reference lies outside the part"
    exact = relative(where(rows, mode="eager"), "latency_ms", "mode", "eager")
    assert all(one.is_exact for one in exact), "a row compared with itself is 1"
    eight = relative(rows, "latency_ms", "bs", 1).iloc[2]
    assert eight.low < 1 < eight.high
    broken = frame_of([eager(status="error"), row()])
    assert broken.speedup.size == 2 and all(
        math.isnan(one) for one in relative(broken, "latency_ms", "mode", "eager")
    )
    with pytest.raises(ClaimError, match="nearest: graph_pool_bytes"):
        relative(rows, "graph_pool_byte", "mode", "eager")
    twice = frame_of([eager(), eager(cell_key="again"), row()])
    with pytest.raises(ClaimError, match="several rows have mode = eager"):
        relative(twice, "latency_ms", "mode", "eager")


def test_rows_as_claims_see_them():
    alone = row("default", spread=None, settings={"shape": [1, 2]})
    rows = frame_of([eager(), row(status="oom"), alone], {"shape": "mode.shape"})
    assert (
        rows.speedup.iloc[0].is_exact
        and math.isnan(rows.speedup.iloc[1])
        and rows.speedup.iloc[2].high == math.inf
    )
    assert math.isnan(rows.graph_pool_bytes.iloc[1]) and rows.status.iloc[1] == "oom"
    assert list(where(rows, shape="[1, 2]")["mode"]) == ["default"]
    assert list(where(rows, mode=["eager", "default"]).bs) == [1, 1]
    with pytest.raises(ClaimError, match="nearest: model"):
        where(rows, modell="mlp")


def test_inputs_and_settings_that_cells_omit():
    """The shapes of inputs are in a list, and cells omit numerics that have their default."""
    params = [
        {
            "model": {"name": "m", "inputs": [{"name": "x", "shape": [size]}]},
            "numerics": numerics,
            "bs": 1,
        }
        for size, numerics in ((16, {}), (64, {}), (16, {"channels_last": True}))
    ]
    measured = [row(params=one, cell_key=str(one)) for one in params]
    rows = frame_of(
        measured, {"shape": "model.inputs.x.shape", "channels_last": "numerics.channels_last"}
    )
    assert list(rows["shape"]) == ["[16]", "[64]", "[16]"]
    assert list(rows.channels_last) == [False, False, True]
    for name, reference, compared in (
        ("shape", "[16]", [1, 1, 1]),
        ("channels_last", False, [1, 1, 1]),
    ):
        assert [one.value for one in relative(rows, "latency_ms", name, reference)] == compared


def test_mistakes():
    for function, said in (
        (lambda rows: Found(highest(rows.speedup)), "expected a condition"),
        (lambda rows: True, "returned bool, not Found"),
        (lambda rows: Found(True, 1, "abc"), "also: expected text -> figure, got 'abc'"),
        (lambda rows: Found(True, rows), r"expected a number, got [^\n]{1,80}$"),
        (lambda rows: Found(rows.speedupp), "raised AttributeError: .*speedupp"),
        (lambda rows: Found(0.3 <= highest(rows.speedup) <= 0.7), "between"),
    ):
        with pytest.raises(ClaimError, match=said):
            of(eager(), row(), function=function)


BUSY = {"marked": True, "disturbance": "host busy", "speedup_disturbance": "host busy"}
OVER_BUSY = {"speedup_disturbance": "the baseline's times: host busy"}


def test_marked_rows_decide_nothing_and_are_named():
    found = of(eager(), row(**BUSY))
    assert (found.verdict, found.value) == (Verdict.NOT_MEASURED, None)
    assert found.reason.endswith("left out: mlp bs 1 cuda-graph marked (host busy)")
    mixed = of(eager(), row(), row(bs=8, speedup=0.5, **BUSY), row("default", **BUSY))
    assert (mixed.verdict, mixed.value.value) == (
        Verdict.CONFIRMED,
        pytest.approx(2.0),
    ), "the unmarked one alone"
    assert mixed.reason == "holds; left out: mlp bs 8 cuda-graph marked (host busy)"
    unmarked = of(eager(), row(marked=False, disturbance=None))
    assert (unmarked.verdict, unmarked.reason) == (Verdict.CONFIRMED, "holds")


def test_a_speedup_of_pairs_counts_although_its_times_are_marked():
    busy = {"marked": True, "disturbance": "host busy", "speedup_from": "pairs"}
    found = of(eager(**busy), row(**busy))
    assert (found.verdict, found.reason) == (Verdict.CONFIRMED, "holds")


def test_the_pairs_of_a_single_process_decide_nothing():
    """Their interval does not contain the variation between processes."""
    assert of(eager(), row(trials=1)).verdict == Verdict.UNDECIDED
    assert of(eager(), row(trials=2)).verdict == Verdict.CONFIRMED


def test_a_speedup_over_a_marked_baseline_decides_nothing():
    found = of(eager(**BUSY), row(**OVER_BUSY))
    assert found.verdict == Verdict.NOT_MEASURED
    assert "left out: mlp bs 1 cuda-graph marked (the baseline's times: host busy)" in found.reason

    def quick(rows):
        return Found(mean(where(rows, mode="cuda-graph").latency_ms) < 5)

    assert of(eager(**BUSY), row(**OVER_BUSY), function=quick).verdict == Verdict.CONFIRMED, (
        "its own time is not marked"
    )
    counts = of(
        eager(), row(**BUSY), function=lambda rows: Found(highest(rows.graph_pool_bytes) > 1)
    )
    assert counts.verdict == Verdict.CONFIRMED and "marked (host busy)" in counts.reason, "eager's"


def test_relative_to_a_marked_row():
    def pools(rows):
        return Found(highest(relative(where(rows, bs=8), "latency_ms", "bs", 1)) < 9)

    assert of(eager(), row(), row(bs=8), function=pools).verdict == Verdict.CONFIRMED
    found = of(row(**BUSY), row(bs=8), function=pools)
    assert (
        found.verdict == Verdict.NOT_MEASURED
        and "bs 1 cuda-graph marked (host busy)" in found.reason
    )
