"""Imports point one way and load no more than is needed; public names and dependencies are those
that are promised."""

import ast
import functools
import graphlib
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import effbench

PACKAGE = Path(effbench.__file__).parent
ROOT = PACKAGE.parent

#: Packages and top-level modules from the ground up: each may import itself and those on the lines
#: before its own.
LAYERS = (
    ("core", "stats"),
    ("models",),
    ("measure",),
    ("modes",),
    ("workloads",),
    ("worker", "store"),
    ("run",),
    ("config",),
    ("analysis", "claims", "doctor"),
    ("render",),
    ("api",),
    ("cli", "__init__"),
    ("__main__",),
)
LEVELS = {unit: level for level, units in enumerate(LAYERS) for unit in units}
WITH_TORCH = {"worker", "workloads", "models", "modes", "measure"}
#: Libraries that only some models and settings need.
OF_SOME_MODELS = {
    "diffusers",
    "torchao",
    "torchvision",
    "transformers",
    "triton",
}

FILES = sorted(path for path in PACKAGE.rglob("*.py") if "conf" not in path.parts)


def name_of(path: Path) -> str:
    """`models.spec` of effbench/models/spec.py."""
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


@functools.cache
def imports(path: Path) -> set[str]:
    """Return every module that a file imports, wherever in it."""
    return imported_by(ast.walk(ast.parse(path.read_text())), path)


def imports_at_the_top(path: Path) -> set[str]:
    """Return the modules that are imported with this one, not by a function of it."""
    return imported_by(ast.parse(path.read_text()).body, path)


def imported_by(nodes: Iterable[ast.AST], path: Path) -> set[str]:
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            # of `from effbench.measure import timing` both may be meant
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def unit_of(name: str) -> str:
    return name.split(".")[0]


def test_imports_point_one_way():
    wrong = []
    for path in FILES:
        unit = unit_of(name_of(path))
        for imported in imports(path):
            inner = imported.removeprefix("effbench.")
            if inner == imported or inner.startswith("__"):  # effbench.__version__
                continue
            other = unit_of(inner)
            if other != unit and LEVELS[other] >= LEVELS[unit] and unit != "__init__":
                wrong.append(f"{name_of(path)} imports {imported}")
    assert not wrong, "\n".join(wrong)


def test_no_circle_of_imports():
    """Imports at the top of modules form no circle; `graphlib` names the modules of one."""
    modules = {f"effbench.{name_of(path)}" for path in FILES}
    graph: dict[str, set[str]] = {}
    for path in FILES:
        names = {
            name if name in modules else name.rpartition(".")[0]
            for name in imports_at_the_top(path)
        }
        graph[f"effbench.{name_of(path)}"] = names & modules
    list(graphlib.TopologicalSorter(graph).static_order())


def test_an_interpreter_needs_three_packages():
    files = [path for path in FILES if unit_of(name_of(path)) in WITH_TORCH]
    imported = {unit_of(name) for path in files for name in imports(path)}
    others = imported - sys.stdlib_module_names - {"effbench"} - OF_SOME_MODELS
    assert others == {"torch", "numpy", "pynvml"}, "docs/how-to/compare-versions.md names them"


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a statement loads in a fresh interpreter."""
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    loaded = subprocess.check_output([sys.executable, "-c", code], env=env, text=True)
    return {name.split(".")[0] for name in loaded.split()}


@pytest.mark.parametrize(
    ("statement", "unneeded"),
    [
        ("import effbench", {"torch", "pandas", "numpy", "hydra", "sqlalchemy", "plotly", "rich"}),
        ("import effbench.cli.main", {"torch", "pandas", "hydra", "sqlalchemy", "plotly"}),
        (
            "from effbench.cli import db, doctor, export, history, ls, models, report, show;"
            " import effbench.render.site.build",
            {"torch", "pandas", "hydra", "plotly", "timm", "transformers"},
        ),
        ("import effbench.config.launch", {"torch", "pandas", "plotly"}),
        (
            "import effbench.claims.definition as d; d.shipped_verdicts()",
            {"torch", "pandas", "hydra", "sqlalchemy"},
        ),
        (
            "from effbench.core import buckets, message, processes, streams;"
            " import effbench.models.spec",
            {"torch", "numpy", "hydra"},
        ),
    ],
)
def test_what_is_not_needed_is_not_loaded(statement, unneeded):
    assert not loaded_by(statement) & unneeded


def test_public_names():
    """The Python API: a name that goes is a break, one that comes is a promise."""
    errors = {
        "Config",
        "Effbench",
        "Interpreter",
        "NothingFound",
        "Resume",
        "Schema",
        "Store",
        "Unsupported",
        "Usage",
        "Worker",
    }
    data = {"Cell", "Environment", "Status", "Sweep", "Trial"}
    others = {"__version__", "compare", "results", "sweep"}
    assert set(effbench.__all__) == {*(f"{name}Error" for name in errors), *data, *others}
    assert set(effbench.__all__) <= set(dir(effbench)), "notebooks complete them"
    for name in effbench.__all__:
        assert getattr(effbench, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        effbench.nothing  # noqa: B018


def test_exceptions_have_exit_codes():
    for name in effbench.__all__:
        if name.endswith("Error"):
            error = getattr(effbench, name)
            assert issubclass(error, effbench.EffbenchError)
            assert error.exit_code == (3 if name == "NothingFoundError" else 2)
            assert error.__doc__


def test_no_module_hides_a_public_function():
    """A submodule that is imported becomes an attribute of the package, and would replace the
    function."""
    names = {unit_of(name_of(path)) for path in FILES}
    assert names & set(effbench.__all__) == set()
