"""Whole sweeps in odd surroundings: a user without a home, odd folder names, a warning filter that
raises."""

import os
import shutil
import subprocess
import sys

import pytest
from whole_sweeps import results_of

#: An id without an entry in the user database, for each user who runs the tests another one.
NOBODY = 54321 + os.getuid()
#: Starts a command as this user.
AS_NOBODY = ("unshare", "--user", f"--map-user={NOBODY}", f"--map-group={NOBODY}")


def can_be_nobody() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*AS_NOBODY, "true"], capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not can_be_nobody(), reason="this system has no user namespaces")


@pytest.fixture
def sweep(cli, processes):
    """Runs a sweep as a user that the system does not know, with these variables; returns its exit
    code and errors."""
    words = ["-m", "effbench", "-m", *cli.tiny, "model=tiny", "mode=eager,default"]
    command = [*AS_NOBODY, sys.executable, *words, "executor.keep_cache=true"]

    def run(**variables):
        kept = ("PATH", "PYTHONPATH", "OMP_NUM_THREADS")
        env = {name: cli.env[name] for name in kept} | variables
        process = subprocess.Popen(
            command,
            cwd=cli.folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        _, err = process.communicate(timeout=200)
        return process.returncode, err

    return run


def test_a_user_without_a_home_or_with_an_odd_folder_is_told(sweep, tmp_path):
    code, err = sweep()
    assert (code, err.count("\n")) == (2, 1), err
    assert "set HOME" in err
    odd = tmp_path / "t m p"
    odd.mkdir()
    code, err = sweep(HOME=str(tmp_path), TMPDIR=str(odd))
    assert code == 2 and "another folder with TMPDIR" in err, err


@pytest.mark.slow
def test_a_user_that_the_system_does_not_know_whose_filter_raises(
    cli, sweep, shared_headers, tmp_path
):
    home = tmp_path / "home"
    temporary = home / "tmp"
    temporary.mkdir(parents=True)
    # the compiler need not write them again
    (temporary / f"torchinductor_{NOBODY}").symlink_to(shared_headers)
    code, err = sweep(HOME=str(home), TMPDIR=str(temporary), PYTHONWARNINGS="error")
    assert (code, err) == (0, "")
    assert [row["status"] for row in results_of(cli.db)] == ["ok", "ok"]
    assert list(home.rglob("compile/**/*.so")), "the caches are where they were asked for"
    assert os.listdir(cli.folder) == ["results"], "no folder named ~"  # noqa: PTH208
