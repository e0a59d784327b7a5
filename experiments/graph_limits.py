"""What does a CUDA graph refuse, what does it silently get wrong, and how many warm-ups does it
need?

B batch, D width.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from effbench.claims._processes import in_fresh_process
from effbench.claims._tools import attempt, call_ms, close, finite, listed, median_ms, record
from torch import nn

from effbench.claims import Answer, Claim
from effbench.claims.checks import CUDA, Facts, check
from effbench.core.printable import describe
from effbench.measure.memory import graph_pool_bytes, reset_peaks
from effbench.workloads.endings import chain

GPU_SECONDS = 60

MIB = 2**20


@check(needs=(CUDA,))
def limits(device: torch.device, batch: int = 4, width: int = 1024) -> Facts:
    """Try another shape, a branch on data, an output of unknown size and an allocation with a CUDA
    graph.

    A failed capture may leave CUDA unusable, so captures that should fail run in separate
    processes.
    """
    with ThreadPoolExecutor() as pool:  # they measure no time
        refused = {
            name: pool.submit(in_fresh_process, capture_refused, device, what=name)
            for name in ("branch_on_data", "output_of_unknown_size", "copy_to_the_host")
        }
        facts = {name: answer.result() for name, answer in refused.items()}
    facts["branch_on_a_host_value"] = host_branch(device)
    facts["other_shape"] = other_shape(device, batch, width)
    facts["allocation_while_capturing"] = allocation(device, batch, width)
    return facts


def capture_refused(device: torch.device, what: str) -> Facts:
    """Try a capture that should fail, and check whether CUDA still works in this process
    afterwards."""
    x = torch.ones(8, device=device)
    function = {
        "branch_on_data": lambda: x + 1 if x.sum() > 0 else x - 1,
        "output_of_unknown_size": lambda: x.nonzero(),
        "copy_to_the_host": lambda: x.cpu(),
    }[what]
    tried = attempt(record, function)
    later = attempt(lambda: (torch.ones(2, device=device) + 1).tolist())
    captured_later = attempt(record, lambda: x + 1)
    return {
        **{f"capture_{key}": value for key, value in tried.facts().items()},
        # ending a failed capture raises a second error
        "capture_first_error": describe(list(chain(tried.raised))[-1]) if tried.raised else None,
        "eager_works_afterwards": later.succeeded,
        "capture_works_afterwards": captured_later.succeeded,
    }


def host_branch(device: torch.device) -> Facts:
    """Capture a branch on a host value: the graph keeps the side that was taken during capture."""
    x = torch.ones(4, device=device)
    flag = [True]

    def branch() -> torch.Tensor:
        return x + 1 if flag[0] else x - 1

    recorded = record(branch)
    flag[0] = False
    replayed, eager = recorded.replay(), branch()
    return {
        "replay_follows_the_flag": close(replayed, eager),
        "replay": listed(replayed),
        "eager": listed(eager),
    }


def other_shape(device: torch.device, batch: int, width: int) -> Facts:
    """Give more and fewer rows to a graph of B rows."""
    x = torch.ones(batch, width, device=device)
    recorded = record(lambda: x * 2)
    more = attempt(x.copy_, torch.ones(batch + 1, width, device=device))
    fewer = torch.full((batch - 1, width), 3.0, device=device)
    x[: batch - 1].copy_(fewer)
    replayed = recorded.replay()
    return {
        "more_rows_fit_into_its_input": more.succeeded,
        **{f"more_rows_{key}": value for key, value in more.facts().items() if key != "succeeded"},
        "rows_captured": batch,
        "rows_given": batch - 1,
        "rows_replayed": replayed.shape[0],
        "rows_given_are_right": close(replayed[: batch - 1], fewer * 2),
        "last_row_is_of_the_call_before": close(
            replayed[batch - 1], torch.full((width,), 2.0, device=device)
        ),
    }


def allocation(device: torch.device, batch: int, width: int) -> Facts:
    """Allocate tensors in the captured function, which come from a private pool that the graph
    keeps."""
    x = torch.ones(batch, width, MIB // width, device=device)  # 4 MiB per row

    def allocates() -> torch.Tensor:
        return (x * 2).sin() + torch.zeros(x.shape, device=device)

    reset_peaks(device)  # pools of deleted graphs must not count
    before = graph_pool_bytes(device) or 0
    allocated = torch.cuda.memory_allocated(device)
    tried = attempt(record, allocates)
    if not tried.succeeded:
        return tried.facts()
    recorded = tried.value
    facts = {
        **tried.facts(),
        "tensor_bytes": x.nbytes,
        "private_pool_growth_bytes": (graph_pool_bytes(device) or 0) - before,
        "memory_allocated_growth_bytes": torch.cuda.memory_allocated(device) - allocated,
    }
    addresses = {recorded.replay().data_ptr() for _ in range(3)}
    facts["replays_write_to_one_address"] = len(addresses) == 1
    facts["replay_equals_eager"] = close(recorded.output, allocates())
    return facts


@check(needs=(CUDA,))
def warmups(
    device: torch.device,
    counts: tuple[int, ...] = (0, 1, 2, 3),
    width: int = 256,
    compiled: bool = False,
) -> Facts:
    """Capture after 0, 1, 2 and 3 warm-up calls, each in a new process: success, first replay,
    steady replay.

    `compiled`: capture the module compiled by Inductor instead of the eager module.
    """
    tries = [
        {
            "warmups": count,
            **in_fresh_process(
                capture_after, device, warmups=count, width=width, compiled=compiled
            ),
        }
        for count in counts
    ]
    working = [
        tried["warmups"] for tried in tries if tried["succeeded"] and tried["replay_equals_eager"]
    ]
    return {
        "compiled": compiled,
        "tries": tries,
        "fewest_warmups_that_work": min(working, default=None),
    }


@check(needs=(CUDA,))
def warmups_compiled(device: torch.device) -> Facts:
    """Run `warmups` with a module compiled by Inductor."""
    return warmups(device, compiled=True)


def capture_after(device: torch.device, warmups: int, width: int, compiled: bool) -> Facts:
    """Capture a convolution and matrix products in a fresh process, as cuDNN and cuBLAS initialise
    in their first call. Return the times in ms of each warm-up, the capture, the first replay and a
    steady replay."""
    module = nn.Sequential(
        nn.Conv1d(1, 4, 3, padding=1),
        nn.Flatten(),
        nn.Linear(4 * width, width),
        nn.GELU(),
        nn.Linear(width, width),
    )
    module = module.to(device).eval().requires_grad_(False)
    x = torch.randn(8, 1, width, device=device)
    function = torch.compile(module) if compiled else module
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.no_grad(), torch.cuda.stream(stream):
        warmup_ms = [call_ms(function, x, device=device) for _ in range(warmups)]
        torch.cuda.synchronize()
        start = time.perf_counter()
        # time only the capture: the warm-ups ran above
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            output = function(x)
        torch.cuda.synchronize()
        capture_ms = (time.perf_counter() - start) * 1e3
    timed = partial(call_ms, graph.replay, device=device)
    first_ms, second_ms = timed(), timed()
    with torch.no_grad():
        expected = module(x)
    return {
        "warmup_ms": warmup_ms,
        "capture_ms": capture_ms,
        "first_replay_ms": first_ms,
        "second_replay_ms": second_ms,
        "steady_replay_ms": median_ms(graph.replay, device=device),
        "replay_equals_eager": bool(torch.allclose(output, expected, rtol=1e-2, atol=1e-3)),
        "largest_difference": (output - expected).abs().max().item(),
    }


#: Captures function(x); returns a function that replays and returns the graph's output.
Capture = Callable[[Callable[..., Any], torch.Tensor], Callable[[], torch.Tensor]]


class MixesRows(nn.Module):
    """(B, D) -> (B, D); each row of the output depends on all rows of the input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


