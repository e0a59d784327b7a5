"""S2, S4: what capture refuses, what it takes without a word, and how many warm-ups it needs.

B batch, D width.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import nn

from effbench.evidence.base import CUDA, Facts, attempt, call_ms, close, listed, median_ms, shows
from effbench.evidence.fresh import in_fresh_process
from effbench.evidence.graphs import record
from effbench.measure.memory import graph_pool_bytes, reset_peaks
from effbench.worker.failures import chain, describe

MIB = 2**20


@shows("S2", needs=(CUDA,))
def capture_limits(device: torch.device, batch: int = 4, width: int = 1024) -> Facts:
    """Another shape, a branch on data, an output of unknown size and an allocation, each tried with a CUDA graph.

    What fails may leave CUDA unusable, so it is tried in a process of its own.
    """
    with ThreadPoolExecutor() as pool:  # no time is measured in them
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
    """Facts of one capture that is not expected to succeed; also whether CUDA is of use in this process afterwards."""
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
        # ending a capture that is already lost raises an error of its own
        "capture_first_error": describe(list(chain(tried.raised))[-1]) if tried.raised else None,
        "eager_works_afterwards": later.succeeded,
        "capture_works_afterwards": captured_later.succeeded,
    }


def host_branch(device: torch.device) -> Facts:
    """A branch on what the host knows: the one taken while capturing is in the graph for good."""
    x = torch.ones(4, device=device)
    flag = [True]

    def branch() -> torch.Tensor:
        return x + 1 if flag[0] else x - 1

    recorded = record(branch)
    flag[0] = False
    replayed, eager = recorded.replay(), branch()
    return {"replay_follows_the_flag": close(replayed, eager), "replay": listed(replayed), "eager": listed(eager)}


def other_shape(device: torch.device, batch: int, width: int) -> Facts:
    """A graph of B rows, given more and fewer."""
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
        "last_row_is_of_the_call_before": close(replayed[batch - 1], torch.full((width,), 2.0, device=device)),
    }


def allocation(device: torch.device, batch: int, width: int) -> Facts:
    """New tensors inside the captured function: taken from a private pool that the graph keeps."""
    x = torch.ones(batch, width, MIB // width, device=device)  # 4 MiB a row

    def allocates() -> torch.Tensor:
        return (x * 2).sin() + torch.zeros(x.shape, device=device)

    reset_peaks(device)  # pools of graphs that are gone must not count
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


@shows("S4", needs=(CUDA,))
def warmups_before_capture(
    device: torch.device, counts: tuple[int, ...] = (0, 1, 2, 3), width: int = 256, compiled: bool = False
) -> Facts:
    """Captures after 0, 1, 2 and 3 warm-up calls, each in a process of its own: success, first replay, steady replay.

    `compiled` captures the module compiled by Inductor instead of the eager one.
    """
    tries = [
        {
            "warmups": count,
            **in_fresh_process(capture_after, device, warmups=count, width=width, compiled=compiled),
        }
        for count in counts
    ]
    working = [one["warmups"] for one in tries if one["succeeded"] and one["replay_equals_eager"]]
    return {"compiled": compiled, "tries": tries, "fewest_warmups_that_work": min(working, default=None)}


def capture_after(device: torch.device, warmups: int, width: int, compiled: bool) -> Facts:
    """One capture in a fresh process, of a convolution and matrix products: cuDNN and cuBLAS prepare in their first
    call. Milliseconds of each warm-up, of the capture, of the first replay and of a steady one."""
    module = nn.Sequential(
        nn.Conv1d(1, 4, 3, padding=1), nn.Flatten(), nn.Linear(4 * width, width), nn.GELU(), nn.Linear(width, width)
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
        # the warm-ups were made above: nothing but the capture is timed
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
