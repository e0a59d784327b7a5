"""Another process on the GPU, for real."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import torch

from effbench.measure.telemetry import Gpu
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


@pytest.mark.parametrize(("stranger", "status"), [("works", "noisy"), ("sleeps", "ok")], indirect=["stranger"])
def test_one_that_works_makes_a_trial_noisy_and_one_that_holds_memory_does_not(run, stranger, status):
    overrides = ["model=mlp", "bs=8", "mode=eager", "protocol.profile=false"]
    _, (row,) = run(*overrides, "executor.foreign_wait_s=1", alone=True)
    assert row["status"] == status, row["reason"]
    assert status == "ok" or "another process" in row["reason"]


@pytest.mark.parametrize("stranger", ["wakes"], indirect=True)
def test_one_that_begins_to_work_is_seen(stranger):
    device = torch.device("cuda")
    mine = torch.zeros(2**28, device=device)
    made = GpuWatch(Gpu.open(str(torch.cuda.get_device_properties(0).uuid)), device, shared=True)
    made.begin()
    stranger.stdin.write("\n")
    stranger.stdin.flush()
    until = time.monotonic() + 3
    while time.monotonic() < until and not made.discarded:
        mine.add_(1)
        torch.cuda.synchronize()
        made.disturbed()
    made.end()
    assert "another process" in " ".join([*made.discarded, made.noisy or ""])
