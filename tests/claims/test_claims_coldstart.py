"""The experiment about cold starts: what its claims say of rows."""

import judging
import pytest
from made_sweeps import a_result

from effbench.claims.definition import find
from effbench.claims.run import NO_CUDA

(EXPERIMENT,) = find(["coldstart"])
CLAIMS = [claim.id for claim in EXPERIMENT.claims]
#: Seconds to the first answer by mode and cache, as the claims say; the imports take 1 s of them.
AS_CLAIMED = {
    ("eager", "none"): 2.0,
    ("default", "none"): 20.0,
    ("default", "folder"): 8.0,
    ("default", "bundle"): 8.0,
    ("regional", "none"): 4.0,
    ("aot-inductor", "package"): 2.0,
}


def row(mode, cache, seconds, **facts):
    """A row whose times have intervals of ± 1 %."""
    known = {
        "sweep_id": "s",
        "environment_id": "here",
        "model": "gpt2",
        "phase": "coldstart",
        "mode": mode,
        "cell_key": f"{mode}{cache}",
        "params": {"model": {"name": "gpt2"}, "mode": {"name": mode}, "bs": 1, "cache": cache},
        "cold_s": seconds,
        "cold_ci_low_s": 0.99 * seconds,
        "cold_ci_high_s": 1.01 * seconds,
        "cold_interpreter_s": 0.0,
        "cold_imports_s": 1.0,
        "cold_device_s": 0.0,
        "cold_build_s": 0.0,
        "cold_load_s": 0.2,
        "cold_trace_s": 0.0,
        "cold_compile_s": max(seconds - 2.0, 0.0),
        "cache_reuse": "whole",
        "latency_ms": 1.0,
        "latency_ci_low_ms": 0.99,
        "latency_ci_high_ms": 1.01,
    }
    return a_result(**known | facts)


def judged(claim, seconds=(), facts=(), gpus=1):
    """The judgement of rows as claimed, but for these seconds and facts by mode and cache."""
    rows = []
    for case, claimed in AS_CLAIMED.items():
        rows.append(row(*case, dict(seconds).get(case, claimed), **dict(facts).get(case, {})))
    return judging.judged(claim, gpus, rungs=rows, packages=rows)


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_was_published_is_confirmed(claim):
    assert judged(claim).verdict == "confirmed"


@pytest.mark.parametrize(
    ("claim", "case", "seconds", "verdict"),
    [
        ("P22", ("default", "bundle"), 15.0, "refuted"),
        ("P22", ("default", "bundle"), 5.0, "refuted"),
        ("P22", ("default", "bundle"), 10.0, "undecided"),
        ("P23", ("default", "bundle"), 12.0, "depends"),
        ("P24", ("default", "bundle"), 2.5, "refuted"),
        ("P25", ("regional", "none"), 8.0, "depends"),
        ("P26", ("aot-inductor", "package"), 9.0, "refuted"),
    ],
)
def test_other_times_contradict(claim, case, seconds, verdict):
    assert judged(claim, {case: seconds}).verdict == verdict


@pytest.mark.parametrize(
    ("claim", "case", "facts"),
    [
        ("P23", ("default", "folder"), {"cache_reuse": "part"}),
        (
            "P25",
            ("regional", "none"),
            {"latency_ms": 2.0, "latency_ci_low_ms": 1.9, "latency_ci_high_ms": 2.1},
        ),
    ],
)
def test_other_facts_contradict(claim, case, facts):
    assert judged(claim, facts={case: facts}).verdict == "depends"


def test_parts_of_the_answer_are_shown():
    judgement = judged("P26")
    assert judgement.also["gpt2: loading the package (s)"].value == pytest.approx(0.2)


@pytest.mark.parametrize("claim", CLAIMS)
def test_claims_need_a_gpu(claim):
    judgement = judged(claim, gpus=0)
    assert (judgement.verdict, judgement.reason) == ("not measurable here", NO_CUDA)
