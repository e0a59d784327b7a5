"""The gate for real: a model that becomes slower, in a repository with revisions."""

import re
import subprocess
from collections import Counter

import pytest

from effbench.core.meeting import ALONE, DUET
from effbench.store import Store

#: Sleeps are longer than the noise of a busy machine.
NET = """
import time
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        time.sleep({seconds})
        return x + 1
"""


CHECK = ("check", "--baseline", "main", "--set", "floor=15%", "--confirm", "--rounds", "5")


@pytest.fixture(scope="module")
def repository(cli_in, tmp_path_factory):
    """A baseline `main` of the first revision, and a sweep of the second one, which sleeps four
    times as long."""
    folder = tmp_path_factory.mktemp("check") / "here"
    folder.mkdir()
    cli = cli_in(folder)
    identity = "-c user.name=x -c user.email=x@example.org -c commit.gpgsign=false"
    git = ["git", *identity.split()]
    cli.git = lambda *args: subprocess.run(
        [*git, *args], cwd=cli.folder, check=True, capture_output=True
    )
    (cli.folder / ".gitignore").write_text("results\n*.xml\n__pycache__\n")
    cli.git("init", "-q")
    write(cli, 0.005)
    sweep(cli, "before")
    done = cli.run("baseline", "set", "main", "last")
    assert done.code == 0, done
    write(cli, 0.02)
    sweep(cli, "slower")
    return cli


def write(cli, seconds):
    (cli.folder / "net.py").write_text(NET.format(seconds=seconds))
    cli.git("add", "-A")
    cli.git("commit", "-qm", f"{seconds}")


def sweep(cli, name):
    done = cli.sweep(
        "model=custom",
        "model.module._target_=net.py:Net",
        "model.inputs.x.shape=[8]",
        "mode=eager",
        "protocol.rounds=3",
        f"sweep.name={name}",
        "on_failure=ignore",
    )
    assert done.code == 0, done


@pytest.fixture(scope="module")
def confirmed(repository):
    """How the check of the second revision ended."""
    return repository.run(*CHECK, "--junit", "check.xml", "--across", "hardware")


def test_slower_is_found_and_confirmed_in_turns(repository, confirmed):
    assert confirmed.code == 1, confirmed
    assert re.search(
        r"at most 5 rounds, old and new as duets; Ctrl-C[^\n]*\nduration: [^\n]*\d", confirmed.out
    )
    assert re.search(r"▲ slower .*latency_ms", confirmed.out)
    assert "running 1 cell again, at most 5 rounds, old and new as duets" in confirmed.out
    # on a busy machine marked rounds do not count if there are enough others
    assert re.search(r"\(old and new as duets, [345] duets\)", confirmed.out)
    # the 95th percentile of a busy machine may stay ambiguous
    (failed,) = re.findall("check failed: ([12]) slower against main", confirmed.out)
    assert (repository.folder / "check.xml").read_text().count("<failure") == int(failed)


def test_old_and_new_take_turns_in_a_sweep_of_their_own(repository, confirmed):
    with Store.open(repository.db) as store:
        confirming, checked = store.sweeps()[:2]
        assert confirming.name == f"confirm:{checked.id}"
        assert store.find_sweep("last").id == checked.id, "a re-run is no sweep to be checked"
        trials = store.trials(confirming.id)
    sides = Counter(trial.environment_id for trial in trials)
    assert len(sides) == 2
    assert set(sides.values()) <= {3, 4, 5}, "they end once the change is decided"
    assert all(ALONE not in trial.extra[DUET] for trial in trials)


def test_what_cannot_be_run_again_stays_slower(repository):
    """Nobody may clear a regression by code that is not the sweep's."""
    (repository.folder / "net.py").write_text(NET.format(seconds=0.005))
    done = repository.run(*CHECK)
    repository.git("checkout", "net.py")
    assert done.code == 1, done
    assert "neither confirmed nor refuted: not run again" in done.out
    assert re.search(
        r"nothing was run again: .*-dirty now; the sweep ran", " ".join(done.out.split())
    )
