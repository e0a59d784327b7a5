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


def test_torchvision_fits_torch():
    torch, torchvision = (pinned()[name].split(".") for name in ("torch", "torchvision"))
    assert (torch[0], torchvision[0]) == ("2", "0")
    assert int(torchvision[1]) == int(torch[1]) + 15, (
        "torchvision 0.28 is built for torch 2.13, 0.29 for 2.14, …"
    )


def test_a_release_has_its_metadata_and_license():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0" and (
        ROOT / "LICENSE"
    ).read_text().lstrip().startswith("Apache License")
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert f"## [{project['version']}]" in changes
    assert f"version: {project['version']}" in (ROOT / "CITATION.cff").read_text()


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
    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    environment = {**os.environ, "PIP_NO_INDEX": "1"}
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
    )
    (archive,) = tmp_path.glob("*.tar.gz")
    run(
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        "installed",
        str(archive),
    )
    installed = tmp_path / "installed"
    environment["PYTHONPATH"] = str(installed)
    assert (
        run("effbench", "--version").split()[-1]
        == archive.name.removesuffix(".tar.gz").rpartition("-")[2]
    )
    for folder, shipped in (("conf", "conf"), ("experiments", "claims/shipped")):
        files = {
            str(path.relative_to(ROOT / folder))
            for path in (ROOT / folder).rglob("*.*")
            if "__" not in str(path)
        }
        assert files and all(
            (installed / "effbench" / shipped / name).is_file() for name in files
        ), folder
    assert list(installed.glob("effbench-*.dist-info/licenses/LICENSE"))
    assert "_target_" in run("effbench", "model=tiny", "--cfg", "job")
