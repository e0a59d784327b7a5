"""Whole sweeps in odd surroundings: a user without a home, odd folder names, a warning filter that
raises."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from whole_sweeps import results_of

#: Starts a command as a user with an id of its own, which has no entry in the user database.
AS_NOBODY = ("unshare", "--user", "--map-user=54321", "--map-group=54321")


def can_be_nobody() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*AS_NOBODY, "true"], capture_output=True, check=False).returncode == 0


def finish(process: subprocess.Popen[str]) -> str:
    """Return what the sweep prints; it must succeed without an error message."""
    out, err = process.communicate(timeout=200)
    assert (process.returncode, err) == (0, ""), out
    return out


@pytest.mark.skipif(not can_be_nobody(), reason="this system has no user namespaces")
def test_a_user_without_a_home_and_a_name(cli, processes):
    temporary = cli.env["TMPDIR"]
    kept = ("PATH", "PYTHONPATH", "TMPDIR", "OMP_NUM_THREADS")
    env = {name: cli.env[name] for name in kept}
    words = ["-m", "effbench", "-m", *cli.tiny, "model=tiny", "mode=eager"]
    command = [*AS_NOBODY, sys.executable, *words]
    process = subprocess.Popen(
        command, cwd=cli.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    processes.append(process)
    finish(process)
    assert [row["status"] for row in results_of(cli.db)] == ["ok"]
    assert os.listdir(f"{temporary}/effbench-54321") == ["cache"]  # noqa: PTH208
    assert os.listdir(cli.folder) == ["results"], "no folder named ~"  # noqa: PTH208


def test_odd_folders_and_a_filter_that_raises(cli, processes, shared_headers, tmp_path):
    odd = tmp_path / 'my "caches", it\'s: größe'
    temporary = tmp_path / "t m p"
    odd.mkdir()
    temporary.mkdir()
    # their path has spaces too, but the compiler need not write them again
    (temporary / shared_headers.name).symlink_to(shared_headers)
    env = {
        "XDG_CACHE_HOME": str(odd),
        "TMPDIR": str(temporary),
        "PYTHONWARNINGS": "error",
        "CUDA_VISIBLE_DEVICES": "",
    }
    process = cli.start(
        "-m", *cli.tiny, "model=tiny", "mode=eager,default", "executor.keep_cache=true", env=env
    )
    processes.append(process)
    finish(process)
    assert [row["status"] for row in results_of(cli.db)] == ["ok", "ok"]
    assert list(odd.rglob("compile/**/*.so")), "the caches are where they were asked for"


def test_the_doctor_tries_the_compiler(cli, processes, tmp_path):
    broken = tmp_path / "g++"
    script = f"""#!/bin/sh
case "$*" in *--version*|*-dumpversion*) exec {shutil.which("g++")} "$@";; esac
echo "cc1plus: fatal error: no room" >&2
exit 1
"""
    broken.write_text(script)
    broken.chmod(0o755)
    process = cli.start(
        "doctor", "--format", "json", env={"CXX": str(broken), "CUDA_VISIBLE_DEVICES": ""}
    )
    processes.append(process)
    out, _ = process.communicate(timeout=200)
    found = [
        finding for finding in json.loads(out)["findings"] if "C++ compiler" in finding["what"]
    ]
    assert len(found) == 1
    assert found[0]["level"] == "warning"
    assert "cc1plus: fatal error: no room" in found[0]["what"]
