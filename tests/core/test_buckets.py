"""Capture lists and the choice of a bucket."""

import pytest

from effbench.core.buckets import bucket_of, capture_sizes, usage
from effbench.core.errors import ConfigError


@pytest.mark.parametrize(
    ("buckets", "largest", "end"),
    [
        ("sglang", 30, [16, 24, 30]),
        ("sglang", 300, [248, 256]),
        ("vllm", 3, [1, 2, 3]),
        ("powers-of-two", 48, [32, 48]),
    ],
)
def test_a_preset_ends_at_the_largest_size(buckets, largest, end):
    assert capture_sizes(buckets, [1, largest])[-len(end) :] == end


def test_exact_and_given_lists():
    assert capture_sizes("exact", [7, 3, 7, 1]) == [1, 3, 7]
    assert capture_sizes([8, 2, 2, 64], [5]) == [2, 8, 64]


@pytest.mark.parametrize("buckets", ["sglnag", [], [0, 1], [1.5], [True], 8, None, {"a": 1}])
def test_refused_lists(buckets):
    with pytest.raises(ConfigError):
        capture_sizes(buckets, [4])


@pytest.mark.parametrize(("raw", "bucket"), [(1, 1), (2, 4), (4, 4), (5, 8), (8, 8), (9, None)])
def test_the_smallest_bucket_that_holds_a_batch(raw, bucket):
    assert bucket_of([1, 4, 8], raw) == bucket


def test_usage_is_the_sum_over_calls():
    found = usage([2, 4], [1, 2, 3, 3, 4, 5])
    assert found.calls == 6
    assert found.fallbacks == 1, "5 is larger than every bucket"
    assert found.padding_waste == (1 + 2 * 1) / (2 * 2 + 3 * 4)
