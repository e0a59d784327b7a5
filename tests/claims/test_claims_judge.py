"""Verdicts: what rows and checks say of a claim, and what they leave open."""

import pytest
from made_sweeps import a_result

from effbench.claims import Answer, Claim, by, geomean, highest, mean, ratio, where
from effbench.claims.facts import facts_of
from effbench.claims.figures import NO_INTERVAL, NotMeasuredError
from effbench.claims.frames import frame_of
from effbench.claims.judge import judge, unmeasured
from effbench.store.schema import ClaimVerdict as Verdict


def row(
    mode="cuda-graph", speedup=2.0, bs=1, model="mlp", status="ok", spread=0.05, settings=(), **more
):
    """`settings`: of the mode. `spread`: half the width of the speedup's interval; None: a single
    trial."""
    facts = {
        "sweep_id": "s",
        "environment_id": "here",
        "model": model,
        "bs": bs,
        "mode": mode,
        "trials": 3,
        "cell_key": f"{model}{bs}{mode}{dict(settings)}",
        "params": {"model": {"name": model}, "mode": {"name": mode, **dict(settings)}, "bs": bs},
    }
    if status != "ok":
        return a_result(
            **facts,
            status=status,
            reason="why",
            **more,
        )
    facts |= {
        "latency_ms": 1.0 / speedup,
        "latency_ci_low_ms": 0.9 / speedup,
        "latency_ci_high_ms": 1.1 / speedup,
        "speedup": speedup,
        "graph_pool_bytes": 5,
    }
    if spread is not None and mode != "eager":
        facts |= {"speedup_ci_low": speedup - spread, "speedup_ci_high": speedup + spread}
    return a_result(**facts | more)


def eager(**more):
    return row("eager", 1.0, **more)


def faster(rows):
    return geomean(where(rows, mode="cuda-graph").speedup).above(1.1)


def judged_by(function, **inputs):
    claim = Claim(
        "P1",
        "a graph is faster",
        unit="×",
        function=function,
    )
    try:
        return judge(claim, inputs)
    except NotMeasuredError as error:
        return unmeasured(claim, str(error))


def of(*rows, function=faster):
    return judged_by(function, rows=frame_of(rows))


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
    assert judged.verdict == verdict
    assert judged.reason == reason
    assert judged.value.value == pytest.approx(speedup)


def test_failed_rows_are_left_out_and_named():
    failed = [row(bs=bs, status="error") for bs in (2, 4, 8, 16)]
    judged = of(
        eager(),
        row(),
        *failed,
        row("default", status="oom"),
    )
    assert judged.verdict == Verdict.CONFIRMED
    names = ", ".join(f"error: mlp bs={bs} cuda-graph float32 (why)" for bs in (2, 4, 8))
    assert judged.reason == f"holds; left out: {names} and 1 more", "not those of another mode"


@pytest.mark.parametrize(
    ("status", "verdict"),
    [("unsupported", Verdict.NOT_MEASURABLE), ("oom", Verdict.NOT_MEASURED)],
)
def test_nothing_was_measured(status, verdict):
    judged = of(eager(), row(status=status), row("default", speedup=1.5))
    assert judged.verdict == verdict
    assert judged.value.is_missing
    assert judged.reason == f"{status}: mlp bs=1 cuda-graph float32 (why)"


def test_a_part_of_a_check_that_is_unsupported():
    facts = facts_of({"cpu": {"compiles": True}, "cuda": {"unsupported": "no CUDA"}})
    judged = judged_by(lambda triton: not triton.cuda.compiles, triton=facts)
    assert judged.verdict == Verdict.NOT_MEASURABLE
    assert judged.reason == "unsupported: no CUDA"
    parts = {"a CPU": facts.cpu.compiles, "a GPU": facts.cuda.compiles, "a TPU": None}
    judged = judged_by(lambda: Answer(parts))
    assert judged.verdict == Verdict.UNDECIDED
    assert judged.reason == "holds for a CPU; not measured for a GPU, a TPU (unsupported: no CUDA)"


