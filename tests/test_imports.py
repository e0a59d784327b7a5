"""Imports point one way, only the worker's side needs torch, and the public names are those that are promised."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import effbench

PACKAGE = Path(effbench.__file__).parent
ROOT = PACKAGE.parent

BASIC = {"cell", "errors"}
#: Unit -> what of effbench it may import, besides itself, cell and errors. A unit is a package or a module of the top.
MAY_IMPORT = {
    "cell": set(),
    "errors": set(),
    "message": set(),
    "metrics": set(),
    "outputs": set(),
    "streams": set(),
    "buckets": set(),
    "config": set(),
    "printable": set(),
    "terminal": {"printable"},
    "models": set(),
    "modes": {"models", "buckets", "measure.memory", "measure.timing"},
    "measure": {"analysis.statistics"},
    "evidence": {"models", "modes", "measure", "worker.failures"},
    "worker": {"models", "modes", "measure", "message", "analysis.statistics"},
    "analysis": {"metrics", "buckets"},
    "store": {"analysis", "metrics", "outputs", "printable"},
    "sweeping": {
        "store",
        "message",
        "config",
        "metrics",
        "streams",
        "models.spec",
        "analysis.swept",
        "analysis.interpreters",
        "analysis.stopping",
        "printable",
        "terminal",
    },
    "report": {"analysis", "metrics", "outputs", "printable", "store.secrets"},
    "doctor": {"store", "sweeping", "analysis", "metrics", "message", "terminal"},
    "reproduce": {"store", "sweeping", "analysis", "message", "config"},
    "regression": {"store", "sweeping", "analysis", "metrics", "message", "config"},
    "commands": {
        "outputs",
        "regression",
        "store",
        "report",
        "analysis",
        "config",
        "metrics",
        "streams",
        "buckets",
        "message",
        "sweeping",
        "doctor",
        "reproduce",
        "printable",
        "terminal",
    },
    "cli": {"commands", "sweeping", "config", "printable", "store.secrets"},
    "api": {"sweeping", "store", "config", "regression", "analysis.limits", "analysis.screen"},
    "__init__": {"api"},
    "__main__": {"cli"},
}
WITH_TORCH = {"worker", "models", "modes", "measure", "evidence"}
#: Standard library only: the process border and the core types load in any interpreter at once.
STANDARD_ONLY = {"cell", "errors", "message", "streams", "buckets", "printable", "models.spec", "worker.processes"}

FILES = sorted(path for path in PACKAGE.rglob("*.py") if "conf" not in path.parts)


def name_of(path: Path) -> str:
    """`models.spec` of effbench/models/spec.py."""
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def imports(path: Path) -> set[str]:
    """Every module that a file imports, wherever in it, but for what only type checkers read."""
    tree = ast.parse(path.read_text())
    unread = {
        id(node)
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and ast.unparse(test.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for statement in test.body
        for node in ast.walk(statement)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in unread:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            # of `from effbench.measure import timing` both may be meant
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def unit_of(name: str) -> str:
    return name.split(".")[0]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_point_one_way(path):
    unit = unit_of(name_of(path))
    assert unit in MAY_IMPORT, f"say in this test what {unit} may import"
    allowed = BASIC | MAY_IMPORT[unit] | {unit}
    for imported in imports(path):
        if not imported.startswith("effbench."):
            continue
        inner = imported.removeprefix("effbench.")
        if inner.startswith("__"):  # effbench.__version__
            continue
        assert any(f"{inner}.".startswith(f"{one}.") for one in allowed), f"{name_of(path)} imports {imported}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_only_the_workers_side_imports_torch(path):
    heavy = {name for name in imports(path) if unit_of(name) in ("torch", "torchvision", "transformers", "triton")}
    assert not heavy or unit_of(name_of(path)) in WITH_TORCH, heavy


@pytest.mark.parametrize("name", sorted(STANDARD_ONLY))
def test_standard_library_only(name):
    path = PACKAGE / f"{name.replace('.', '/')}.py"
    outside = {found for found in imports(path) if unit_of(found) not in {*sys.stdlib_module_names, "effbench"}}
    assert outside == set()


def test_the_rules_name_what_exists():
    units = {unit_of(name_of(path)) for path in FILES}
    assert set(MAY_IMPORT) <= units


def test_no_file_grows_too_long():
    too_long = {name_of(path): lines for path in FILES if (lines := len(path.read_text().splitlines())) > 420}
    assert too_long == {}


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a statement loads in a fresh interpreter."""
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.split(".")[0] for name in done.stdout.split()}


def test_importing_effbench_costs_nothing():
    assert not loaded_by("import effbench") & {"torch", "pandas", "numpy", "hydra", "sqlalchemy", "plotly", "rich"}


@pytest.mark.parametrize(
    ("statement", "unneeded"),
    [
        ("import effbench.cli", {"torch", "pandas", "hydra", "sqlalchemy", "plotly"}),
        ("import effbench.commands.show", {"torch", "pandas", "hydra", "plotly"}),
        ("import effbench.commands.ls", {"torch", "pandas", "hydra", "plotly"}),
        ("import effbench.commands.doctor", {"torch", "pandas", "hydra", "plotly", "scipy"}),
        ("import effbench.sweeping.hydra_plugin", {"torch", "pandas", "plotly"}),
        ("import effbench.report.site.build", {"torch", "hydra"}),
        ("import effbench.worker.processes, effbench.message", {"torch", "numpy", "hydra"}),
    ],
)
def test_what_is_not_needed_is_not_loaded(statement, unneeded):
    assert not loaded_by(statement) & unneeded


def test_public_names():
    """The Python API: a name that goes is a break, one that comes is a promise."""
    assert sorted(effbench.__all__) == [
        "Cell",
        "ConfigError",
        "EffbenchError",
        "Environment",
        "NothingFoundError",
        "ResumeError",
        "SchemaError",
        "Status",
        "StoreError",
        "Sweep",
        "Trial",
        "UnsupportedError",
        "UsageError",
        "WorkerError",
        "__version__",
        "compare",
        "results",
        "sweep",
    ]
    for name in effbench.__all__:
        assert getattr(effbench, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        effbench.nothing  # noqa: B018


@pytest.mark.parametrize("name", [name for name in effbench.__all__ if name.endswith("Error")])
def test_exceptions_have_exit_codes(name):
    error = getattr(effbench, name)
    assert issubclass(error, effbench.EffbenchError)
    assert error.exit_code == (3 if name == "NothingFoundError" else 2)
    assert error.__doc__
