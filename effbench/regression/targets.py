"""Code of the user's that cells run: its names, and where an interpreter would import it from."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from effbench.cell import Cell, targets_in
from effbench.sweep.interpreters import Interpreter

#: Targets that come with effbench: what they do does not depend on the working directory.
OWN_TARGETS = ("effbench.models.", "effbench.modes.", "torch.", "torchvision.")
TIMEOUT_S = 60.0
#: Answers with a path for each package; any Python 3 runs it, and it imports none of them.
WHERE = """
import importlib.util, json, sys
sys.path.insert(0, "")
def where(name):
    spec = importlib.util.find_spec(name)
    if spec is None: return None
    return spec.origin if spec.has_location else next(iter(spec.submodule_search_locations or [None]))
print(json.dumps(["effbench", {name: where(name) for name in sys.argv[1:]}]))
"""


def targets(cells: Iterable[Cell]) -> list[str]:
    """Every `_target_` of theirs, nested ones too, and every loss, that is not effbench's or torch's."""
    found = {}
    for cell in cells:
        named = [*targets_in(cell.model["module"]), *targets_in(cell.mode), (cell.training or {}).get("loss", "mean")]
        found |= dict.fromkeys(one for one in named if "." in one and not one.startswith(OWN_TARGETS))
    return list(found)


def sources(names: Sequence[str], interpreter: Interpreter) -> dict[str, Path | None]:
    """Target -> the file (or folder of a package without one) that its first module is read from by this interpreter in
    its folder; None where there is none."""
    home = Path(interpreter.home)
    files = {name: home / name.partition(":")[0] for name in names if is_file(name)}
    found: dict[str, Path | None] = {name: path if path.is_file() else None for name, path in files.items()}
    packages = {name: name.partition(".")[0] for name in names if name not in files}
    if packages:
        answer = ask(interpreter.executable, sorted(set(packages.values())), home)
        found |= {name: Path(path) if (path := answer.get(package)) else None for name, package in packages.items()}
    return {name: path and path.resolve() for name, path in found.items()}


def is_file(target: str) -> bool:
    """`path/to/file.py:Name` and no `package.module.Name`."""
    return ":" in target or target.endswith(".py")


def ask(executable: str, packages: Sequence[str], home: Path) -> dict[str, str | None]:
    """Where the packages are; nothing is known of an interpreter that does not answer."""
    try:
        done = subprocess.run(
            [executable, "-c", WHERE, *packages], cwd=home, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=TIMEOUT_S, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return {}
    # a sitecustomize may print before it
    lines = [line for line in done.stdout.splitlines() if line.startswith('["effbench"')]
    return json.loads(lines[-1])[1] if lines else {}
