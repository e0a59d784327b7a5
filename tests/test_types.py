"""mypy finds no error in effbench, with the strict settings of pyproject.toml."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.timeout(600)
def test_types():
    cache = Path(tempfile.gettempdir()) / f"effbench-mypy-{os.getuid()}"  # makes later runs fast
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(cache), "effbench"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
