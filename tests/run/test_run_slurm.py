"""Jobs of a cluster whose queue is made up: what they write, and how they are lost."""

import threading
from unittest.mock import MagicMock

import pytest
from made_sweeps import a_cell, begun, environment

from effbench.core.cell import Status, Trial
from effbench.core.errors import ConfigError, WorkerError
from effbench.core.message import encode
from effbench.run.executors import queue, slurm
from effbench.run.executors.job_files import EVENTS, Done, FoundEnvironment, JobRequest, JobStore
from effbench.run.executors.slurm import ClusterJob, SlurmExecutor
from effbench.run.interpreters import HERE
from effbench.run.plan import CellRun, Settings, SweepPlan
from effbench.store import Store

HERE_FACTS = {"python": "p", "folder": "f", "given": [*HERE.given]}
NODE = environment(gpu_name=None)


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "a.db", mode="write") as store:
        yield store


@pytest.fixture
def cluster(store, tmp_path):
    """Makes the executor of a sweep of these cells."""

    def make(*cells, rounds=3):
        executor = {"name": "slurm", "job_folder": str(tmp_path / "jobs")}
        settings = Settings.with_defaults(
            db=str(store.name), executor=executor, protocol={"rounds": rounds}
        )
        plan = SweepPlan([CellRun(cell) for cell in cells])
        sweep_id = begun(store, list(cells))
        return SlurmExecutor(settings, {}, plan, sweep_id, MagicMock(), threading.Event(), store)

    return make


@pytest.fixture
def submitted(monkeypatch):
    """Jobs run at once, as `work(job_store)` does, and then fail. These are their requests."""
    requests = {}

    def start(work):
        def submit(name, folder, executor):
            request = JobRequest.read(folder)
            job_id = str(len(requests) + 1)
            requests[job_id] = request
            (folder / f"{job_id}.err").write_text("Traceback:\nImportError: no torch\n")
            work(JobStore(folder, request))
            return job_id

        monkeypatch.setattr(queue, "submit", submit)
        return requests

    monkeypatch.setattr(slurm, "QUEUE_S", 0.0)
    monkeypatch.setattr(slurm, "READ_S", 0.001)
    monkeypatch.setattr(queue, "cancel", lambda name: None)
    monkeypatch.setattr(queue, "states", lambda name: dict.fromkeys(requests, "FAILED"))
    return start


def begin(job):
    job.write(FoundEnvironment(NODE, {}, HERE_FACTS))


def trials_before(round):
    """A job that runs the trials of the rounds before this one that are not recorded."""

    def work(job):
        begin(job)
        for run in job.request.runs:
            recorded = {trial.round for trial in job.history("s", NODE.id).get(run.cell.key, [])}
            for number in set(range(round)) - recorded:
                trial = Trial(run.cell.key, number, Status.OK, latency_ms=1.0, pid=7)
                job.add_trial("s", NODE.id, trial)
        if round == job.request.settings.protocol.rounds:
            job.write(Done())

    return work


def rounds_of(made):
    return [trial.round for trial in made.store.trials(made.sweep_id)]


def test_cells_that_differ_in_their_mode_share_a_job(cluster, submitted):
    made = cluster(a_cell(), a_cell("default"), a_cell(bs=2))
    requests = submitted(trials_before(3))
    made.run()
    jobs = [
        sorted(f"{run.cell.bs} {run.cell.mode_name}" for run in job.runs)
        for job in requests.values()
    ]
    assert sorted(jobs) == [["2 eager"], ["8 default", "8 eager"]]
    assert len(rounds_of(made)) == made.progress.ended.call_count == 9
    assert not made.folder.exists(), "no folder is left behind"


def test_a_lost_job_leaves_its_other_trials_to_the_resumed_sweep(cluster, submitted):
    made = cluster(a_cell())
    requests = submitted(trials_before(2))
    lost = (
        r"^job 1 ended before its last trial: FAILED: ImportError: no torch; logs: .*\nRun .*"
        + (f"effbench -m resume={made.sweep_id} ")
    )
    with pytest.raises(WorkerError, match=lost):
        made.run()
    assert rounds_of(made) == [0, 1]
    submitted(trials_before(3))
    made.lost = ""
    made.run()
    assert rounds_of(made) == [0, 1, 2]
    (history,) = requests["2"].history.values()
    assert [trial.round for trial in history[a_cell().key]] == [0, 1]


