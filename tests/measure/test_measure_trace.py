"""`measure/trace.py`: traces of calls on the CPU, and of scripted events of a GPU."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor, nn

from effbench.core.errors import UnsupportedError
from effbench.core.trace import Kernel, Trace
from effbench.measure.trace import (
    CALL,
    FUSED_LOOPS,
    Call,
    Event,
    RecordedCalls,
    attention_kernels,
    averaged,
    collective_times,
    host_work,
    nest,
    record_calls,
    synchronised_calls,
    trace_of,
    traced,
    with_launchers,
)

CPU = torch.device("cpu")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32)
        self.last = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(nn.functional.gelu(self.first(x)))


class Sleepy(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        time.sleep(0.003)
        return self.last(x)


class Silent(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class Changing(nn.Module):
    """Every third call has one more operator."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = x + 1
        if self.calls % 3 == 0:
            x = x * 2
        return x


def trace_of_module(module: nn.Module):
    inputs = [((torch.randn(4, 32),), {})]
    with torch.inference_mode():
        recorded = record_calls(module.eval(), inputs, CPU, latency_ms=1.0)
    return trace_of(recorded)


def adds_up(trace) -> bool:
    sum_ms = trace.before_ms + trace.gap_ms + trace.busy_ms + trace.after_ms
    rounded_ms = 1e-6 * (len(trace.kernels) + 2)
    return sum_ms == pytest.approx(trace.latency_ms, abs=rounded_ms)


def names(trace) -> list[str]:
    return [kernel.name for kernel in trace.kernels]


def test_the_operators_of_an_eager_call_in_order_and_their_times_add_up():
    trace = trace_of_module(Net())
    assert [name for name in names(trace) if name in ("aten::addmm", "aten::gelu")] == [
        "aten::addmm",
        "aten::gelu",
        "aten::addmm",
    ]
    assert {kernel.operator for kernel in trace.kernels} == {"aten::linear", "aten::gelu"}
    assert adds_up(trace)


def test_time_that_no_operator_takes_is_a_gap():
    trace = trace_of_module(Sleepy())
    longest = max(trace.kernels, key=lambda kernel: kernel.gap_ms)
    assert (longest.name, longest.gap_ms > 3) == ("aten::linear", True)
    assert trace.host["Python"] > 3
    assert adds_up(trace)


def test_the_loops_of_a_compiled_graph_are_one_kernel():
    trace = trace_of_module(torch.compile(Net().eval()))
    assert names(trace)[0] == FUSED_LOOPS
    assert names(trace).count("aten::addmm") == 2
    assert "aten::gelu" not in names(trace)
    assert trace.host["guards"] > 0
    assert adds_up(trace)


def test_of_calls_that_differ_the_most_usual_ones_count():
    found = names(trace_of_module(Changing()))
    assert "aten::add" in found
    assert "aten::mul" not in found


def test_a_step_without_operators_cannot_be_traced():
    with pytest.raises(UnsupportedError, match="the profiler recorded nothing"):
        trace_of_module(Silent())


def test_a_step_with_too_many_kernels_cannot_be_traced(monkeypatch):
    monkeypatch.setattr("effbench.measure.trace.MOST_KERNELS", 3)
    with pytest.raises(UnsupportedError, match="more than 3 kernels"):
        trace_of_module(Net())


def test_an_exception_of_the_step_ends_the_trace():
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trace_of_module(Broken())
    assert adds_up(trace_of_module(Net()))  # the profiler has stopped


# --- scripted events, in ns

LAUNCHED = '"grid": [8, 1, 1], "stream": 7, "block": [128, 1, 1], "shared memory": 0'


def kernel(name: str, start: int, end: int, number: int = 0) -> Event:
    return Event(name, start, end, number, LAUNCHED)


def gpu_trace(end: int, *gpu: Event, start: int = 0):
    return traced(Call(Event(CALL, start, end), gpu=gpu), "cuda")


def recorded(end: int, host, gpu=()) -> Call:
    whole = Event(CALL, 0, end)
    nest([whole, *host])
    return Call(whole, host, gpu)


def test_kernels_gaps_and_host_time_of_a_gpu_call():
    trace = gpu_trace(9000, kernel("a", 3000, 4000), kernel("b", 4500, 6000), start=1000)
    assert (trace.before_ms, trace.after_ms) == (0.002, 0.003)
    assert [(k.ms, k.gap_ms) for k in trace.kernels] == [(0.001, 0.0), (0.0015, 0.0005)]
    assert trace.kernels[0].launch == "grid [8, 1, 1], block [128, 1, 1], shared memory 0"


def test_kernels_at_the_same_time_count_once():
    gpu = [kernel("a", 1000, 4000), kernel("b", 2000, 3000), kernel("c", 3500, 5000)]
    trace = gpu_trace(6000, *gpu)
    assert [k.added_ms for k in trace.kernels] == [0.003, 0.0, 0.001]
    assert [k.ms for k in trace.kernels] == [0.003, 0.001, 0.0015]
    assert trace.after_ms == 0.001


def test_operators_of_other_kernels_are_not_taken():
    host = [Event("aten::mm", 0, 90, 1)]
    trace = gpu_trace(100, kernel("a", 10, 20))
    other = with_launchers(trace, recorded(100, host, [kernel("b", 10, 20, 1)]))
    assert [k.operator for k in other.kernels] == [None]