@check(needs=(CUDA,))
def padding(
    device: torch.device, captured: Sequence[int] = (1, 2, 4, 8, 16), width: int = 32
) -> Facts:
    """Run every batch size through the smallest graph that fits, with the tail of its input full of
    stale values, and compare with eager at that size. Also try a module that mixes rows, for which
    no padding can be right."""
    rows_apart = nn.Sequential(
        nn.Linear(width, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width)
    )
    rows_apart = rows_apart.to(device).requires_grad_(False)

    def capture(function: Callable[..., Any], x: torch.Tensor) -> Callable[[], torch.Tensor]:
        return record(function, x).replay

    return {
        "captured_sizes": sorted(captured),
        "rows_apart": observe(rows_apart, width, captured, device, capture),
        "rows_apart_tail_of_nan": observe(
            rows_apart, width, captured, device, capture, poison=float("nan")
        ),
        "rows_mixed": observe(MixesRows(), width, captured, device, capture),
    }


def observe(
    module: nn.Module,
    width: int,
    captured: Sequence[int],
    device: torch.device,
    capture: Capture,
    poison: float = 1e4,
) -> Facts:
    """Compare padded replays with eager for every batch size. All graphs read the first rows of one
    input buffer (max B, D). Before each replay, the buffer is filled with `poison` and the largest
    graph replayed."""
    largest = max(captured)
    buffer = torch.zeros(largest, width, device=device)
    wrong, unequal_bits = [], []
    worst, example = 0.0, {}
    with torch.no_grad():
        replays = {size: capture(module, buffer[:size]) for size in sorted(captured, reverse=True)}
        for raw in range(1, largest + 1):
            x = torch.randn(raw, width, device=device)
            buffer.fill_(poison)
            replays[largest]()
            buffer[:raw].copy_(x)
            padded = replays[min(size for size in captured if size >= raw)]()[:raw].clone()
            expected = module(x)
            if not torch.equal(padded, expected):
                unequal_bits.append(raw)
            if not close(padded, expected):
                wrong.append(raw)
                example = example or {
                    "raw_size": raw,
                    "padded": listed(padded),
                    "eager": listed(expected),
                }
            worst = max(worst, (padded - expected).abs().nan_to_num(nan=float("inf")).max().item())
    return {
        "rows_equal_eager": not wrong,
        "sizes_tried": largest,
        "wrong_sizes": wrong,
        "sizes_with_other_rounding": [size for size in unequal_bits if size not in wrong],
        "largest_difference": finite(worst),
        "tail_value": finite(poison),
        **({"first_wrong": example} if wrong else {}),
    }


