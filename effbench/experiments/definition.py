"""What an experiment's file says, and how it is read (docs/experiments.md)."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from effbench.errors import ConfigError, nearest

NEEDS = (None, "cuda")
#: Columns by whose values a claim may be split, besides the swept parameters.
AXES = ("model", "bs", "mode", "dtype", "phase", "device")
_NAME = re.compile(r"[A-Za-z0-9][\w-]*", re.ASCII)
_CONSTANTS = ("GPU_SECONDS", "NEEDS", "SWEEPS")


@dataclass(frozen=True)
class Found:
    """What a claim's function returns. `holds`: a condition, or statement -> condition if it says several things.

    `value`: the figure to be shown. `also`: text -> further figures, which decide nothing.
    """

    holds: Any
    value: Any = None
    also: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """A statement; as a decorator, it takes the function that judges it.

    The function's parameters name what it needs: `rows` (of all sweeps), a sweep (its rows), or a check (its facts). It
    returns a Found. `each`: columns for each of whose combinations it is judged separately. `needs`: cuda, if it says
    nothing about other devices. `not_measurable`: why no measurement decides it. `published`: figures of others.
    """

    id: str
    text: str
    unit: str = ""
    each: str | Sequence[str] = ()
    needs: str | None = None
    published: str | None = None
    not_measurable: str | None = None
    function: Callable[..., Found] | None = None

    def __call__(self, function: Callable[..., Found]) -> Claim:
        return replace(self, function=function)

    @property
    def inputs(self) -> list[str]:
        return list(inspect.signature(self.function).parameters) if self.function else []

    @property
    def axes(self) -> list[str]:
        return [self.each] if isinstance(self.each, str) else list(self.each)


@dataclass(frozen=True)
class Pivot:
    """A table to print: one value for each combination of `rows` × `columns`. `value`: a column, or a function that
    makes one from the rows. `sweep`: whose rows, by default those of all."""

    title: str
    value: str | Callable[[Any], Any]
    sweep: str = "rows"
    rows: Sequence[str] = ("model", "bs")
    columns: str = "mode"
    unit: str = ""


@dataclass(frozen=True)
class Experiment:
    """`sweeps`: name -> Hydra overrides; `checks`: names of functions; `gpu_seconds`: its cost on one GPU."""

    name: str
    question: str
    path: Path
    gpu_seconds: float
    needs: str | None = None
    sweeps: Mapping[str, Sequence[str]] = field(default_factory=dict)
    checks: Sequence[str] = ()
    tables: Sequence[Pivot] = ()
    claims: Sequence[Claim] = ()

    @property
    def swept(self) -> dict[str, str]:
        """Column -> path of the parameters that its sweeps set: `width` of `model.module.width=16,32`."""
        keys = [word.partition("=")[0] for words in self.sweeps.values() for word in words]
        return {key.rpartition(".")[2]: key for key in keys if key.startswith(("model.", "mode.", "numerics."))}


def load_all(folder: Path | None = None) -> list[Experiment]:
    """Return the outlines of a folder's experiments, by name. Raises ConfigError if two judge one claim."""
    from effbench.experiments import FOLDER

    paths = sorted((folder or FOLDER).glob("*.py"))
    experiments = [outline(path) for path in paths if not path.name.startswith("_")]  # what several share
    owners: dict[str, str] = {}
    for experiment in experiments:
        for claim in experiment.claims:
            if (owner := owners.setdefault(claim.id, experiment.name)) != experiment.name:
                raise ConfigError(f"claim {claim.id} is judged by {owner} and by {experiment.name}: change one id")
    return experiments


