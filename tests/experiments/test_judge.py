"""Verdicts: what rows and checks say of a claim, and what they leave open."""

import math

import pytest
from made_sweeps import a_result

from effbench.experiments import Answer, Claim, geomean, highest, interval, mean, ratio, where
from effbench.experiments.facts import Facts, facts_of, no_facts
from effbench.experiments.figures import NO_INTERVAL, UNDEFINED, ClaimError
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
    figures = {
        "sweep_id": "s",
        "environment_id": "here",
        "model": model,
        "bs": bs,
        "mode": mode,
        "dtype": "",
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
    return a_result(**figures)


def eager(**more):
    return row("eager", 1.0, **more)


def faster(rows):
    return geomean(where(rows, mode="cuda-graph").speedup).above(1.1)


def of(*rows, function=faster, each=(), paths=None):
    claim = Claim("P1", "a graph is faster", unit="×", each=each, function=function)
    return judge(claim, {"rows": frame_of(rows, paths or {})})


def by_checks(function, **checks):
    return judge(Claim("S1", "x", function=function), checks)


@pytest.mark.parametrize(
    ("speedup", "spread", "verdict", "reason"),
    [
        (2.0, 0.05, Verdict.CONFIRMED, "holds"),
        (1.0, 0.05, Verdict.REFUTED, "does not hold"),
        (1.12, 0.05, Verdict.UNDECIDED, "the interval leaves it open"),
        (9.0, None, Verdict.UNDECIDED, NO_INTERVAL),
    ],
)
def test_a_claim_follows_its_interval(speedup, spread, verdict, reason):
    judged = of(eager(), row(speedup=speedup, spread=spread))
    assert (judged.verdict, judged.reason) == (verdict, reason)
    assert judged.value.value == pytest.approx(speedup)


def test_a_figure_that_is_not_defined():
    def undefined(rows):
        return (mean(rows.latency_ms) / (mean(rows.bs) - 1)).above(1)

    judged = of(eager(), function=undefined)
    assert (judged.verdict, judged.reason) == (Verdict.NOT_MEASURED, UNDEFINED)


def test_parts():
    rows = [
        eager(),
        row(speedup=2.0),
        eager(bs=8),
        row(speedup=1.0, bs=8),
        eager(bs=64),
        row(speedup=1.11, bs=64),
    ]
    judged = of(*rows, each=["model", "bs"])
    assert judged.verdict == Verdict.DEPENDS
    assert judged.reason == "holds for mlp bs=1; not for mlp bs=8; open for mlp bs=64"
    assert [part.outcome.holds for part in judged.parts] == [True, False, None]
    assert [part.value.value for part in judged.parts] == pytest.approx([2, 1, 1.11])
    assert of(row(bs=1), row(bs=2, speedup=1.11), each="bs").verdict == Verdict.UNDECIDED
    assert of(row(bs=1, speedup=1.0), row(bs=2, speedup=0.5), each="bs").verdict == Verdict.REFUTED


def test_statements_with_commas():
    facts = Facts({"small, warm": True, "small, cold": True, "large": False})
    judged = by_checks(lambda facts: Answer(facts), facts=facts)
    assert judged.reason == "holds for small, warm · small, cold; not for large"


def test_a_figure_of_each_part_need_not_be_one_of_all():
    def single(rows):
        return interval(where(rows, mode="cuda-graph").speedup).above(1.1)

    judged = of(eager(), row(), eager(bs=8), row(speedup=1.0, bs=8), each="bs", function=single)
    assert (judged.verdict, judged.value) == (Verdict.DEPENDS, None)
    for each in ("bs", ()):
        with pytest.raises(ClaimError, match="but 2 are left"):
            of(eager(), row(), row(model="gpt2"), each=each, function=single)


def test_a_baseline_is_in_every_part():
    """It lacks the setting of the mode that splits the claim."""
    rows = [eager(), *(row(speedup=gain, settings={"pool": gain}) for gain in (2.0, 1.0))]

    def gain(rows):
        return interval(ratio(rows, "latency_ms", mode=["eager", "cuda-graph"])).above(1.5)

    judged = of(*rows, each="pool", function=gain, paths={"pool": "mode.pool"})
    assert judged.reason == "holds for pool=2; not for pool=1"


def test_failed_rows_are_left_out_and_named():
    failed = [row(bs=bs, status="error") for bs in (2, 4, 8, 16)]
    judged = of(eager(), row(), *failed, row("default", status="oom"))
    assert judged.verdict == Verdict.CONFIRMED
    assert (
        judged.reason
        == "holds; left out: mlp bs=2 cuda-graph error, mlp bs=4 cuda-graph error, mlp bs=8"
        " cuda-graph error and 1 more (why)"
    ), "not those of a mode that is not meant"
    assert [part.label for part in of(eager(), row(), *failed, each="bs").parts] == ["bs=1"]


def test_a_comparison_with_a_missing_figure_decides_nothing():
    def first(rows):
        return interval(rows.speedup.iloc[0]).above(1.1)

    failed = row(status="error")
    assert of(row(), function=first).verdict == Verdict.CONFIRMED
    assert of(failed, row(bs=8), function=first, each="bs").verdict == Verdict.CONFIRMED
    assert of(failed, row(bs=8), function=first).verdict == Verdict.NOT_MEASURED
    nan = Facts({"ms": math.nan})  # `nan > 1` is false
    judged = by_checks(lambda facts: Answer(facts.ms > 1, facts.ms), facts=nan)
    assert (judged.verdict, judged.reason) == (Verdict.NOT_MEASURED, "its figure was not measured")


@pytest.mark.parametrize("each", [(), "bs"])
@pytest.mark.parametrize(
    ("status", "verdict", "reason"),
    [
        ("unsupported", Verdict.NOT_MEASURABLE, "why"),
        (
            "oom",
            Verdict.NOT_MEASURED,
            "no measured row has speedup; left out: mlp bs=1 cuda-graph oom (why)",
        ),
    ],
)
def test_nothing_was_measured(status, verdict, reason, each):
    judged = of(eager(), row(status=status), row("default", speedup=1.5), each=each)
    assert (judged.verdict, judged.value) == (verdict, None)
    assert judged.reason == reason


def test_claims_that_cannot_be_judged():
    assert of().verdict == Verdict.NOT_MEASURED
    judged = judge(Claim("S13", "x", not_measurable="it is about code"), {})
    assert (judged.verdict, judged.reason) == (Verdict.NOT_MEASURABLE, "it is about code")


@pytest.mark.parametrize(
    ("fewest", "is_working", "verdict", "reason"),
    [
        (2, True, Verdict.CONFIRMED, "holds"),
        (3, True, Verdict.REFUTED, "does not hold"),
        (2, False, Verdict.REFUTED, "does not hold"),
        (2, None, Verdict.NOT_MEASURED, "it has no value"),
    ],
)
def test_facts_of_checks(fewest, is_working, verdict, reason):
    def works(warm):
        return Answer(warm.fewest == 2 and warm.works, warm.fewest, {"list": warm["sizes"]})

    facts = Facts({"fewest": fewest, "works": is_working, "sizes": [1]})
    judged = by_checks(works, warm=facts)
    assert (judged.verdict, judged.reason) == (verdict, reason)
    with pytest.raises(ClaimError, match="it has fewest"):
        by_checks(works, warm=Facts({"fewest": 2}))


@pytest.mark.parametrize(
    ("reason", "verdict"),
    [
        ("unsupported: needs CUDA", Verdict.NOT_MEASURABLE),
        ("error: ValueError: no", Verdict.NOT_MEASURED),
    ],
)
def test_checks_without_facts(reason, verdict):
    absent = no_facts(reason)
    judged = by_checks(lambda warm: warm.works and warm.other, warm=absent)
    assert (judged.verdict, judged.reason) == (verdict, reason)
    judged = by_checks(
        lambda warm, cold: Answer({"warm": warm.ms.above(1), "cold": cold.works}),
        warm=absent,
        cold=Facts({"works": True}),
    )
    assert judged.reason == f"holds for cold; not measured for warm ({reason})"


@pytest.mark.parametrize(
    ("part", "verdict", "reason"),
    [
        ({"unsupported": "no CUDA here"}, Verdict.NOT_MEASURABLE, "unsupported: no CUDA here"),
        (
            {"succeeded": False, "error_type": "timeout", "error": "180 s"},
            Verdict.NOT_MEASURED,
            "timeout: 180 s",
        ),
    ],
)
def test_a_part_of_a_check_that_could_not_be_shown(part, verdict, reason):
    def both(triton):
        return Answer({"a CPU": triton.cpu.compiles, "a GPU": triton.cuda.compiles})

    facts = facts_of({"cpu": {"compiles": True}, "cuda": part})
    assert by_checks(lambda triton: triton.cuda.compiles, triton=facts).verdict == verdict
    assert by_checks(lambda triton: not triton.cuda.compiles, triton=facts).verdict == verdict
    judged = by_checks(both, triton=facts)
    assert judged.verdict == Verdict.UNDECIDED
    assert judged.reason == f"holds for a CPU; not measured for a GPU ({reason})"


def values(figures):
    return [None if figure.is_missing else figure.value for figure in figures]


def test_ratios():
    measured = [
        eager(graph_pool_bytes=10),
        row(),
        row(bs=8),
        row(model="gpt2", settings={"pool": "a"}),
        eager(sweep_id="other", graph_pool_bytes=30),
        eager(model="gpt2", sweep_id="other", graph_pool_bytes=20),
    ]
    rows = frame_of(measured, {"pool": "mode.pool"})
    modes = ["eager", "cuda-graph"]
    assert values(ratio(rows, "graph_pool_bytes", mode=modes)) == [2, None, 4]
    eight = ratio(rows, "latency_ms", bs=[1, 8]).iloc[0]
    assert eight.low < 1 < eight.high
    broken = frame_of([eager(status="error"), row()], {})
    assert values(ratio(broken, "latency_ms", mode=modes)) == [None]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ({"column": "graph_pool_byte", "mode": ["eager", "default"]}, "nearest: graph_pool_bytes"),
        ({"column": "latency_ms", "mode": ["eager", "default"]}, "several rows have mode = eager"),
        ({"column": "latency_ms", "mode": ["eager"]}, "one setting and two values"),
        ({"column": "latency_ms"}, "one setting and two values"),
    ],
)
def test_wrong_ratios(call, text):
    twice = frame_of([eager(), eager(cell_key="again"), row()], {})
    with pytest.raises(ClaimError, match=text):
        ratio(twice, **call)


