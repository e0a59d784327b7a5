"""Verdicts: what rows and evidence say of a claim, and what they leave open."""

from __future__ import annotations

import math

import pytest

from effbench.analysis.claims import Claim, Verdict, judge
from effbench.analysis.expression import ExpressionError
from effbench.analysis.rows import Missing, Rows


def row(mode="cuda-graph", speedup=2.0, bs=1, model="mlp", status="ok", spread=0.05, **more):
    alone = spread is None or mode == "eager"
    found = {
        "sweep_id": "s", "environment_id": "here", "model": model, "bs": bs, "mode": mode, "status": status,
        "reason": None if status == "ok" else "why", "trials": 3, "latency_ms": 1.0, "latency_ci_low_ms": 0.9,
        "latency_ci_high_ms": 1.1, "speedup": speedup, "speedup_ci_low": None if alone else speedup - spread,
        "speedup_ci_high": None if alone else speedup + spread, "graph_pool_bytes": 5, "cell_key": f"{model}{bs}{mode}",
        "params": {"model": {"name": model}, "mode": {"name": mode}, "bs": bs},
    }  # fmt: skip
    return {**found, **({"speedup": None, "latency_ms": None} if status != "ok" else {}), **more}


def eager(**more):
    return row("eager", 1.0, **more)


FASTER = Claim("P1", "a graph is faster", value="geomean(speedup[mode == 'cuda-graph'])", unit="×", holds="value > 1.1")


def of(rows, claim=FASTER, evidence=None):
    return judge(claim, Rows(rows, {}, evidence))


@pytest.mark.parametrize(
    "speedup, verdict, reason",
    [
        (2.0, Verdict.CONFIRMED, "holds"),
        (1.0, Verdict.REFUTED, "does not hold"),
        (1.12, Verdict.UNDECIDED, "the interval leaves it open"),
    ],
)
def test_a_claim_follows_its_interval(speedup, verdict, reason):
    found = of([eager(), row(speedup=speedup)])
    assert (found.verdict, found.reason) == (verdict, reason)
    assert found.value.value == pytest.approx(speedup)
    assert found.unit == "×"


def test_one_trial_decides_nothing():
    found = of([eager(), row(speedup=9.0, spread=None)])
    assert found.verdict == Verdict.UNDECIDED
    assert "single trial" in found.reason


def test_one_trial_decides_nothing_and_is_the_reason_also_without_a_figure():
    rows = [eager(), row(speedup=9.0, spread=None)]
    assert "single trial" in of(rows, Claim("x", "x", holds="all(speedup[mode == 'cuda-graph'] > 1)")).reason
    both = Claim("x", "x", holds={"faster": "all(speedup[mode == 'cuda-graph'] > 1)", "all ran": "len(speedup) == 2"})
    assert of(rows, both).reason == (
        "holds for all ran; open for faster "
        "(the figure has no interval: a single trial of a cell says nothing of its spread)"
    )
    two = Claim("x", "x", holds={"faster": "all(speedup[mode == 'cuda-graph'] > 1.99)", "all ran": "len(speedup) == 2"})
    assert of([eager(), row()], two).reason == "holds for all ran; open for faster"


def test_a_figure_that_is_not_defined_decides_nothing():
    claim = Claim("x", "x", value="mean(latency_ms) / (mean(bs) - 1)", holds="value > 1")
    found = of([eager()], claim)
    assert found.verdict == Verdict.UNDECIDED
    assert math.isnan(found.value.value)
    assert "not defined" in found.reason


def test_parts_that_differ():
    claim = Claim("P1", "x", value=FASTER.value, holds=FASTER.holds, each=("model", "bs"))
    rows = [eager(), row(speedup=2.0), eager(bs=8), row(speedup=1.0, bs=8), eager(bs=64), row(speedup=1.11, bs=64)]
    found = of(rows, claim)
    assert found.verdict == Verdict.DEPENDS
    assert found.reason == "holds for mlp bs=1; not for mlp bs=8; open for mlp bs=64"
    assert [part.truth for part in found.parts] == [True, False, None]
    assert found.parts[1].value.value == pytest.approx(1)


def test_a_figure_of_each_part_need_not_be_one_of_all():
    value = "only(speedup[mode == 'cuda-graph'])"
    claim = Claim("P1", "x", value=value, holds="value > 1.1", each=("bs",))
    found = of([eager(), row(speedup=2.0), eager(bs=8), row(speedup=1.0, bs=8)], claim)
    assert (found.verdict, found.reason) == (Verdict.DEPENDS, "holds for bs=1; not for bs=8")
    assert found.value is None
    assert [part.value.value for part in found.parts] == [2.0, 1.0]
    two = [eager(), row(), row(model="gpt2")]
    with pytest.raises(ExpressionError, match="the condition leaves 2"):
        of(two, claim)
    with pytest.raises(ExpressionError, match="the condition leaves 2"):
        of(two, Claim("P1", "x", value=value, holds="value > 1.1"))