def find(words: Sequence[str]) -> list[Experiment]:
    """Load what the words mean (`all`, names, ids of claims, paths of files), each once. Raises ConfigError."""
    found: dict[Path, Experiment] = {}
    known: dict[str, list[Path]] = {}
    for word in words:
        if word.endswith((".yaml", ".yml")):
            raise ConfigError(f"{word}: an experiment is a Python file; docs/experiments.md shows one")
        if not word.endswith(".py") and not known:
            experiments = load_all()
            known = {"all": [one.path for one in experiments]} | {one.name: [one.path] for one in experiments}
            known |= {claim.id: [one.path] for one in experiments for claim in one.claims}
        paths = [Path(word)] if word.endswith(".py") else known.get(word) or known.get(word.upper())
        if paths is None:
            hint = f"nearest: {near}" if (near := nearest(word, known)) else f"there are {', '.join(known)}"
            raise ConfigError(f"no experiment {word!r}; {hint}; `all`, or the path of a Python file of your own")
        found |= {path: load(path) for path in paths if path not in found}
    return list(found.values())


def outline(path: Path) -> Experiment:
    """Read an experiment without running its file: its question, constants, and claims without their functions."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the experiment {path}: {error.strerror or error}") from error
    except SyntaxError as error:
        raise ConfigError(f"{path}, line {error.lineno}: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:  # no UTF-8, null bytes, or nested too deep
        raise ConfigError(f"{path} is not Python: {error}") from error
    values: dict[str, Any] = {"__doc__": ast.get_docstring(tree)}
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(name := statement.targets[0], ast.Name):
            if name.id in _CONSTANTS:
                values[name.id] = _literal(path, name.id, statement.value)
            calls = [statement.value]
        else:
            calls = getattr(statement, "decorator_list", [getattr(statement, "value", None)])
        for call in calls:
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Claim":
                values[f"claim {call.lineno}"] = _claim(path, call)
    return _experiment(path, values)


def _literal(path: Path, where: str, node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        hint = "it is read without running the file, so it must be a literal"
        raise ConfigError(f"{path}, line {node.lineno}: {where}: {hint}") from error


def _claim(path: Path, call: ast.Call) -> Claim:
    args = [_literal(path, "a claim's argument", node) for node in call.args]
    named = {str(one.arg): _literal(path, f"a claim's {one.arg}", one.value) for one in call.keywords}
    where = f"{path}: claim {args[0] if args else named.get('id', '')}"
    allowed = [name for name in inspect.signature(Claim).parameters if name != "function"]
    for name in named.keys() - set(allowed):
        hint = f"did you mean {near}?" if (near := nearest(name, allowed)) else f"allowed: {', '.join(allowed)}"
        raise ConfigError(f"{where} has no {name!r}; {hint}")
    try:
        return Claim(*args, **named)
    except TypeError as error:
        raise ConfigError(f"{where}: {str(error).replace('Claim.__init__()', 'Claim()')}") from error


def load(path: Path) -> Experiment:
    """Run an experiment's file and return all of it. Raises ConfigError that names the file and what is wrong."""
    outline(path)  # its errors are the more precise ones
    experiment = _experiment(path, vars(execute(path)))
    for claim in experiment.claims:
        _check_function(experiment, claim)
    return experiment


def execute(path: Path) -> ModuleType:
    """Run a file as a module; what lies next to it is importable from it. Raises ConfigError if it fails."""
    name = f"effbench_experiment_{path.stem}"
    if (parent := str(path.resolve().parent)) not in sys.path:
        sys.path.append(parent)
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        text = (str(error).strip() or "no message").splitlines()[0]
        raise ConfigError(f"{path}: running it raised {type(error).__name__}: {text}") from error
    return module