def test_rows_as_claims_see_them():
    alone = row("default", spread=None, settings={"shape": [1, 2]})
    rows = frame_of([eager(), row(status="oom"), alone], {"shape": "mode.shape"})
    exact, failed, single = rows.speedup
    assert exact == 1.0 and failed.is_missing and single.high == math.inf
    assert rows.graph_pool_bytes.iloc[1].is_missing and rows.status.iloc[1] == "oom"
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
    measured = [row(params=each, cell_key=str(each)) for each in params]
    paths = {"shape": "model.inputs.x.shape", "channels_last": "numerics.channels_last"}
    rows = frame_of(measured, paths)
    assert list(rows["shape"]) == ["[16]", "[64]", "[16]"]
    assert list(rows.channels_last) == [False, False, True]
    assert values(ratio(rows, "latency_ms", shape=["[16]", "[64]"])) == [1]
    assert values(ratio(rows, "latency_ms", channels_last=[False, True])) == [1]


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda rows: highest(rows.speedup), "expected a comparison such as"),
        (lambda rows: Answer({"x": 3}), "expected a comparison such as .*, got 3"),
        (lambda rows: Answer(True, 1, "abc"), "also: expected text -> figure, got 'abc'"),
        (lambda rows: Answer(True, rows), r"expected a number, got [^\n]{1,80}$"),
        (lambda rows: rows.speedupp, "raised AttributeError: .*speedupp"),
        (lambda rows: highest(rows.speedup) > 1, "raised TypeError: '>' not supported"),
        (lambda rows: not highest(rows.speedup).above(1), "neither true nor false"),
    ],
)
def test_mistakes(function, text):
    with pytest.raises(ClaimError, match=text):
        of(eager(), row(), function=function)


