"""Capture lists and the choice of a bucket."""

import random
from collections import Counter

import pytest

from effbench.core.buckets import PRESETS, bucket_of, capture_sizes, usage
from effbench.core.errors import ConfigError


@pytest.mark.parametrize(
    ("buckets", "largest", "end"),
    [
        ("sglang", 30, [16, 24, 30]),
        ("sglang", 24, [16, 24]),
        ("sglang", 300, [248, 256]),
        ("vllm", 3, [1, 2, 3]),
        ("powers-of-two", 48, [32, 48]),
        ("no-padding", 20, [19, 20]),
        ("no-padding", 48, [31, 32]),
        ("vllm", 1, [1]),
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


@pytest.mark.parametrize("preset", PRESETS)
def test_usage_is_the_sum_over_calls(preset):
    draw = random.Random(preset)
    sizes = [draw.randint(1, 70) for _ in range(300)]
    captured = capture_sizes(preset, sizes)
    found = usage(captured, Counter(sizes))
    taken = [bucket_of(captured, raw) for raw in sizes]
    assert found.calls == 300
    assert found.fallbacks == taken.count(None)
    assert found.rows == sum(bucket or 0 for bucket in taken)
    assert found.padded_rows == sum(
        bucket - raw for bucket, raw in zip(taken, sizes, strict=True) if bucket
    )
    assert found.by_bucket == {bucket: taken.count(bucket) for bucket in captured}
