"""What the queue of a cluster says about a job; without a cluster."""

import dataclasses
import threading
from unittest.mock import MagicMock

import pytest
from made_sweeps import a_cell, begun, environment

from effbench.core.cell import Cell, Status, StoredTrial, Trial
from effbench.core.errors import ConfigError, WorkerError
from effbench.core.message import decode, encode
from effbench.run.executors import queue, slurm
from effbench.run.executors.job_files import EVENTS, REQUEST
from effbench.run.executors.queue import JobState
from effbench.run.executors.slurm import ClusterJob, SlurmExecutor
from effbench.run.interpreters import HERE
from effbench.run.plan import LOST, CellRun, Settings
from effbench.store import Store

RUNNING, FAILED = JobState("RUNNING", "None"), JobState("FAILED", "NonZeroExitCode")


def test_a_job_reads_the_trials_that_were_stored_before():
    trial = StoredTrial("a", 0, Status.OK, latency_ms=1.0, id=5, environment_id="e")
    assert Trial.from_json(trial.to_json()) == Trial("a", 0, Status.OK, latency_ms=1.0)


def test_a_job_is_lost_if_two_looks_in_a_row_find_it_ended(cluster, tmp_path):
    made, job = cluster(a_cell()), ClusterJob("7", tmp_path, [])
    answers = ({}, {"7": RUNNING}, None, {"7": FAILED}, None, {})
    assert [made.watch(job, states) and "lost" for states in answers] == [*[None] * 5, "lost"]


def test_a_job_that_reached_its_time_limit(cluster):
    loss = cluster(a_cell()).loss_of(JobState("TIMEOUT"))
    assert loss.status == Status.TIMEOUT
    assert loss.how.startswith("timed out after 60 min (executor.time_limit_min)")


def test_why_a_job_waits_is_told_once(cluster, tmp_path):
    made = cluster(a_cell())
    for reason in ("Priority", "PartitionTimeLimit", "PartitionTimeLimit"):
        states = {"7": JobState("PENDING", reason)}
        assert made.watch(ClusterJob("7", tmp_path, []), states) is None
    made.progress.note.assert_called_once_with("job 7 waits: PartitionTimeLimit")


class Queue:
    """Jobs that write these events (None: they never begin), then fail."""

    def __init__(self, monkeypatch, *jobs):
        self.jobs, self.submitted = iter(jobs), {}
        monkeypatch.setattr(slurm, "QUEUE_S", 0.0)
        monkeypatch.setattr(slurm, "READ_S", 0.001)
        monkeypatch.setattr(queue, "submit", self.submit)
        monkeypatch.setattr(queue, "states", lambda name: dict.fromkeys(self.submitted, FAILED))

    def submit(self, name, folder, executor):
        request = decode((folder / REQUEST).read_bytes())
        if make := next(self.jobs):
            (folder / EVENTS).write_bytes(b"".join(map(encode, make(request))))
        (folder / "1.err").write_text(
            "ImportError: no torch\nsrun: error: n1: task 0: Exited with exit code 1\n"
        )
        self.submitted[job_id := str(len(self.submitted) + 1)] = request
        return job_id


def begins(request):
    at = environment(gpu_name=None)
    facts = {"python": "p", "folder": "f", "given": [*HERE.given]}
    found = {"environment": dataclasses.asdict(at), "details": {}, "interpreter": facts}
    yield {"event": "began", "node": "n1", "environments": {at.id: found}}


def is_lost_in(round):
    """A job that runs the trials of earlier rounds, or all and is done."""

    def events(request):
        yield from begins(request)
        (run,) = request["runs"]
        cell, env = Cell.from_params(run["cell"]), environment(gpu_name=None).id
        done = {
            trial["round"]: trial for trial in request["history"].get(env, {}).get(cell.key, ())
        }
        for number in range(request["settings"]["protocol"]["rounds"]):
            lost = LOST in done.get(number, {"extra": {}})["extra"]
            if number in done and not lost:
                continue
            facts = {"run": 0, "round": number, "attempt": int(lost)}
            yield {"event": "started", "slot": "CPU", **facts}
            if number == round:
                return
            trial = Trial(cell.key, number, Status.OK, attempt=int(lost), latency_ms=1.0)
            yield {"event": "record", **facts, "record": trial.to_json()}
        yield {"event": "done"}

    return events


@pytest.fixture
def cluster(tmp_path):
    """Makes a cluster of a sweep of these cells, each a job."""
    with Store.open(tmp_path / "a.db", mode="write") as store:

        def make(*cells, rounds=3):
            executor = {
                "name": "slurm",
                "job_folder": str(tmp_path / "jobs"),
                "job_retries": 1,
                "cells_per_job": 1,
            }
            settings = Settings.with_defaults(
                db=str(store.name), executor=executor, protocol={"rounds": rounds}
            )
            runs = [CellRun(cell) for cell in cells]
            made = SlurmExecutor(settings, {}, MagicMock(), threading.Event(), store)
            made.cancel = lambda: None
            made.prepare(runs)
            made.left = made.open(begun(store, list(cells)))
            return made

        yield make


def test_a_cell_whose_jobs_never_begin_leaves_the_others(cluster, monkeypatch):
    made = cluster(a_cell(), a_cell("default"), rounds=1)
    Queue(monkeypatch, None, None, None, is_lost_in(1))
    failed = r"job 3 failed \(FAILED\) before its first trial: ImportError: no torch; logs: "
    with pytest.raises(WorkerError, match=failed):
        made.run_trials(made.left)
    assert [row.status for row in made.store.results(made.sweep_id)] == ["ok"]


def test_each_trial_is_repeated_on_its_own_account(cluster, monkeypatch):
    made = cluster(a_cell())
    Queue(monkeypatch, is_lost_in(0), is_lost_in(1), is_lost_in(2), is_lost_in(3))
    made.run_trials(made.left)
    tried = [(row.round, row.attempt, row.status) for row in made.store.trials(made.sweep_id)]
    assert tried == [
        (number, attempt, ("crashed", "ok")[attempt]) for number in range(3) for attempt in range(2)
    ]


def test_the_job_of_another_version_runs_again(cluster, caplog):
    made = cluster(a_cell())
    job = made.folder / "1"
    job.mkdir(parents=True)
    (job / REQUEST).write_bytes(encode({"cells": []}))
    (job / EVENTS).write_bytes(b"")
    assert made.open(made.sweep_id) == made.left
    assert not job.exists()
    assert "its trials run again" in caplog.text


def test_job_folders_that_cannot_be_used(cluster, monkeypatch, tmp_path):
    monkeypatch.setattr(queue, "check", lambda executor: None)
    settings = Settings.with_defaults(executor={"name": "slurm", "job_folder": "/shared/100%u"})
    with pytest.raises(ConfigError, match=r"executor\.job_folder must be a path without %"):
        SlurmExecutor.check(settings)
    (tmp_path / "jobs").touch()
    made = cluster(a_cell())
    with pytest.raises(
        WorkerError, match=r"cannot write .*/jobs/.* \(executor.job_folder\): Not a directory"
    ):
        made.run_trials(made.left)