BUSY = {"marked": True, "disturbance": "host busy", "speedup_disturbance": "host busy"}
OVER_BUSY = {"speedup_disturbance": "the baseline's times: host busy"}


def test_marked_rows_decide_nothing_and_are_named():
    judged = of(eager(), row(**BUSY))
    assert (judged.verdict, judged.value) == (Verdict.NOT_MEASURED, None)
    assert judged.reason.endswith("left out: mlp bs=1 cuda-graph marked (host busy)")
    mixed = of(eager(), row(), row(bs=8, speedup=0.5, **BUSY), row("default", **BUSY))
    assert (mixed.verdict, mixed.value.value) == (
        Verdict.CONFIRMED,
        pytest.approx(2.0),
    ), "the unmarked one alone"
    assert mixed.reason == "holds; left out: mlp bs=8 cuda-graph marked (host busy)"
    unmarked = of(eager(), row(marked=False, disturbance=None))
    assert (unmarked.verdict, unmarked.reason) == (Verdict.CONFIRMED, "holds")


def test_a_speedup_of_pairs_counts_although_its_times_are_marked():
    busy = {"marked": True, "disturbance": "host busy", "speedup_from": "pairs"}
    judged = of(eager(**busy), row(**busy))
    assert (judged.verdict, judged.reason) == (Verdict.CONFIRMED, "holds")


def test_the_pairs_of_a_single_process_decide_nothing():
    """Their interval does not contain the variation between processes."""
    assert of(eager(), row(trials=1)).verdict == Verdict.UNDECIDED
    assert of(eager(), row(trials=2)).verdict == Verdict.CONFIRMED


def test_a_speedup_over_a_marked_baseline_decides_nothing():
    judged = of(eager(**BUSY), row(**OVER_BUSY))
    assert judged.verdict == Verdict.NOT_MEASURED
    assert "left out: mlp bs=1 cuda-graph marked (the baseline's times: host busy)" in judged.reason

    def quick(rows):
        return mean(where(rows, mode="cuda-graph").latency_ms).below(5)

    assert of(eager(**BUSY), row(**OVER_BUSY), function=quick).verdict == Verdict.CONFIRMED, (
        "its own time is not marked"
    )

    def pools(rows):
        return highest(rows.graph_pool_bytes).above(1)

    counts = of(eager(), row(**BUSY), function=pools)
    assert counts.verdict == Verdict.CONFIRMED and "marked (host busy)" in counts.reason, "eager's"


def test_ratio_to_a_marked_row():
    def slower(rows):
        return highest(ratio(rows, "latency_ms", bs=[1, 8])).below(9)

    assert of(eager(), row(), row(bs=8), function=slower).verdict == Verdict.CONFIRMED
    judged = of(row(**BUSY), row(bs=8), function=slower)
    assert judged.verdict == Verdict.NOT_MEASURED
    assert "bs=1 cuda-graph marked (host busy)" in judged.reason
