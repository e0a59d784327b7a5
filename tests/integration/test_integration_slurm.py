"""A real SLURM cluster of one node: whole sweeps as jobs, which are killed and cancelled.

The cluster has ports and folders of its own and ends with the tests. They fail without an installed
SLURM, as they are worth nothing where they are skipped.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from whole_sweeps import results_of, trials_of

SETTINGS = """
ClusterName=effbench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
GresTypes=gpu
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdTimeout=5
KillWait=3
ReturnToService=2
SchedulerParameters=sched_interval=1
MailProg=/bin/true
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP
"""
SLURM = ("executor=slurm", "executor.gres=gpu:1")
MATRIX = (
    "model=custom",
    "model.module._target_=mischief.Base,mischief.Waits",
    "model.inputs.x.shape=[4]",
    "protocol.rounds=2",
)


@dataclass
class Cluster:
    """SLURM's commands, and the logs of its daemons."""

    folder: Path

    @property
    def env(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        path = shutil.which(name) or shutil.which(name, path="/usr/sbin")
        assert path, f"these tests need {name}: apt-get install slurm-wlm munge"
        with (self.folder / f"{name}.log").open("w") as log:
            env = {**os.environ, **self.env}
            return subprocess.Popen([path, *words], stdout=log, stderr=log, env=env)

    def run(self, *command: str) -> str:
        return subprocess.check_output(command, env={**os.environ, **self.env}, text=True)

    def is_idle(self) -> bool:
        try:
            return self.run("sinfo", "-h", "-o", "%T").strip() == "idle"
        except subprocess.CalledProcessError:  # SLURM does not answer yet
            return False

    def wait(self, condition, what: str, timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                logs = [path.read_text()[-2000:] for path in self.folder.glob("slurm*.log")]
                pytest.fail(f"{what} after {timeout_s} s:\n{self.run('squeue')}\n{logs}")
            time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster():
    assert os.geteuid() == 0, "these tests run SLURM as root"
    folder = Path(tempfile.mkdtemp(prefix="effbench-slurm-"))
    made = Cluster(folder)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    for name in ("gpu0", "gpu1"):
        (folder / name).touch()
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        ports = [one.getsockname()[1], other.getsockname()[1]]
    host = socket.gethostname().partition(".")[0]
    (folder / "slurm.conf").write_text(SETTINGS.format(host=host, ports=ports, folder=folder))
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-1]\n")
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid"}
    files |= {"log-file": "log", "seed-file": "seed"}
    paths = [f"--{option}={folder}/munge.{name}" for option, name in files.items()]
    daemons = []
    try:
        daemons.append(made.start("munged", "--foreground", "--force", *paths))
        daemons.append(made.start("slurmctld", "-D"))
        daemons.append(made.start("slurmd", "-D"))
        made.wait(made.is_idle, "the cluster is not ready")
        yield made
    finally:
        for process in reversed(daemons):
            process.terminate()
            process.wait(30)
        shutil.rmtree(folder)


def outcomes(db: Path) -> list[tuple]:
    """Model, batch size, mode, status and number of trials of each cell of the newest sweep."""
    return [
        (row["model"], row["bs"], row["mode"], row["status"], row["trials"])
        for row in results_of(db)
    ]


def test_a_sweep_on_the_cluster_equals_a_local_one(cli, cluster):
    cli.env |= cluster.env
    matrix = ("model=tiny", "bs=2", "mode=eager,cuda-graph")
    options = ("executor.partition=main", "executor.cpus=1", "executor.sbatch.comment=hello")
    done = cli.sweep(*matrix, *SLURM, *options, "sweep.name=there")
    assert (done.code, done.err) == (0, ""), done
    assert "100 % · " in done.out
    cluster.wait(lambda: not cluster.run("squeue", "-h"), "the job does not end")
    assert not list(cli.cache.parent.rglob("job*.json")), "no folder is left behind"
    there = outcomes(cli.db)
    assert cli.sweep(*matrix, "sweep.name=here").code == 0
    assert there == outcomes(cli.db)
    (environment,) = {row["environment_id"] for row in results_of(cli.db, "there")}
    assert environment in [row["environment_id"] for row in results_of(cli.db, "here")]
    assert not any(row["gpu_uuid"] for row in trials_of(cli.db, "there"))


@pytest.mark.slow
def test_cells_of_several_ranks_run_in_a_job(cli, cluster):
    cli.env |= cluster.env
    network = ("model=mlp", "model.module.width=16", "model.module.depth=2", "bs=2", "mode=eager")
    options = ("parallel=none,tp2", "executor.gres=gpu:2", "executor.cpus=2")
    done = cli.sweep(*network, *SLURM[:1], *options)
    assert (done.code, done.err) == (0, ""), done
    cluster.wait(lambda: not cluster.run("squeue", "-h"), "the job does not end")
    assert [row["status"] for row in results_of(cli.db)] == ["ok", "ok"]
    assert {trial["ranks"] for trial in trials_of(cli.db)} == {None, 2}
    assert not list(cli.cache.parent.rglob("job*.json")), "no folder is left behind"


@pytest.fixture
def waiting(cli, cluster, start_waiting):
    """Starts a sweep with a cell that waits; returns it when that trial has begun, with the job's
    pid."""

    def start(*overrides):
        process = start_waiting(*cli.tiny, *MATRIX, *SLURM, *overrides, env=cluster.env)
        server = Path(f"/proc/{process.pids[1]}/stat").read_text()
        process.job_pid = int(server.rpartition(")")[2].split()[1])
        return process

    yield start
    cluster.wait(lambda: not cluster.run("squeue", "-h"), "a job does not end")


@pytest.mark.slow
def test_the_trials_of_a_killed_job_run_when_the_sweep_is_resumed(cli, cluster, waiting):
    process = waiting()
    os.kill(process.job_pid, signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 2, out
    assert "ended before its last trial: FAILED" in err
    assert [row[3:] for row in outcomes(cli.db)] == [("ok", 2)], "the other job goes on"
    resume_all(cli, cluster)


def resume_all(cli, cluster):
    """Resume the last sweep, whose trials no longer wait; those that are recorded stay."""
    before = [trial["id"] for trial in trials_of(cli.db)]
    (cli.folder / "go").touch()
    done = cli.run("-m", "resume=last", env=cluster.env)
    assert done.code == 0, done
    after = trials_of(cli.db)
    assert [trial["id"] for trial in after][: len(before)] == before
    assert [trial["status"] for trial in after] == ["ok"] * 4


@pytest.mark.slow
def test_ctrl_c_cancels_the_jobs(cli, cluster, waiting):
    process = waiting()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, "")
    assert "cancelling " in out
    assert cluster.run("squeue", "-h") == ""
    resume_all(cli, cluster)


@pytest.mark.slow
def test_kill_9_loses_nothing(cli, cluster, processes):
    """The job runs on; resume commits what it has measured, and measures nothing again."""
    process = cli.start("-m", *cli.tiny, "model=tiny", "protocol.rounds=2", *SLURM, env=cluster.env)
    processes.append(process)
    cluster.wait(lambda: cluster.run("squeue", "-h", "-t", "running"), "the job does not run")
    process.kill()
    process.communicate(timeout=60)
    cluster.wait(lambda: not cluster.run("squeue", "-h"), "the job does not end", 120)
    assert trials_of(cli.db) == []
    done = cli.run("-m", "resume=last", env=cluster.env)
    assert (done.code, done.err) == (0, ""), done
    assert "all trials are already recorded" in done.out
    assert [trial["status"] for trial in trials_of(cli.db)] == ["ok"] * 2
