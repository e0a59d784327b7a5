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


@pytest.mark.skipif(not can_be_nobody(), reason="this system has no user namespaces")
def test_a_user_without_a_home_in_an_odd_folder_whose_filter_raises(
    cli, processes, shared_headers, tmp_path
):
    odd = tmp_path / 'my "t m p", it\'s: größe'
    odd.mkdir()
    # their path has spaces too, but the compiler need not write them again
    (odd / f"torchinductor_uid{NOBODY}").symlink_to(shared_headers)
    own = odd / f"effbench-{NOBODY}"
    own.mkdir(mode=0o700)
    caches = own / "cache"
    # the fork server may look into its folder before the sweep has created it
    (caches / "effbench" / "inductor").mkdir(parents=True)
    kept = ("PATH", "PYTHONPATH", "OMP_NUM_THREADS")
    env = {name: cli.env[name] for name in kept}
    env |= {"TMPDIR": str(odd), "PYTHONWARNINGS": "error"}
    words = ["-m", "effbench", "-m", *cli.tiny, "model=tiny", "mode=eager,default"]
    command = [*AS_NOBODY, sys.executable, *words, "executor.keep_cache=true"]
    process = subprocess.Popen(
        command, cwd=cli.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    processes.append(process)
    out, err = process.communicate(timeout=200)
    assert (process.returncode, err) == (0, ""), (out, err)
    assert [row["status"] for row in results_of(cli.db)] == ["ok", "ok"]
    assert list(caches.rglob("compile/**/*.so")), "the caches are where they were asked for"
    assert os.listdir(cli.folder) == ["results"], "no folder named ~"  # noqa: PTH208
