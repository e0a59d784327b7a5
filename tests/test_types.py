"""mypy finds no error in effbench, with the strict settings of pyproject.toml, and no name that
does not exist in scripts and tests that CI does not run."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/*.py"))]
#: What only the machine of a benchmark or a GPU runs.
SCRIPTS = ("benchmarks", "experiments", "tests/gpu", *DOCS)
#: Settings for scripts: types are not checked, but names, calls and indices are.
LENIENT = (
    "--no-strict-optional",
    "--allow-untyped-defs",
    "--allow-incomplete-defs",
    "--allow-untyped-calls",
    "--allow-any-generics",
    "--no-warn-return-any",
    "--ignore-missing-imports",
    "--follow-imports=silent",
)
TYPES = (
    "arg-type",
    "assignment",
    "dict-item",
    "method-assign",
    "misc",
    "return-value",
    "var-annotated",
)


def mypy(name, *words):
    cache = Path(tempfile.gettempdir()) / f"effbench-mypy-{name}-{os.getuid()}"  # for later runs
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(cache), *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(600)
def test_types():
    mypy("strict", "effbench")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("folder", SCRIPTS)  # files of two folders may have the same name
def test_names_in_scripts(folder):
    ignored = [f"--disable-error-code={code}" for code in TYPES]
    mypy("scripts", *LENIENT, *ignored, folder)
