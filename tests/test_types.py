"""mypy finds no more errors in a package than are known: these numbers only fall."""

import collections
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

#: Package, or `effbench` for its modules -> errors of `mypy --strict`.
KNOWN: dict[str, int] = {
    "commands": 4,
    "comparison": 4,
    "measure": 1,
    "models": 19,
    "modes": 1,
    "report": 1,
    "stats": 2,
    "store": 78,
}


@pytest.mark.timeout(600)
def test_no_package_has_more_errors_than_are_known():
    cache = Path(tempfile.gettempdir()) / f"effbench-mypy-{os.getuid()}"  # makes later runs fast
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(cache), "effbench"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    errors = collections.defaultdict(list)
    for line in done.stdout.splitlines():
        match = re.match(r"effbench/(?:(\w+)/)?.*: error: ", line)
        if match:
            errors[match[1] or "effbench"].append(line)
    too_many = [package for package, lines in errors.items() if len(lines) > KNOWN.get(package, 0)]
    assert not too_many, "\n".join(line for package in too_many for line in errors[package])
