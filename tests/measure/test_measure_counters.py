"""What Dynamo and Inductor count, and what they only log."""

import logging
import warnings
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo
import torch._inductor.output_code as output_code
from torch._inductor import cudagraph_utils
from torch._inductor.scheduler import Scheduler
from torch.nn.attention.flex_attention import flex_attention

from effbench.measure import counters

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
COMPILED = counters.Counters(1, 0, 0, 0, 0, 0)


TRACE = """  File "/home/x/main.py", line 7, in serve
    net(x)
  File "/home/x/nets.py", line 31, in forward
    x.clamp_(-1, 1)
"""


def logging_state():
    loggers = [logging.getLogger(name) for name in counters.LOGGERS]
    return [(logger.level, list(logger.handlers)) for logger in loggers]


@pytest.mark.parametrize(("asked", "is_degraded"), [(True, True), (False, False)])
def test_flex_attention_that_is_not_compiled(asked, is_degraded):
    x = torch.randn(1, 1, 4, 16)
    observer = counters.Observer(dynamo=False, flex=asked)
    with warnings.catch_warnings(action="ignore"), observer.watching_flex():
        flex_attention(x, x, x)
    reason = observer.degraded_reason(COMPILED, CPU)
    assert (reason is not None) == is_degraded
    assert "unfused" in str(reason) or not is_degraded


def test_inductors_own_call_is_caught():
    """And where an input is written to, in torch's own words. Nothing is left behind."""
    before = logging_state()
    written = cudagraph_utils.PlaceholderInfo("arg0_1", None, [], TRACE)
    skip = cudagraph_utils.log_cudagraph_skip_and_bump_counter
    with counters.Observer(dynamo=False) as observer:
        skip("skipping cudagraphs due to cpu device (arg0)\nmore")
        skip("skipping cudagraphs due to cpu device (arg0)\nmore")
        skip(cudagraph_utils.get_mutation_stack_trace([written], [0]))
    assert list(observer.cudagraph_skips) == [
        "skipping cudagraphs due to cpu device (arg0)",
        "skipping cudagraphs due to mutated inputs (1 instances).",
    ]
    read = counters.read()
    assert observer.degraded_reason(read, CUDA).startswith(
        "3 graph(s) ran without a CUDA graph: skipping cudagraphs due to cpu device (arg0)"
    )
    assert observer.degraded_reason(read, CPU) is None
    assert logging_state() == before


@pytest.mark.parametrize(
    ("reason", "guard"),
    [
        (
            (
                "0/1: self.n == 1     # self.n += 1  # my/net.py:6 in forward (HINT: a"
                " tensor.)\nUser stack trace:\n  …"
            ),
            "failed guard: self.n == 1",
        ),
        (
            "3/0: tensor 'x' size mismatch at index 0. expected 4, actual 8",
            "failed guard: tensor 'x' size mismatch at index 0. expected 4, actual 8",
        ),
    ],
)
def test_the_guard_in_a_reason_to_compile_again(reason, guard):
    assert counters.guard_of(reason) == guard


def test_dynamo_that_leaves_a_module_alone_is_a_reason():
    read = counters.Counters(
        0,
        1,
        0,
        0,
        0,
        0,
        {"a nested tensor": 1},
    )
    reason = "Dynamo compiled no graph: the module ran in eager mode: a nested tensor"
    assert counters.Observer().degraded_reason(read, CPU) == reason
    assert counters.Observer(dynamo=False).degraded_reason(read, CPU) is None


def test_dynamo_that_gives_up_is_a_reason():
    step = torch.compile(lambda x, n: x * n, backend="eager", dynamic=False)
    with counters.Observer() as observer:
        for n in range(torch._dynamo.config.recompile_limit + 2):
            step(torch.ones(2), n)
    reason = observer.fallback
    assert "recompile_limit" in reason
    assert reason.endswith("(8): failed guard: n == 7")
    assert observer.degraded_reason(counters.read(), CPU) == reason


