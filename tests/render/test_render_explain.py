"""The bars of a waterfall, and the text of kernels that changed."""

from itertools import pairwise

import pytest

from effbench.analysis.explain import Term
from effbench.analysis.kernel_changes import ChangeKind, KernelChange
from effbench.analysis.kernel_classes import KernelClass
from effbench.render.explain import bar, half_width, label_of, row_of
from effbench.stats.intervals import Interval


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0.0, 4.0, "█" * 40),
        (1.0, 2.0, "·" * 10 + "█" * 10),
        (2.0, 1.0, "·" * 10 + "▒" * 10),
        (1.0, 1.001, "·" * 10 + "▏"),
        (4.0, 4.0, "·" * 40 + "▏"),
    ],
)
def test_bars(start, end, expected):
    assert bar(start, end, scale=10) == expected


def test_each_bar_begins_where_the_one_before_it_ends():
    levels = [0.0, 1.3, 0.7, 2.9, 2.9, 0.2]
    for start, end in pairwise(levels):
        edges = {round(level * 13) for level in (start, end)}
        drawn = bar(start, end, scale=13)
        assert drawn.count("·") == min(edges)
        assert len(drawn) == max(max(edges), min(edges) + 1)


def test_numbers():
    row = row_of("x", Term("x", 0.5, 0.25, Interval(-0.25)), digits=2)
    assert [row[name] for name in ("label", "first", "second")] == ["x", "0.50", "0.25"]
    assert (row["difference"].text, row["difference"].tone) == ("-0.25", "good")
    nearly_0 = row_of("x", Term("x", 0.0, -1e-9, Interval(-1e-9)), digits=3)
    assert nearly_0["difference"].text == "+0.000"
    assert half_width(Interval(1.0, 0.5, 1.5), 2) == "± 0.50"
    assert half_width(Interval(1.0), 2) == ""


@pytest.mark.parametrize(
    ("names", "into", "expected"),
    [
        (("gelu", ""), KernelClass.PRODUCTS, "3 fused into matrix products: gelu"),
        (("gelu", ""), None, "3 fused: gelu"),
        (("a", "b"), None, "3 fused: a → b"),
        (("a", "a"), None, "3 fused: a"),
    ],
)
def test_labels_of_kernels(names, into, expected):
    change = KernelChange(ChangeKind.FUSED, KernelClass.POINTWISE, *names, into=into, count=3)
    assert label_of(change) == expected