def test_parts_that_were_not_measured_are_left_out():
    rows = frame_of([row(), row(bs=8, status="error")])
    gains = by(rows, ["model", "bs"], lambda part: mean(part.speedup))
    assert list(gains) == ["mlp bs=1"]


def values(figures):
    return [None if figure.is_missing else figure.value for figure in figures]


def test_ratios():
    measured = [
        eager(graph_pool_bytes=10),
        row(),
        row(bs=8),
        row(model="gpt2", settings={"pool": "a"}),
        eager(sweep_id="other", model="gpt2", graph_pool_bytes=20),
    ]
    rows = frame_of(measured)
    modes = ["eager", "cuda-graph"]
    assert values(ratio(rows, "graph_pool_bytes", mode=modes)) == [2, None, None]
    eight = ratio(rows, "latency_ms", bs=[1, 8]).iloc[0]
    assert eight.low < 1 < eight.high


def test_inputs_and_settings_that_cells_omit():
    """The shapes of inputs are in a list, and cells omit numerics that have their default."""
    measured = []
    for size, numerics in ((16, {}), (64, {}), (16, {"channels_last": True})):
        model = {"name": "m", "inputs": [{"name": "x", "shape": [size]}]}
        params = {"model": model, "numerics": numerics, "bs": 1}
        measured.append(row(params=params, cell_key=str(params)))
    rows = frame_of(measured)
    assert list(rows.channels_last) == [False, False, True]
    assert values(ratio(rows, "latency_ms", shape=["[16]", "[64]"])) == [1]
    assert values(ratio(rows, "latency_ms", channels_last=[False, True])) == [1]


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda rows: highest(rows.speedup), "expected a comparison such as"),
        (lambda rows: Answer({"x": 3}), "expected a comparison such as .*, got 3"),
        (lambda rows: not highest(rows.speedup).above(1), "neither true nor false"),
    ],
)
def test_mistakes(function, text):
    with pytest.raises(TypeError, match=text):
        of(eager(), row(), function=function)


BUSY = {"marked": True, "disturbance": "host busy", "speedup_disturbance": "host busy"}


def test_marked_rows_decide_nothing_and_are_named():
    assert of(eager(), row(**BUSY)).verdict == Verdict.NOT_MEASURED
    mixed = of(
        eager(),
        row(),
        row(bs=8, speedup=0.5, **BUSY),
        row("default", **BUSY),
    )
    assert mixed.verdict == Verdict.CONFIRMED
    assert mixed.value.value == pytest.approx(2.0)
    assert mixed.reason == "holds; left out: marked: mlp bs=8 cuda-graph float32 (host busy)"


def test_a_speedup_of_pairs_counts_although_its_times_are_marked():
    busy = {"marked": True, "disturbance": "host busy", "speedup_from": "pairs"}
    judged = of(eager(**busy), row(**busy))
    assert judged.verdict == Verdict.CONFIRMED
    assert judged.reason == "holds"


def test_the_pairs_of_a_single_process_decide_nothing():
    """Their interval does not contain the variation between processes."""
    assert of(eager(), row(trials=1)).verdict == Verdict.UNDECIDED


def test_a_scaling_efficiency_is_a_figure_that_a_marked_cell_on_one_device_leaves_open():
    facts = {"scaling_efficiency": 0.9, "scaling_efficiency_ci_low": 0.8}
    known = row(**facts, scaling_efficiency_ci_high=0.95)
    marked = row("default", **facts, scaling_disturbance="host busy")
    first, second = frame_of([known, marked]).scaling_efficiency
    assert (first.value, first.low, first.high) == (0.9, 0.8, 0.95)
    assert second.is_missing


def test_a_speedup_over_a_marked_baseline_decides_nothing_but_its_own_time_does():
    rows = [eager(**BUSY), row(speedup_disturbance="the baseline's times: host busy")]
    judged = of(*rows)
    assert judged.verdict == Verdict.NOT_MEASURED
    assert judged.reason == "marked: mlp bs=1 cuda-graph float32 (the baseline's times: host busy)"

    def quick(rows):
        return mean(where(rows, mode="cuda-graph").latency_ms).below(5)

    assert of(*rows, function=quick).verdict == Verdict.CONFIRMED