@pytest.mark.parametrize(
    ("graphs", "hits", "misses", "state"),
    [(0, 0, 0, None), (1, 0, 0, "cold"), (1, 3, 0, "warm"), (1, 1, 1, "cold")],
)
def test_cold_or_warm_by_what_the_cache_says(graphs, hits, misses, state):
    assert counters.Counters(graphs, 0, 0, 0, hits, misses).cache_state == state


def graph(captured, parts=0, refused=(), devices=("cuda",)):
    """As much of a CompiledFxGraph as is looked at."""
    return SimpleNamespace(
        device_types=set(devices),
        partition_maps=None if captured is None else [object()] * captured,
        counter_deltas=Counter({"cudagraph_partitions": parts}),
        cudagraph_info=SimpleNamespace(cudagraph_fail_reasons=list(refused)),
    )


@pytest.mark.parametrize(
    ("graphs", "reason"),
    [
        ([graph(1)], None),
        ([graph(None, devices=("cpu",))], None),
        ([graph(1), graph(2, 3)], "1 of 4 parts ran outside a CUDA graph: so it logged"),
        ([graph(None)], "1 of 1 parts ran outside a CUDA graph: so it logged"),
        ([graph(1, refused=("overlap",))], "1 of 1 parts ran outside a CUDA graph: overlap"),
    ],
)
def test_what_was_left_out(graphs, reason):
    observer = counters.Observer()
    observer.cudagraph_skips = ["so it logged"]
    for each in graphs:
        observer.count(each)
    assert observer.degraded_reason(COMPILED, CUDA) == reason


@pytest.mark.parametrize(
    ("graphs", "reasons", "expected"),
    [
        ([graph(2, 3)], ["custom partition op: aten::mm.default"], "None"),
        ([graph(2, 3)], [], "None"),
        ([graph(0, 2)], ["custom partition op: aten::mm.default"], "2 of 2 parts"),
        ([graph(2, 4)], ["custom partition op: aten::mm", "cpu ops"], "cpu ops"),
    ],
)
def test_parts_that_a_mode_leaves_out(graphs, reasons, expected):
    observer = counters.Observer(leaves_parts=True)
    observer.part_reasons |= dict.fromkeys(reasons)
    for each in graphs:
        observer.count(each)
    assert expected in str(observer.degraded_reason(COMPILED, CUDA))


@pytest.mark.parametrize(
    ("graphs", "expected"),
    [
        ([graph(1)], "no CUDA graph was split: Inductor calls none of the operators my::op"),
        ([graph(1), graph(1)], "no CUDA graph was split"),
        ([graph(2, 3)], "None"),
        # one of two graphs has the operator
        ([graph(1), graph(2, 3)], "None"),
        ([graph(None, devices=("cpu",))], "None"),
    ],
)
def test_operators_to_split_at_that_no_graph_has(graphs, expected):
    observer = counters.Observer(leaves_parts=True, partition_ops=["my::op"])
    for each in graphs:
        observer.count(each)
    assert expected in str(observer.degraded_reason(COMPILED, CUDA))


def test_inductor_is_watched_only_meanwhile(monkeypatch):
    wrapped = []
    monkeypatch.setattr(
        output_code, "cudagraph_partition_post_compile", lambda *args: wrapped.append(args)
    )
    monkeypatch.setattr(Scheduler, "should_partition", lambda self, node: node)
    original = output_code.cudagraph_partition_post_compile, Scheduler.should_partition
    with counters.Observer() as observer:
        output_code.cudagraph_partition_post_compile([1], graph(0), "cudagraphs")
        for node in ("cpu ops", None, True, "all ops, as cudagraphs is disabled", "cpu ops"):
            assert Scheduler.should_partition(object(), node) is node
    assert len(wrapped) == 1
    reason = "1 of 1 parts ran outside a CUDA graph: cpu ops"
    assert observer.degraded_reason(COMPILED, CUDA) == reason
    assert (output_code.cudagraph_partition_post_compile, Scheduler.should_partition) == original
