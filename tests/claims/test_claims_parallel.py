"""The experiment about two GPUs: what its claims say of rows, and without a second GPU."""

import pytest
from judging import judged, outcomes
from made_sweeps import a_result

from effbench.claims.definition import find
from effbench.claims.run import NO_SECOND_GPU
from effbench.core.cell import Status

(EXPERIMENT,) = find(["parallel"])
CLAIMS = [claim.id for claim in EXPERIMENT.claims]
SMALL, WIDE, BERT = "llama-1b-decode", "llama-7b-decode", "bert-base"
INTERVALS = {
    "latency_ms": "latency_ci_{}_ms",
    "period_ms": "period_ci_{}_ms",
    "speedup": "speedup_ci_{}",
    "period_speedup": "period_speedup_ci_{}",
}
DECODING = ("eager", "default", "cuda-graph", "default+graph")


def row(model, bs, mode, parallel, **facts):
    params = {"model": {"name": model}, "mode": {"name": mode}, "bs": bs}
    if parallel != "none":  # cells on one device omit it
        params["parallel"] = parallel
    known = {
        "sweep_id": "s",
        "environment_id": "here",
        "model": model,
        "bs": bs,
        "mode": mode,
        "cell_key": f"{model}{bs}{mode}{parallel}",
        "params": params,
    }
    return a_result(**known | facts)


def timed(model, bs, mode, parallel, time_ms, eager_ms, **more):
    """A row whose times and speedups have intervals of ± 1 %."""
    facts = {"latency_ms": time_ms, "period_ms": time_ms}
    facts |= {"speedup": eager_ms / time_ms, "period_speedup": eager_ms / time_ms}
    for name, bound in INTERVALS.items():
        facts[bound.format("low")] = 0.99 * facts[name]
        facts[bound.format("high")] = 1.01 * facts[name]
    return row(model, bs, mode, parallel, **facts | more)


def decoding(model, times):
    """Rows of a sweep. `times`: (bs, parallel) -> ms of each of DECODING."""
    rows = []
    for (bs, parallel), of_modes in times.items():
        for mode, time_ms in zip(DECODING, of_modes, strict=True):
            rows.append(timed(model, bs, mode, parallel, time_ms, of_modes[0]))
    return rows


#: As on two H200s: distributed tensors make eager slow, and a graph removes this.
DECODE = decoding(
    SMALL,
    {
        (1, "none"): (6.0, 3.0, 2.0, 1.5),
        (1, "tp2"): (48.0, 10.0, 2.2, 1.8),
        (64, "none"): (6.0, 4.0, 4.0, 3.6),
        (64, "tp2"): (48.0, 10.0, 3.0, 2.9),
    },
)
SEVEN = decoding(
    WIDE,
    {
        (1, "none"): (6.0, 4.0, 4.0, 3.6),
        (1, "tp2"): (48.0, 10.0, 3.0, 2.9),
        (64, "none"): (9.0, 8.0, 8.4, 8.0),
        (64, "tp2"): (48.0, 10.0, 5.0, 4.9),
    },
)


def training(ddp_ms=9.0, fsdp_ms=10.7, compiled_bytes=9):
    """Rows of steps that take 10 ms in eager on one GPU and in data parallel, 12 ms sharded."""
    rows = []
    for parallel, eager_ms, compiled_ms in (
        ("none", 10.0, 8.0),
        ("ddp2", 10.0, ddp_ms),
        ("fsdp2", 12.0, fsdp_ms),
    ):
        for mode, time_ms, peak in (
            ("eager", eager_ms, 10),
            ("default", compiled_ms, compiled_bytes),
        ):
            facts = {"phase": "training", "peak_allocated_bytes": peak}
            rows.append(timed(BERT, 8, mode, parallel, time_ms, eager_ms, **facts))
    return rows


def test_a_graph_gains_more_on_two_gpus_than_on_one():
    judgement = judged("P17", decode=DECODE, wide=SEVEN)
    assert judgement.verdict == "confirmed"
    assert judgement.also[f"speedup, cuda-graph {SMALL} bs=1 parallel=tp2"].value == 48 / 2.2
    gain = judgement.also[f"a graph of compiled code, {SMALL} bs=64 parallel=none"]
    assert gain.value == pytest.approx(4 / 3.6)


def test_a_graph_is_useful_at_large_sizes_on_two_gpus():
    judgement = judged("P18", decode=DECODE, wide=SEVEN)
    assert judgement.verdict == "confirmed"
    assert judgement.value.value == pytest.approx(((10 / 2.9) * (10 / 4.9)) ** 0.5)


def test_compiling_gains_less_at_large_sizes_and_on_two_gpus():
    found = outcomes(judged("P19", decode=DECODE, wide=SEVEN))
    assert f"faster, {SMALL} bs=1" in found[True]
    assert f"less than at bs=1, {SMALL} bs=64" in found[True]
    assert f"less with tp2, {SMALL} bs=1" in found[True]
    assert f"less with tp2, {WIDE} bs=64" in found[None], "1.05 and 1.02 with 1 % each"


@pytest.mark.parametrize(
    ("ddp_ms", "verdict"),
    [(9.0, "confirmed"), (10.0, "confirmed"), (10.2, "undecided"), (14.0, "refuted")],
)
def test_data_parallel_training_may_be_compiled(ddp_ms, verdict):
    assert judged("P20", training=training(ddp_ms=ddp_ms)).verdict == verdict


@pytest.mark.parametrize(
    ("fsdp_ms", "compiled_bytes", "verdict"),
    [
        (10.7, 9, "confirmed"),
        (10.7, 11, "depends"),
        (6.0, 9, "depends"),
        (13.0, 11, "refuted"),
    ],
)
def test_sharded_training_is_faster_when_compiled(fsdp_ms, compiled_bytes, verdict):
    rows = training(fsdp_ms=fsdp_ms, compiled_bytes=compiled_bytes)
    judgement = judged("P21", training=rows)
    assert judgement.verdict == verdict
    assert judgement.value.value == pytest.approx(12 / fsdp_ms)
    assert judgement.also[f"speedup, default {BERT} bs=8 parallel=none"].value == 1.25


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (Status.OK, "refuted"),
        (Status.TIMEOUT, "confirmed"),
        (Status.UNSUPPORTED, "not measurable here"),
        (Status.OOM, "not measured yet"),
    ],
)
def test_whether_a_graph_can_be_captured_on_two_gpus(status, verdict):
    cells = [row(SMALL, 1, mode, "tp2", status=status, reason="why") for mode in DECODING]
    single = [row(SMALL, 1, "cuda-graph", "none")]
    assert judged("S19", decode=cells + single, wide=cells).verdict == verdict


@pytest.mark.parametrize("gpus", [0, 1])
@pytest.mark.parametrize("claim", CLAIMS)
def test_claims_about_two_gpus_need_them(claim, gpus):
    judgement = judged(claim, gpus)
    assert (judgement.verdict, judgement.reason) == ("not measurable here", NO_SECOND_GPU)


def test_a_failed_cell_leaves_its_statements_open():
    rows = [
        row(SMALL, 1, "cuda-graph", "tp2", status="unsupported", reason="too few GPUs")
        if result.bs == 1 and result.mode == "cuda-graph" and "parallel" in result.params
        else result
        for result in DECODE
    ]
    judgement = judged("P17", decode=rows, wide=SEVEN)
    assert judgement.verdict == "undecided"
    assert "too few GPUs" in judgement.reason
