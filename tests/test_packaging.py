"""What `pip install -c constraints.txt` brings fits together."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.lower().replace("_", "-").split("==") for line in lines if "==" in line)


def test_every_dependency_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    names = {re.match(r"[\w-]+", requirement)[0].lower() for requirement in wanted}
    assert names <= set(pinned())


def test_torchvision_fits_torch():
    torch, torchvision = (pinned()[name].split(".") for name in ("torch", "torchvision"))
    assert (torch[0], torchvision[0]) == ("2", "0")
    assert int(torchvision[1]) == int(torch[1]) + 15, "torchvision 0.28 is built for torch 2.13, 0.29 for 2.14, …"


def test_a_release_has_its_metadata_and_license():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0" and (ROOT / "LICENSE").read_text().lstrip().startswith("Apache License")
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert f"## [{project['version']}]" in changes
    assert f"version: {project['version']}" in (ROOT / "CITATION.cff").read_text()
