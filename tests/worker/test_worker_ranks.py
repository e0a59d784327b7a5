"""Trials of two processes: what the leader records, and what becomes of them if a rank fails."""

import json
import multiprocessing
import os
import tempfile
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from own_cells import EAGER, PhasePipe, cpu_cell, own_model, target_of
from torch import nn
from torch._inductor.async_compile import AsyncCompile

from effbench.core.cell import Status, Trial
from effbench.core.message import RankRequest, TrialRequest
from effbench.core.settings import Protocol
from effbench.modes.base import Mode, Prepared
from effbench.modes.eager import Eager
from effbench.worker import ranks, trial
from effbench.worker.context import TrialContext
from effbench.worker.following import FollowingTrial

PROTOCOL = asdict(
    Protocol(
        budget_s=0.5,
        min_time_s=0.05,
        warmup_s=0.02,
        host_tolerance=1000.0,
        profile=False,
    )
)

#: The phases of a rank, in its process.
PHASES: list[str] = []


def run_rank(request, path):
    """Run a rank in this new process, and write its record."""
    AsyncCompile.pool.cache_clear()  # an earlier test's threads are not in this process
    record = trial.run_task(request.to_json(), PhasePipe(hear=PHASES.append))
    record["extra"]["phases"] = PHASES
    path.write_text(json.dumps(record))


def run_ranks(cell, size=2, protocol=PROTOCOL, **options):
    """Run a trial with several ranks. Return their records, None for one that died."""
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"record{number}") for number in range(size)]
        processes = []
        for number, path in enumerate(paths):
            rank = RankRequest(number, size, folder)
            request = TrialRequest(cell.params(), protocol, rank=rank, **options)
            processes.append(fork.Process(target=run_rank, args=(request, path)))
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        return [record_in(path) for path in paths]


def record_in(path):
    return Trial.from_json(json.loads(path.read_text())) if path.exists() else None


def cell_of(module, mode=EAGER):
    return cpu_cell(bs=4, model=own_model(module, 32), mode=mode, threads=1, parallel="tp2")


def own_mode(mode):
    return {"name": "own", "_target_": target_of(mode)}