def _experiment(path: Path, values: Mapping[str, Any]) -> Experiment:
    """Raises ConfigError for what is missing or out of bounds."""

    def refuse_unless(allowed: bool, text: str) -> None:
        if not allowed:
            raise ConfigError(f"{path}: {text}")

    refuse_unless(bool(_NAME.fullmatch(path.stem)), "a file's name has letters, digits, hyphens and underscores only")
    refuse_unless(path.stem != "all", "all means all experiments: give the file another name")
    question, seconds = values.get("__doc__"), values.get("GPU_SECONDS")
    refuse_unless(bool(question), "the question is missing: write it as the first paragraph of the file's docstring")
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    refuse_unless(is_number and 0 <= seconds < math.inf, f"GPU_SECONDS: expected a number of seconds, got {seconds!r}")
    needs, sweeps = values.get("NEEDS"), values.get("SWEEPS", {})
    refuse_unless(needs in NEEDS, f"NEEDS: expected 'cuda' or nothing, got {needs!r}")
    refuse_unless(isinstance(sweeps, Mapping), f"SWEEPS: expected name -> overrides, got {sweeps!r}")
    checks = [name for name, value in values.items() if inspect.isfunction(value) and hasattr(value, "needs")]
    for name, words in sweeps.items():
        is_list = isinstance(words, list | tuple) and words and all(isinstance(w, str) and "=" in w for w in words)
        refuse_unless(is_list, f"sweep {name}: expected a list of overrides, such as ['model=mlp', 'bs=1,8']")
        is_name = isinstance(name, str) and name.isidentifier() and name not in ("rows", *checks)
        refuse_unless(is_name, f"sweep {name!r}: choose another name")
    claims = [value for value in values.values() if isinstance(value, Claim)]
    refuse_unless(bool(sweeps or checks or claims), "an experiment has sweeps, checks or claims")
    for number, claim in enumerate(claims):
        where = f"claim {claim.id}"
        for name in ("id", "text", "unit", "published", "not_measurable", "needs"):
            value = getattr(claim, name)
            optional = value is None and name not in ("id", "text", "unit")
            refuse_unless(optional or isinstance(value, str), f"{where}: {name}: expected a text, got {value!r}")
        refuse_unless(
            isinstance(claim.each, str | list | tuple), f"{where}: each: expected columns, got {claim.each!r}"
        )
        refuse_unless(bool(claim.id and claim.text), f"{where}: id and text must not be empty")
        refuse_unless(claim.needs in NEEDS, f"{where}: needs: expected 'cuda' or nothing, got {claim.needs!r}")
        refuse_unless(claim.id not in [one.id for one in claims[:number]], f"{where} is there twice: change one id")
    question = " ".join(question.partition("\n\n")[0].split())
    tables = values.get("TABLES", ())
    name = path.stem.replace("_", "-")
    experiment = Experiment(name, question, path, float(seconds), needs, sweeps, checks, tables, claims)
    for claim in claims:
        for axis in claim.axes:
            known = (*AXES, *experiment.swept)
            refuse_unless(axis in known, f"claim {claim.id}: each: no column {axis!r}; there are {', '.join(known)}")
    for table in tables:
        refuse_unless(isinstance(table, Pivot), f"TABLES: expected a list of Pivot, got {table!r}")
        refuse_unless(table.sweep in ("rows", *sweeps), f"table {table.title!r}: no sweep {table.sweep!r}")
    return experiment


def _check_function(experiment: Experiment, claim: Claim) -> None:
    where = f"{experiment.path}: claim {claim.id}"
    if (claim.function is None) == (claim.not_measurable is None):
        raise ConfigError(f"{where} needs either a function that judges it or not_measurable")
    known = ("rows", *experiment.sweeps, *experiment.checks)
    for name in claim.inputs:
        if name not in known or (name == "rows" and not experiment.sweeps):
            raise ConfigError(f"{where}: no sweep or check {name!r}; there are {', '.join(known)}")
    if claim.function is not None and not claim.inputs:
        raise ConfigError(f"{where} rests on nothing: its function takes {', '.join(known)}")
    frames = [name for name in claim.inputs if name not in experiment.checks]
    if claim.axes and len(frames) != 1:
        raise ConfigError(f"{where}: each splits the rows of one sweep, and its function takes {len(frames)}")
