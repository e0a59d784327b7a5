"""Parts of a graph outside CUDA graphs, as Inductor hands them over (on a GPU: tests/gpu)."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
import torch._inductor.output_code as output_code
from torch._inductor.scheduler import Scheduler

from effbench.measure.counters import Partitions


def graph(captured: int | None, parts: int = 0, refused: tuple[str, ...] = (), devices: tuple[str, ...] = ("cuda",)):
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
        ([], None),
        ([graph(1)], None),
        ([graph(1), graph(1)], None),
        ([graph(None, devices=("cpu",))], None),
        ([graph(1, 2, devices=("cuda", "cpu"))], "1 of 2 parts ran outside a CUDA graph"),
        ([graph(1), graph(2, 3)], "1 of 4 parts ran outside a CUDA graph"),
        ([graph(0)], "1 of 1 parts ran outside a CUDA graph"),
        ([graph(None)], "1 of 1 parts ran outside a CUDA graph"),
        ([graph(1, refused=("overlap",))], "1 of 1 parts ran outside a CUDA graph: overlap"),
    ],
)
def test_what_was_left_out(graphs, reason):
    partitions = Partitions()
    for each in graphs:
        partitions.count(each)
    assert partitions.degraded_reason() == reason
    assert partitions.degraded_reason(["so it logged"]) == (
        f"{reason}: so it logged" if reason and not partitions.reasons else reason
    )
    assert bool(partitions.to_json()) == any("cuda" in each.device_types for each in graphs)


def test_inductor_is_watched_only_meanwhile(monkeypatch):
    wrapped = []
    monkeypatch.setattr(output_code, "cudagraph_partition_post_compile", lambda *args: wrapped.append(args))
    monkeypatch.setattr(Scheduler, "should_partition", lambda self, node: node)
    original = output_code.cudagraph_partition_post_compile, Scheduler.should_partition
    with Partitions() as partitions:
        output_code.cudagraph_partition_post_compile([1], graph(0), "cudagraphs")
        for node in ("cpu ops", None, True, "partition includes all ops when cudagraphs is disabled", "cpu ops"):
            assert Scheduler.should_partition(object(), node) is node
    assert len(wrapped) == 1
    assert partitions.degraded_reason() == "1 of 1 parts ran outside a CUDA graph: cpu ops"
    assert (output_code.cudagraph_partition_post_compile, Scheduler.should_partition) == original