def test_which_operator_launched_a_kernel():
    host = [
        Event("aten::linear", 0, 90, 1),
        Event("aten::addmm", 10, 80, 2),
        Event("cudaLaunchKernel", 20, 30, 7),
        Event("aten::scaled_dot_product_attention", 100, 300, 3),
        Event("aten::bmm", 110, 200, 4),
        Event("## Call CompiledFxGraph abc ##", 400, 500, 5),
        Event("cudaGraphLaunch", 410, 420, 8),
    ]
    gpu = [kernel("a", 50, 60, 2), kernel("b", 150, 160, 4), kernel("c", 450, 460, 5)]
    trace = with_launchers(gpu_trace(500, *gpu), recorded(500, host, gpu))
    assert [(k.name, k.operator) for k in trace.kernels] == [
        ("a", "aten::addmm"),
        ("b", "aten::scaled_dot_product_attention"),
        ("c", None),
    ]


@pytest.mark.parametrize("number", [4, 5])
def test_a_call_lies_between_two_synchronisations(number):
    host = [Event("cudaDeviceSynchronize", 10 * n, 10 * n + 5, n) for n in range(number)]
    calls = [(call.start, call.end) for call in synchronised_calls(host, calls=2)]
    assert calls == [(5, 15), (25, 35)]


@pytest.mark.parametrize("number", [3, 6, 8])
def test_a_step_that_synchronises_has_no_calls(number):
    host = [Event("cudaDeviceSynchronize", 10 * n, 10 * n + 5, n) for n in range(number)]
    with pytest.raises(UnsupportedError, match="synchronises"):
        synchronised_calls(host, calls=2)


def test_host_work_is_without_what_it_calls():
    host = [
        Event("TorchDynamo Cache Lookup", 100, 300, 1),
        Event("Torch-Compiled Region: 0/0", 400, 1400, 2),
        Event("aten::mm", 600, 900, 3),
        Event("cudaLaunchKernel", 700, 800, 4),
    ]
    work = host_work([recorded(2000, host)])
    assert work == pytest.approx(
        {
            "Python": 0.0008,
            "compiled wrapper": 0.0007,
            "guards": 0.0002,
            "operators": 0.0002,
            "kernel launches": 0.0001,
        }
    )


def test_the_time_of_an_operator_is_without_those_that_it_calls():
    host = [
        Event("aten::linear", 100, 500, 1),
        Event("aten::addmm", 200, 400, 2),
        Event("aten::gelu", 600, 700, 3),
        Event("cudaLaunchKernel", 620, 630, 4),
    ]
    trace = traced(recorded(1000, host), "cpu")
    assert [(k.name, k.operator, k.ms, k.gap_ms) for k in trace.kernels] == [
        ("aten::linear", "aten::linear", 0.0002, 0.0),
        ("aten::addmm", "aten::linear", 0.0002, 0.0),
        ("aten::gelu", "aten::gelu", 0.00009, 0.0001),
    ]
    assert (trace.before_ms, trace.after_ms) == (0.0001, 0.0003)


def test_the_faster_half_of_the_calls_counts():
    calls = [gpu_trace(end, kernel("a", 10, 20)) for end in (1000, 1100, 5000, 9000)]
    trace = averaged(calls)
    assert trace.latency_ms == pytest.approx(0.00105)
    assert trace.calls == 4
    assert adds_up(trace)


ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def times_of_collectives(device, *events):
    """Those of a call of 10 ms with these events, each a name with its start and end in ms."""
    made = [Event(name, int(start * 1e6), int(end * 1e6)) for name, start, end in events]
    host, gpu = (made, []) if device == "cpu" else ([], made)
    nest(host)
    call = Call(Event(CALL, 0, 10_000_000), host, gpu)
    times = collective_times(RecordedCalls(device, [call], [call]))
    return times.ms, times.exposed_ms


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([("gemm", 0, 4), (ALL_REDUCE, 4, 6)], (2.0, 2.0)),
        ([("gemm", 0, 4), (ALL_REDUCE, 3, 6)], (3.0, 2.0)),
        ([(ALL_REDUCE, 1, 6), ("gemm", 2, 3), ("gemm", 2.5, 4)], (5.0, 3.0)),
        ([(ALL_REDUCE, 1, 3), (ALL_REDUCE, 2, 4)], (3.0, 3.0)),
        ([("gemm", 0, 4)], (0.0, 0.0)),
    ],
    ids=["exposed", "partly hidden", "around kernels", "at the same time", "none"],
)
def test_collectives_on_a_gpu(events, expected):
    assert times_of_collectives("cuda", *events) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (
            [("aten::mm", 0, 2), ("c10d::allreduce_", 2, 6), ("gloo:all_reduce", 2.5, 6)],
            (3.5, 3.5),
        ),
        (
            [
                ("_c10d_functional::all_reduce", 0, 1),
                ("gloo:all_reduce", 0.5, 4),
                ("aten::mm", 1, 3),
                ("aten::add", 3, 5),
                ("_c10d_functional::wait_tensor", 3, 4),
            ],
            (3.5, 1.5),
        ),
    ],
    ids=["waits at once", "computes meanwhile"],
)
def test_collectives_on_the_cpu(events, expected):
    """They run in another thread, while the one of the model computes or waits."""
    assert times_of_collectives("cpu", *events) == pytest.approx(expected)


def test_kernels_of_attention_on_a_gpu_by_name_or_operator():
    kernels = [
        Kernel("void flash_fwd<int, 2>(x)", "grid 1", "aten::_flash_attention", 1.0, 1.0, 0.0),
        Kernel("sgemm", "grid 1", "aten::_scaled_dot_product_attention_math", 1.0, 1.0, 0.0),
        Kernel("aten::view", "", "aten::scaled_dot_product_attention", 1.0, 1.0, 0.0),
        Kernel("sgemm_other", "grid 1", "aten::linear", 1.0, 1.0, 0.0),
    ]
    trace = Trace("cuda", 1, 4.0, 0.0, 0.0, 4, tuple(kernels), {})
    assert attention_kernels(trace) == ["flash_fwd", "sgemm"]