def test_a_job_that_never_begins_leaves_the_others(cluster, submitted):
    def work(job):
        if job.request.runs[0].cell.bs == 2:
            trials_before(1)(job)

    made = cluster(a_cell(), a_cell(bs=2), rounds=1)
    submitted(work)
    with pytest.raises(WorkerError, match="ended before its last trial"):
        made.run()
    assert [row.status for row in made.store.results(made.sweep_id)] == ["ok"]


def test_a_job_is_lost_if_two_looks_in_a_row_find_it_ended(cluster, monkeypatch, tmp_path):
    made, job = cluster(a_cell()), ClusterJob(tmp_path, "7")
    made.jobs.append(job)
    answers = ({}, {"7": "RUNNING"}, None, {"7": "FAILED"}, None, {})
    lost = []
    for answer in answers:
        monkeypatch.setattr(queue, "states", lambda name, answer=answer: answer)
        made.look_at_queue()
        lost.append(bool(made.lost))
    assert lost == [False] * 5 + [True]


def test_what_a_killed_effbench_did_not_commit_is_committed_once(cluster, submitted):
    made = cluster(a_cell())
    request = made.request_of(made.runs, "job")
    for name in ("1", "2"):
        folder = made.folder / name
        folder.mkdir(parents=True)
        (folder / EVENTS).touch()
        begin(JobStore(folder, request))
        JobStore(folder, request).add_trial("s", NODE.id, Trial(a_cell().key, 1, Status.OK))
    submitted(trials_before(3))
    assert [group.round for group in made.remaining()] == [0, 2]
    assert rounds_of(made) == [1]
    assert not made.folder.exists()


def test_the_events_of_another_version_are_ignored(cluster, submitted):
    made = cluster(a_cell())
    left = made.remaining()
    submitted(None)
    job = made.folder / "1"
    job.mkdir(parents=True)
    (job / EVENTS).write_bytes(encode({"event": "began"}))
    assert made.remaining() == left
    assert not job.exists()


def test_a_line_that_is_being_written_is_read_later(cluster, tmp_path):
    job = ClusterJob(tmp_path)
    line = encode({"event": "done"})
    events = tmp_path / EVENTS
    events.write_bytes(line + line[:5])
    assert list(job.new_events()) == [Done()]
    events.write_bytes(line + line)
    assert list(job.new_events()) == [Done()]


def test_a_refused_job_ends_the_sweep(cluster, submitted, monkeypatch):
    made = cluster(a_cell())
    submitted(None)
    monkeypatch.setattr(queue, "submit", MagicMock(side_effect=WorkerError("too many")))
    with pytest.raises(WorkerError, match="too many"):
        made.run()


@pytest.mark.parametrize(
    "answers",
    [
        [{"1": "COMPLETING"}, {"1": "CANCELLED"}],
        [{}],
        # it does not answer while its controller restarts, which tells nothing about the jobs
        [None, None, {"1": "RUNNING"}, {"1": "CANCELLED", "2": "COMPLETED"}],
    ],
)
def test_cancelling_waits_until_the_jobs_have_ended(monkeypatch, answers):
    states = MagicMock(side_effect=answers)
    monkeypatch.setattr(queue, "states", states)
    monkeypatch.setattr(queue, "output", MagicMock(return_value=""))
    monkeypatch.setattr(queue, "POLL_S", 0.0)
    queue.cancel("name")
    assert states.call_count == len(answers)


def test_a_machine_without_slurm(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="requires sbatch on PATH"):
        queue.check()


def test_a_folder_of_jobs_that_cannot_be_written(cluster, submitted, tmp_path):
    (tmp_path / "jobs").touch()
    made = cluster(a_cell())
    submitted(None)
    with pytest.raises(
        WorkerError, match=r"cannot write .*/jobs/.* \(executor.job_folder\): Not a directory"
    ):
        made.run()