def test_parts_that_agree():
    claim = Claim("P1", "x", value=FASTER.value, holds=FASTER.holds, each=("bs",))
    rows = [row(bs=bs) for bs in range(1, 10)]
    found = of(rows, claim)
    assert found.verdict == Verdict.CONFIRMED
    assert found.reason.endswith("bs=6 and 3 more")
    assert of([row(bs=1), row(bs=2, speedup=1.11)], claim).verdict == Verdict.UNDECIDED
    assert of([row(bs=1, speedup=1.0), row(bs=2, speedup=0.5)], claim).verdict == Verdict.REFUTED


def test_failed_rows_are_left_out_and_named():
    rows = [eager(), row(), *(row(bs=bs, status="error") for bs in (2, 4, 8, 16))]
    found = of(rows)
    assert found.verdict == Verdict.CONFIRMED
    assert found.reason == (
        "holds; left out: mlp bs 2 cuda-graph error, mlp bs 4 cuda-graph error, mlp bs 8 cuda-graph error"
        " and 1 more (why)"
    )
    every = Claim("x", "x", holds="all(speedup[mode == 'cuda-graph'] > 1.5)")
    assert of(rows, every).verdict == Verdict.CONFIRMED
    part = Claim("x", "x", value=FASTER.value, holds=FASTER.holds, each=("bs",))
    found = of(rows, part)
    assert found.verdict == Verdict.CONFIRMED
    assert [part.label for part in found.parts] == ["bs=1"]


def test_failed_rows_are_told_apart_by_the_names_of_the_experiment():
    rows = [eager(), row(), *(row(status="oom", bs=8) for _ in range(2))]
    for number, one in enumerate(rows):
        one["params"] = {**one["params"], "mode": {"name": one["mode"], **({"pool": f"p{number}"} if number else {})}}
    found = judge(FASTER, Rows(rows, {"pool": "mode.pool"}))
    assert "left out: mlp bs 8 cuda-graph pool=p2 oom, mlp bs 8 cuda-graph pool=p3 oom (why)" in found.reason


def test_a_figure_that_no_row_has_is_not_a_row_that_was_not_measured():
    rows = [eager(graph_pool_bytes=None), row()]
    claim = "all(relative({}, 'mode', '{}') > 1)"
    for column, mode, said in (
        ("graph_pool_bytes", "eager", "no row with mode = eager has this figure"),
        ("graph_pool_bytes", "default", "no row with mode = default was measured"),
    ):
        assert of(rows, Claim("x", "x", holds=claim.format(column, mode))).reason == said


def test_rows_of_modes_that_are_not_meant_are_not_named():
    rows = [eager(), row(), row("default", status="error"), row("compile+graph", status="oom")]
    assert of(rows).reason == "holds"
    other = Claim("x", "x", value="geomean(speedup[mode != 'eager'])", holds="value > 1.1")
    assert "default error, mlp bs 1 compile+graph oom" in of(rows, other).reason
    several = Claim("x", "x", holds="max(speedup[mode in ['cuda-graph', 'default']]) > 1")
    assert of(rows, several).reason == "holds; left out: mlp bs 1 default error (why)"


@pytest.mark.parametrize("status, verdict", [("unsupported", Verdict.NOT_MEASURABLE), ("oom", Verdict.NOT_MEASURED)])
@pytest.mark.parametrize("each", [(), ("bs",)])
def test_nothing_was_measured(status, verdict, each):
    rows = [eager(), row(status=status), row("default", speedup=1.5)]
    found = of(rows, Claim("P1", "x", value=FASTER.value, holds=FASTER.holds, each=each))
    assert found.verdict == verdict
    assert found.reason.endswith(f"left out: mlp bs 1 cuda-graph {status} (why)")
    assert found.value is None


def test_unsupported_everywhere():
    rows = [eager(), row(status="unsupported")]
    claim = Claim("x", "of all rows", holds="share(speedup > 1.1) > 0.5")
    found = of(rows, claim)
    assert (found.verdict, found.reason) == (Verdict.NOT_MEASURABLE, "why")
    of_eager = Claim("x", "of what every row has", holds="all(latency_ms > 0.5)")
    assert of(rows, of_eager).verdict == Verdict.CONFIRMED


def test_no_rows_at_all():
    assert of([]).verdict == Verdict.NOT_MEASURED


def test_not_measurable_says_why():
    found = of([], Claim("S13", "x", not_measurable="it is about code"))
    assert (found.verdict, found.reason) == (Verdict.NOT_MEASURABLE, "it is about code")