class Halves(nn.Module):
    """A layer of which each rank computes a half: it is parallel already."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 32, bias=False)

    def forward(self, x):
        begin = 16 * dist.get_rank()
        part = slice(begin, begin + 16)
        output = x[:, part] @ self.layer.weight[:, part].T
        dist.all_reduce(output)
        return output


class Often(Mode):
    """Calls the module four times."""

    def prepare(self, module, example):
        def step(*given):
            for _ in range(4):
                output = module(*given)
            return output

        return Prepared(step)


@pytest.fixture(scope="module")
def both():
    """The records of both ranks of a trial with everything."""
    cell = cell_of(Halves, own_mode(Often))
    return run_ranks(cell, protocol={**PROTOCOL, "profile": True}, baseline=EAGER)


def test_the_record_is_the_leaders(both):
    leader, follower = both
    assert leader.status is Status.OK, (leader.reason, leader.extra)
    assert follower.status is Status.OK, (follower.reason, follower.extra)
    assert (leader.ranks, follower.ranks) == (2, None)
    assert leader.latency_ms > 0
    assert follower.latency_ms is None
    assert leader.rel_error < 1e-6


def test_a_call_ends_when_the_slowest_rank_is_done(both):
    leader, _ = both
    assert 0 < leader.rank_spread_ms < 10 * leader.latency_ms


def test_the_baseline_and_the_mode_alternate_on_all_ranks(both):
    leader, _ = both
    assert "no_pairs" not in leader.extra
    assert leader.pairs > 0
    assert leader.pair_speedup < 1.0, "eager calls the module once, and the mode several times"


def test_the_trace_shows_collectives(both):
    leader, _ = both
    assert "no_trace" not in leader.extra
    assert 0 < leader.exposed_collective_ms <= leader.collective_ms


def test_the_followers_announce_the_leaders_phases(both):
    leader, follower = both
    assert leader.extra["phases"] == follower.extra["phases"]


class Trouble(nn.Module):
    """A layer whose results the ranks share, unless `shares` is false while it is timed. Rank 1
    does `what` meanwhile."""

    what = staticmethod(lambda: None)
    shares = True

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 32, bias=False)

    def forward(self, x):
        output = self.layer(x)
        if dist.get_rank() == 1 and "timing" in PHASES:
            Trouble.what()
        if Trouble.shares or "timing" not in PHASES:
            dist.all_reduce(output)
        return output


def fail():
    raise ValueError("no more")


@pytest.mark.parametrize("shares", [True, False], ids=["in a collective", "between calls"])
def test_the_leader_notices_that_another_rank_failed(monkeypatch, shares):
    monkeypatch.setattr(Trouble, "what", fail)
    monkeypatch.setattr(Trouble, "shares", shares)
    leader, follower = run_ranks(cell_of(Trouble))
    assert follower.status is Status.ERROR
    assert follower.reason.startswith("in timing: ValueError: no more (")
    assert follower.reason.endswith(" in fail)")
    assert follower.extra["lost_rank"] is None
    assert leader.status is Status.ERROR
    assert leader.extra["lost_rank"] == 1


def test_the_leader_notices_that_another_rank_died(monkeypatch):
    monkeypatch.setattr(Trouble, "what", lambda: os._exit(9))
    leader, follower = run_ranks(cell_of(Trouble))
    assert follower is None
    assert leader.status is Status.ERROR
    assert leader.extra["lost_rank"] == 1


class Traced(Mode):
    """Is compiled by Dynamo. Rank 1 compiles again in each of the first `most` series."""

    compiles = True
    most = 0

    def prepare(self, module, example):
        compiled = torch.compile(
            lambda x, series: module.layer(x) + 0 * len(series), backend="eager"
        )

        def step(x):
            series = 0
            if dist.get_rank() == 1:
                series = min(self.most, PHASES.count("timing"))
            output = compiled(x, str(series))
            dist.all_reduce(output)
            return output

        return Prepared(step)


@pytest.mark.parametrize(("series", "status"), [(1, "ok"), (2, "degraded")])
def test_a_rank_that_compiles_alone_while_it_is_timed(monkeypatch, series, status):
    monkeypatch.setattr(Traced, "most", series)
    leader, _ = run_ranks(cell_of(Trouble, own_mode(Traced)))
    assert leader.status == status, leader.reason
    assert leader.recompiles == series
    again = "rank 1 of 2: a graph was compiled again while it was timed (failed guard: "
    assert leader.extra["timed_again"].startswith(again)
    if status == "degraded":
        assert leader.reason.startswith(again)


class Lacks(Mode):
    """Rank `number` lacks memory while it prepares. None: all do."""

    number = 1

    def prepare(self, module, example):
        if self.number in (None, dist.get_rank()):
            raise torch.OutOfMemoryError("no room")
        module(*example.args)
        return Prepared(module)


def test_a_rank_that_cannot_prepare_ends_alone():
    leader, follower = run_ranks(cell_of(Trouble, own_mode(Lacks)))
    assert (follower.status, follower.reason) == (Status.OOM, "in prepare: no room")
    assert leader.extra["lost_rank"] == 1


@pytest.mark.parametrize("number", [0, 1])
def test_a_rank_that_cannot_prepare_the_baseline_fails_if_others_wait_for_it(monkeypatch, number):
    monkeypatch.setattr(ranks, "SILENT_S", 0.5)
    monkeypatch.setattr(Lacks, "number", number)
    records = run_ranks(cell_of(Trouble), baseline=own_mode(Lacks))
    assert (records[number].status, records[number].reason) == (Status.OOM, "in pairs: no room")
    assert records[1 - number].extra["lost_rank"] == number


def test_without_a_baseline_in_any_rank_there_are_no_pairs(monkeypatch):
    monkeypatch.setattr(Lacks, "number", None)
    leader, follower = run_ranks(cell_of(Trouble), baseline=own_mode(Lacks))
    assert (leader.status, follower.status) == (Status.OK, Status.OK)
    assert leader.extra["no_pairs"] == "OutOfMemoryError: no room"
    assert leader.latency_ms > 0


class Alone(nn.Linear):
    def __init__(self):
        super().__init__(32, 32)

    def forward(self, x):
        return super().forward(x)


@pytest.mark.parametrize(("parallel", "phase"), [("tp2", "inference"), ("ddp2", "training")])
def test_the_batches_of_a_rank(tmp_path, parallel, phase):
    """The ranks of a data parallel trial time batches of their own, and compare the same ones."""
    training = {
        "optimizer": "sgd",
        "implementation": "foreach",
        "lr": 0.1,
        "loss": "mean-square",
        "set_to_none": True,
    }
    model = own_model(Alone, 32)
    cell = cpu_cell(model=model, phase=phase, parallel=parallel, training=training)
    batches = []
    for number, kind in enumerate((trial.RunningTrial, FollowingTrial)):
        rank = RankRequest(number, 2, str(tmp_path))
        request = TrialRequest(cell.params(), PROTOCOL, rank=rank)
        running = kind(TrialContext(request, PhasePipe()))
        running.mode = Eager()
        running.build()
        batches.append(running.workload.inputs)
    leaders, followers = batches
    assert first_of(leaders.checked).equal(first_of(followers.checked))
    is_same = first_of(leaders.timed).equal(first_of(followers.timed))
    assert is_same is (parallel == "tp2")


def first_of(sets):
    """The first tensor of the first inputs."""
    (args, _), *_ = sets
    return args[0]
