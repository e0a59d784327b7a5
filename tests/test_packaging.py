"""What `pip install -c constraints.txt` brings fits together."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.lower().replace("_", "-").split("==") for line in lines if "==" in line)


def test_every_dependency_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
    ]
    names = {re.match(r"[\w-]+", requirement)[0].lower() for requirement in wanted}
    assert names <= set(pinned())


@pytest.mark.parametrize(
    ("file", "words"),
    [("CHANGELOG.md", "## [{}]"), ("CITATION.cff", "version: {}")],
)
def test_a_release_has_its_version(file, words):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert words.format(project["version"]) in (ROOT / file).read_text()


@pytest.mark.parametrize("words", [("check",), ("format", "--check")], ids=" ".join)
def test_the_code_passes_ruff(words):
    command = [sys.executable, "-m", "ruff", *words, "--no-cache", "--quiet", "."]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pre_commit_runs_the_pinned_ruff():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [hook["rev"] for hook in hooks if "ruff" in hook["repo"]] == [f"v{pinned()['ruff']}"]


@pytest.mark.extra("hatchling")
def test_the_source_distribution_installs(tmp_path):
    def run(words: str, folder: Path = tmp_path) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *words.split()],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    environment = {**os.environ, "PIP_NO_INDEX": "1"}
    run(f"hatchling build -t sdist -d {tmp_path}", ROOT)
    (archive,) = tmp_path.glob("*.tar.gz")
    run(f"pip install -q --no-deps --no-build-isolation --target installed {archive}")
    installed = tmp_path / "installed"
    environment["PYTHONPATH"] = str(installed)
    for folder, shipped in (("conf", "conf"), ("experiments", "claims/shipped")):
        names = {path.name for path in (installed / "effbench" / shipped).rglob("*")}
        # Without what Python compiled beside them.
        sources = [path for path in (ROOT / folder).rglob("*.*") if "__pycache__" not in path.parts]
        assert names >= {path.name for path in sources}
    assert list(installed.glob("effbench-*.dist-info/licenses/LICENSE"))
    assert "_target_" in run("effbench model=tiny --cfg job")