class TestSeveralStatements:
    HOLDS = {"a graph is faster": "value > 1.1", "it needs memory": "sum(graph_pool_bytes) > 0"}  # noqa: RUF012

    def of(self, rows, evidence=None, **holds):
        return of(rows, Claim("P16", "x", value=FASTER.value, holds={**self.HOLDS, **holds}), evidence)

    def test_all_hold(self):
        found = self.of([eager(), row(speedup=2.0)])
        assert found.verdict == Verdict.CONFIRMED
        assert found.reason == "holds for a graph is faster, it needs memory"
        assert [part.label for part in found.parts] == list(self.HOLDS)

    def test_one_does_not(self):
        found = self.of([eager(), row(speedup=1.0)])
        assert found.verdict == Verdict.DEPENDS
        assert found.reason == "holds for it needs memory; not for a graph is faster"

    def test_none_holds(self):
        assert self.of([eager(graph_pool_bytes=0), row(speedup=1.0, graph_pool_bytes=0)]).verdict == Verdict.REFUTED

    def test_what_was_not_measured_leaves_it_open(self):
        evidence = {"limits": Missing("unsupported: no CUDA here")}
        found = self.of([eager(), row()], evidence, more="evidence.limits.x")
        assert found.verdict == Verdict.UNDECIDED
        assert found.reason == (
            "holds for a graph is faster, it needs memory; not measured for more (unsupported: no CUDA here)"
        )

    def test_nothing_was_measured(self):
        claim = Claim("S2", "x", holds={"one": "evidence.limits.x", "other": "evidence.limits.y"})
        found = of([], claim, {"limits": Missing("unsupported: no CUDA here")})
        assert found.verdict == Verdict.NOT_MEASURABLE
        assert found.reason == "unsupported: no CUDA here"

    def test_in_each_part(self):
        claim = Claim("P16", "x", value=FASTER.value, holds=self.HOLDS, each=("bs",))
        rows = [eager(), row(speedup=2.0), eager(bs=8), row(speedup=1.0, bs=8)]
        found = of(rows, claim)
        assert found.verdict == Verdict.DEPENDS
        assert found.reason.endswith("not for a graph is faster: bs=8")


class TestEvidence:
    claim = Claim("S1", "x", value="evidence.warm.fewest", holds="value == 2 and evidence.warm.works")

    def judged(self, **facts):
        return of([], self.claim, {"warm": facts})

    def test_facts(self):
        assert self.judged(fewest=2, works=True).verdict == Verdict.CONFIRMED
        assert self.judged(fewest=3, works=True).verdict == Verdict.REFUTED
        assert self.judged(fewest=2, works=False).verdict == Verdict.REFUTED

    def test_a_fact_that_is_null(self):
        found = self.judged(fewest=None, works=True)
        assert found.verdict == Verdict.NOT_MEASURED
        assert "evidence.warm.fewest has no value" in found.reason

    @pytest.mark.parametrize(
        "reason, verdict",
        [("unsupported: needs CUDA", Verdict.NOT_MEASURABLE), ("error: ValueError: no", Verdict.NOT_MEASURED)],
    )
    def test_evidence_that_could_not_be_gathered(self, reason, verdict):
        found = of([], self.claim, {"warm": Missing(reason)})
        assert (found.verdict, found.reason) == (verdict, reason)

    @pytest.mark.parametrize(
        "part, verdict, reason",
        [
            ({"unsupported": "no CUDA here"}, Verdict.NOT_MEASURABLE, "unsupported: no CUDA here"),
            ({"succeeded": False, "error_type": "timeout", "error": "180 s"}, Verdict.NOT_MEASURED, "timeout: 180 s"),
        ],
    )
    def test_a_part_that_could_not_be_shown(self, part, verdict, reason):
        evidence = {"triton": {"cpu": {"succeeded": True, "compiles": True}, "cuda": part}}
        alone = of([], Claim("x", "x", holds="evidence.triton.cuda.compiles"), evidence)
        assert (alone.verdict, alone.reason) == (verdict, reason)
        holds = {"the CPU": "evidence.triton.cpu.compiles", "a GPU": "evidence.triton.cuda.compiles"}
        both = of([], Claim("S16", "x", holds=holds, also={"more": "evidence.triton.cuda.more"}), evidence)
        assert both.verdict == Verdict.UNDECIDED
        assert both.reason == f"holds for the CPU; not measured for a GPU ({reason})"
        assert both.also == {"more": None}

    def test_other_evidence_that_is_missing_does_not_matter(self):
        found = of([], self.claim, {"warm": Missing("error: no"), "other": Missing("unsupported: CUDA")})
        assert found.verdict == Verdict.NOT_MEASURED

    def test_rows_that_failed_do_not_concern_it(self):
        found = of([row(status="error")], self.claim, {"warm": {"fewest": 2, "works": True}})
        assert (found.verdict, found.reason) == (Verdict.CONFIRMED, "holds")

    def test_facts_that_are_not_there_are_a_mistake(self):
        with pytest.raises(ExpressionError, match="it has fewest"):
            self.judged(fewest=2)


def test_further_figures():
    claim = Claim("P1", "x", holds="all(speedup >= 1)", also={"best": "max(speedup)", "none": "max(speedup[bs == 99])"})
    found = of([eager(), row()], claim)
    assert found.also["best"].value == 2
    assert found.also["none"] is None


@pytest.mark.parametrize(
    "claim, said",
    [
        (Claim("x", "x", value="speedup", holds="value > 1"), "no single number"),
        (Claim("x", "x", holds="speedup > 1"), "no single condition"),
        (Claim("x", "x", holds="mean(speedup)"), "no single condition"),
        (Claim("x", "x", holds="value > 1"), "no name 'value'"),
    ],
)
def test_claims_that_ask_for_no_condition(claim, said):
    with pytest.raises(ExpressionError, match=said):
        of([eager(), row()], claim)
