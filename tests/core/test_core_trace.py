"""`core/trace.py`: what the database keeps of a trace, and what it refuses."""

import json
import math
import zlib

import pytest

from effbench.core.trace import DamagedTraceError, Kernel, Trace

KERNELS = (
    Kernel("gemm", "grid [1], block [128]", "aten::addmm", 0.25, 0.25, 0.0),
    Kernel("gelu", "grid [8], block [256]", None, 0.125, 0.1, 0.5),
    Kernel("gemm", "grid [1], block [128]", "aten::addmm", 0.2, 0.2, 0.05),
)
TRACE = Trace("cuda", 12, 1.5, 0.3, 0.1, 40, KERNELS, {"guards": 0.02})


def test_a_packed_trace_is_the_same_trace():
    assert Trace.unpacked(TRACE.packed()) == TRACE


def test_the_times_of_a_call_are_its_latency():
    sum_ms = TRACE.before_ms + TRACE.busy_ms + TRACE.gap_ms + TRACE.after_ms
    assert sum_ms == pytest.approx(TRACE.latency_ms)


def test_a_name_is_stored_once():
    many = Trace("cuda", 12, 1.5, 0.3, 0.1, 40, KERNELS * 500, {})
    assert json.dumps(many.to_json()).count("aten::addmm") == 1


def test_1500_kernels_need_less_than_10_kilobytes():
    many = [
        Kernel(f"kernel {number % 40}", f"grid [{number % 7}]", "aten::mm", number / 7e3, 0.1, 0.01)
        for number in range(1500)
    ]
    assert len(Trace("cuda", 12, 1.5, 0.3, 0.1, 40, tuple(many), {}).packed()) < 10_000


def without(key):
    return {name: value for name, value in TRACE.to_json().items() if name != key}


@pytest.mark.parametrize(
    "data",
    [
        {},
        [],
        None,
        without("kinds"),
        TRACE.to_json() | {"ms": [1.0]},
        TRACE.to_json() | {"order": [0, 1, 9]},
        TRACE.to_json() | {"kinds": [["gemm"]]},
        TRACE.to_json() | {"host": 3},
        TRACE.to_json() | {"latency_ms": "fast"},
        TRACE.to_json() | {"before_ms": math.nan},
        TRACE.to_json() | {"gap_ms": [0.0, math.inf, 0.0]},
        TRACE.to_json() | {"before_ms": -1e308},
        TRACE.to_json() | {"after_ms": 10**400},
        TRACE.to_json() | {"calls": math.inf},
        TRACE.to_json() | {name: [0] * 10_001 for name in ("order", "ms", "added_ms", "gap_ms")},
    ],
)
def test_other_data_are_no_trace(data):
    with pytest.raises(DamagedTraceError, match="no trace"):
        Trace.from_json(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"text",
        "text",
        zlib.compress(b"text"),
        zlib.compress(b"[" * 100_000),
        TRACE.packed()[:-20],
    ],
)
def test_other_bytes_are_no_trace(data):
    with pytest.raises(DamagedTraceError, match="no trace"):
        Trace.unpacked(data)