@Claim("S2", "A CUDA graph needs fixed shapes, no dynamic control flow and no dynamic allocation.")
def s2(limits):
    branch, unknown, allocating = (
        limits.branch_on_data,
        limits.output_of_unknown_size,
        limits.allocation_while_capturing,
    )
    holds = {
        "fixed shapes": not limits.other_shape.more_rows_fit_into_its_input,
        "no branch on data": not branch.capture_succeeded,
        "no output of unknown size": not unknown.capture_succeeded,
        "no allocation while capturing": not allocating.succeeded,
    }
    also = {
        "a branch on data": branch.capture_error_type,
        "an output of unknown size": unknown.capture_error_type,
        "allocating while capturing succeeds": allocating.succeeded,
        "bytes that the private pool grew by": allocating.private_pool_growth_bytes,
        "a branch on the host is baked in": (
            not limits.branch_on_a_host_value.replay_follows_the_flag
        ),
    }
    return Answer(holds, also=also)


@Claim("S3", "Padding up to a captured size is correct.")
def s3(padding):
    apart, mixed = padding.rows_apart, padding.rows_mixed
    holds = {
        "modules whose rows do not depend on each other": (
            apart.rows_equal_eager and padding.rows_apart_tail_of_nan.rows_equal_eager
        ),
        "modules that mix rows": mixed.rows_equal_eager,
    }
    also = {
        "sizes tried": apart.sizes_tried,
        "sizes with other rounding": apart.sizes_with_other_rounding,
        "sizes that came out wrong where rows are mixed": mixed.wrong_sizes,
    }
    return Answer(holds, also=also)


@Claim("S4", "Two warm-ups before capture make it stable.", unit="warm-ups")
def s4(warmups, warmups_compiled):
    fewest = warmups.fewest_warmups_that_work
    also = {
        "enough for a compiled module": warmups_compiled.fewest_warmups_that_work,
        "first replays (ms)": [
            tried.first_replay_ms for tried in warmups.tries if "first_replay_ms" in tried
        ],
        "steady replays (ms)": [
            tried.steady_replay_ms for tried in warmups.tries if "steady_replay_ms" in tried
        ],
    }
    if fewest is None:
        return Answer(None, also=also)
    return Answer(fewest <= 2 and warmups.tries[2].replay_equals_eager, fewest, also)
