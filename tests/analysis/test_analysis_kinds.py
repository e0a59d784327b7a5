"""What an expression can give is known before there are rows, and no more is refused than cannot be."""

from __future__ import annotations

import time

import pytest

from effbench.analysis.expression import ExpressionError, _Evaluator
from effbench.analysis.kinds import _Kinds, kind_of, need_condition, need_figure
from effbench.reproduce.experiment import KINDS


def visitors(of):
    return {name for name in dir(of) if name.startswith("visit_")}


def test_all_of_the_language_is_known():
    assert visitors(_Kinds) == visitors(_Evaluator)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("latency_ms", "a number for each row"),
        ("mode", "a text for each row"),
        ("width", "anything for each row"),
        ("speedup[mode == 'eager' and bs <= 8]", "a number for each row"),
        ("-latency_ms / 2", "a number for each row"),
        ("not bs > 1", "a condition for each row"),
        ("only(mode[bs == 1])", "a text"),
        ("1 < value <= 3", "a condition"),
        ("'cuda' in mode", "a condition for each row"),
        ("all(values(evidence.calls, 'steady'))", "a condition"),
        ("evidence.calls['a part'].list[0]", "anything"),
        ("[evidence.a.x, 2]", "a list"),
        ("fact('capture_s')[width == 16]", "anything for each row"),
        ("share(relative(latency_ms, 'mode', 'eager') > 1)", "a number"),
        ("len(mode)", "a number"),
    ],
)
def test_kinds(text, kind):
    assert str(kind_of(text, KINDS)) == kind


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bs.real == 1", "'bs' has no parts: only evidence has"),
        ("max(mode)", "'mode' is a text for each row; it is max"),
        ("all(latency_ms)", "'latency_ms' is a number for each row; it is all"),
        ("mode > 1", "only numbers are larger and smaller"),
        ("latency_ms and bs > 1", "a condition is meant"),
        ("not latency_ms", "`not` takes a condition"),
        ("speedup[bs]", "a column takes a condition on rows in brackets"),
        ("speedup[0]", "a column takes a condition on rows in brackets"),
        ("'text'[0]", "'text'\" is a text"),
        ("relative(3, 'mode', 'eager')", "'3' is a number; it is relative"),
        ("bs in 3", "`in` takes a list or a text"),
        ("values(latency_ms, 'a')", "it is values"),
        ("fact(3)", "it is fact"),
    ],
)
def test_what_can_never_be_evaluated(text, said):
    with pytest.raises(ExpressionError) as caught:
        kind_of(text, KINDS)
    assert said in str(caught.value)


def test_a_figure_is_one_number_and_a_condition_one_truth():
    for text in ("max(latency_ms)", "evidence.a.b", "evidence.a.b > 1", "only(width[bs == 1])", "share(bs > 1)"):
        need_figure(text, KINDS)
    for text in ("value > 1", "evidence.a.b", "all(bs > 1)", "only((bs > 1)[bs == 1])", "True"):
        need_condition(text, KINDS)
    for text in ("latency_ms", "mode", "only(mode)", "[1, 2]", "evidence", "'a'"):
        with pytest.raises(ExpressionError, match="one number is meant"):
            need_figure(text, KINDS)
    for text in ("latency_ms > 1", "max(latency_ms)", "'a'", "[True]", "evidence"):
        with pytest.raises(ExpressionError, match="one condition is meant"):
            need_condition(text, KINDS)


def test_nesting_costs_no_time():
    began = time.perf_counter()
    kind_of("max(" * 25 + "latency_ms" + ")" * 25 + " < 1 < " + "abs(" * 25 + "2" + ")" * 25, KINDS)
    assert time.perf_counter() - began < 1
