"""`pip install -c constraints.txt` brings the tested version of everything."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_every_dependency_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    names = {re.match(r"[\w-]+", requirement)[0].lower() for requirement in wanted}
    pins = (ROOT / "constraints.txt").read_text().lower().replace("_", "-").splitlines()
    assert names <= {line.partition("==")[0] for line in pins if "==" in line}
