"""Tests of an optional package that is not installed are skipped, but fail in CI (the rule in
tests/conftest.py)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Hides a package from Python.
HIDDEN = """
import importlib.machinery as machinery
original = machinery.PathFinder.find_spec.__func__

def find_spec(cls, name, path=None, target=None):
    return None if name.partition(".")[0] == "timm" else original(cls, name, path, target)

machinery.PathFinder.find_spec = classmethod(find_spec)
"""
TESTS = {
    "test_whole.py": "import timm\n\ndef test_it(): pass\n",
    "test_single.py": (
        """
import pytest

@pytest.fixture
def network():
    import timm

def test_imports(): import timm.layers
def test_fixture(network): pass
def test_message(): assert not "network needs timm, which is not installed"
def test_hint(): raise RuntimeError('to be fixed: pip install "effbench[models]"')
@pytest.mark.extra("timm")
def test_declared(): raise AssertionError
@pytest.mark.extra("pytest")
def test_fails(): raise RuntimeError("timm is slow")
def test_another_package(): import no_such_package
def test_passes(): pass
"""
    ),
}


@pytest.mark.parametrize(
    ("ci", "outcomes"),
    [("", "2 failed, 1 passed, 6 skipped"), ("true", "6 failed, 1 passed, 2 errors")],
)
def test_a_missing_package_skips_its_tests_and_in_ci_fails_them(tmp_path, ci, outcomes):
    for name, text in {**TESTS, "sitecustomize.py": HIDDEN}.items():
        (tmp_path / name).write_text(text)
    folders = [str(tmp_path), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    variables = {"PYTHONPATH": os.pathsep.join(folders), "CI": ci}
    words = "-m pytest -p conftest -rs -q --color=no --continue-on-collection-errors"
    done = subprocess.run(
        [sys.executable, *words.split(), "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcomes in done.stdout, done.stdout
    assert ("needs timm: pip install 'effbench[models]'" in done.stdout) == (ci == "")
