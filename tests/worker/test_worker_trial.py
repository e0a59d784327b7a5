"""How a trial times its step: what its two timers say of each other. The GPU is made up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from effbench.cell import Cell, Status, Trial
from effbench.measure import timing
from effbench.measure.telemetry import Telemetry
from effbench.message import DEVICE_PHASE, TrialRequest
from effbench.worker import trial

RULES = timing.Rules(
    budget_s=1.0, min_time_s=0.1, min_samples=5, target_interval=0.005, max_samples=1000,
    warmup_calls=1, warmup_s=0.0, max_warmup_calls=10, min_block_ms=1.0,
)  # fmt: skip


def time_step(monkeypatch, enqueue_ms, period_ms, sizes=None):
    latency = timing.Timing([5.2] * 9, 9, 0.05, enqueue_ms=[enqueue_ms] * 9)
    period = timing.Timing([period_ms] * 9, 90, 0.2)
    monkeypatch.setattr(timing, "time_latency", lambda *_: latency)
    monkeypatch.setattr(timing, "time_period", lambda *_: period)
    cell = SimpleNamespace(stream=sizes and {"sizes": sizes})
    done = Trial("key", 0, Status.OK)
    run = SimpleNamespace(trial=done, rules=RULES, device=torch.device("cuda"), cell=cell, whole=1)
    return trial.time_step(run, lambda: None, [((), {})], Telemetry(), False)


@pytest.mark.parametrize(
    ("enqueue_ms", "period_ms"),
    [
        (2.6, 2.5),  # bound by launching
        (0.1, 2.5),  # by the GPU
        (3.7, 2.5),
    ],
)
def test_timers_that_agree(monkeypatch, enqueue_ms, period_ms):
    assert time_step(monkeypatch, enqueue_ms, period_ms) is None


def test_a_host_that_was_busy_while_latencies_were_timed(monkeypatch):
    assert time_step(monkeypatch, 5.0437, 2.5228) == (
        "the host was busy while latencies were timed: it took 5.04 ms to enqueue a call, and 2.52 ms for a whole call "
        "back to back"
    )


def test_a_stream_has_calls_of_many_sizes(monkeypatch):
    assert time_step(monkeypatch, 5.0437, 2.5228, sizes=[1, 64]) is None


def test_the_gpu_is_touched_before_any_code_of_the_user(monkeypatch):
    """So that what fails there is known to be the harness's failure."""

    def refuse(*_, **options):
        raise RuntimeError("CUDA driver initialization failed")

    phases = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", refuse)
    cell = Cell({"name": "m", "module": {"_target_": "not.there"}}, 1, {"name": "e", "_target_": "not.there.Mode"},
                "float32", "inference", "cuda")  # fmt: skip
    ended = trial.run(TrialRequest(cell.params(), {**vars(RULES)}).to_json(), phases.append)
    assert phases == [DEVICE_PHASE]
    assert (ended["status"], ended["phase"]) == ("error", DEVICE_PHASE)
    assert "CUDA driver initialization failed" in ended["reason"]
