"""Another process on the GPU, for real."""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

import pytest
import torch

from effbench.core.disturbances import DisturbanceKind
from effbench.measure.gpu import Gpu
from effbench.measure.timing import shorten_gaps
from effbench.measure.watch import GpuWatch

pytestmark = pytest.mark.alone
STRANGER = """
import sys, time, torch
held = torch.empty(2**30, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print("here", flush=True)
if sys.argv[1] == "wakes":
    sys.stdin.readline()
while True:
    if sys.argv[1] != "sleeps":
        held.add_(1)
        torch.cuda.synchronize()
    else:
        time.sleep(0.1)
"""


@pytest.fixture
def stranger(request):
    command = [sys.executable, "-c", STRANGER, request.param]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "here\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("stranger", "is_named"), [("works", True), ("sleeps", False)], indirect=["stranger"]
)
def test_one_that_works_marks_a_trial_and_one_that_holds_memory_does_not(run, stranger, is_named):
    overrides = ["model=mlp", "bs=8", "mode=eager", "protocol.profile=false"]
    _, (row,) = run(*overrides, "executor.foreign_wait_s=1")
    assert row["status"] == "ok", row["reason"]
    assert ("another process" in (row["disturbance"] or "")) is is_named
    assert row["marked"] or not is_named


@pytest.mark.parametrize("stranger", ["wakes"], indirect=True)
def test_one_that_begins_to_work_is_seen(stranger):
    device = torch.device("cuda")
    mine = torch.zeros(2**28, device=device)
    made = GpuWatch(Gpu.open(str(torch.cuda.get_device_properties(0).uuid)))
    made.shared = True
    made.begin()
    stranger.stdin.write("\n")
    stranger.stdin.flush()
    until = time.monotonic() + 3
    while time.monotonic() < until and not made.discarded:
        mine.add_(1)
        torch.cuda.synchronize()
        made.discard_if_disturbed()
    made.end()
    reasons = [*made.discarded, made.disturbance]
    assert DisturbanceKind.PROCESS in [reason.kind for reason in reasons if reason is not None]


def test_no_context_changes_the_speed_of_a_graph_after_one_of_its_own():
    values = torch.rand(64, 64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(300):
            values.mul_(1.0)

    def period_ms() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        found = []
        for _ in range(7):
            start.record()
            for _ in range(100):
                graph.replay()
            end.record()
            end.synchronize()
            found.append(start.elapsed_time(end) / 100)
        return median(found)

    period_ms()
    assert shorten_gaps() == 0
    short, free = period_ms(), torch.cuda.mem_get_info()[0]
    subprocess.run(
        [sys.executable, "-c", "import torch; torch.zeros(1, device='cuda')"], check=True
    )
    assert period_ms() == pytest.approx(short, rel=0.03)
    assert shorten_gaps() == 0
    assert period_ms() == pytest.approx(short, rel=0.03)
    assert torch.cuda.mem_get_info()[0] >= free - 2**24
    assert (values * 2).sum().item() > 0
