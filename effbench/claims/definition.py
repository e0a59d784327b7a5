"""Read and check the files of experiments (docs/reference/experiments.md)."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from effbench.core.errors import ConfigError, suggest
from effbench.core.printable import describe, one_line

#: Constants that are read without running the file.
CONSTANTS = ("GPU_SECONDS", "NEEDS", "SWEEPS")


@dataclass(frozen=True)
class Answer:
    """The answer of a claim's function. `holds`: a comparison of a figure, a bool, or None (not
    measured); for several statements, a mapping of their texts.

    `value`: the figure to show. `also`: text -> further figures, which do not affect the verdict.
    """

    holds: Any
    value: Any = None
    also: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """A published statement; used as a decorator, it takes the function that judges it.

    The function's parameters name its inputs: `rows` (of all sweeps), a sweep (its rows), or a
    check (its facts). It returns an Answer, or only what it `holds`. `each`: columns; each
    combination of their values is judged separately. `needs`: cuda, if the claim is only about
    CUDA. `not_measurable`: why no measurement can decide it. `published`: the published figures.
    """

    id: str
    text: str
    unit: str = ""
    each: str | Sequence[str] = ()
    needs: str | None = None
    published: str | None = None
    not_measurable: str | None = None
    function: Callable[..., Any] | None = None

    def __call__(self, function: Callable[..., Any]) -> Claim:
        return replace(self, function=function)

    @property
    def inputs(self) -> list[str]:
        if self.function is None:
            return []
        return list(inspect.signature(self.function).parameters)

    @property
    def axes(self) -> list[str]:
        if isinstance(self.each, str):
            return [self.each]
        return list(self.each)


@dataclass(frozen=True)
class Experiment:
    """An experiment. `gpu_seconds`: its cost on one GPU; `sweeps`: name -> Hydra overrides;
    `checks`: names of functions. An outline has no checks, and its claims have no functions."""

    name: str
    question: str
    path: Path
    gpu_seconds: float
    sweeps: Mapping[str, Sequence[str]]
    claims: Sequence[Claim]
    checks: Sequence[str] = ()


def name_of(path: Path) -> str:
    """Return the name of the experiment in a file."""
    return path.stem.replace("_", "-")


def load_all() -> list[Experiment]:
    """Return the outlines of the shipped experiments, by name."""
    from effbench.claims import FOLDER

    return [outline(path) for path in sorted(FOLDER.glob("[!_]*.py"))]


def find(words: Sequence[str]) -> list[Experiment]:
    """Load the experiments that words name: `all`, names, ids of claims, paths of files. Raises
    ConfigError."""
    known: dict[str, list[Path]] = {}
    for shipped in load_all():
        ids = [claim.id.lower() for claim in shipped.claims]
        for name in ("all", shipped.name, *ids):
            known.setdefault(name, []).append(shipped.path)
    chosen: list[Path] = []
    for word in words:
        if word.endswith(".py"):
            chosen.append(Path(word))
        elif word.lower() in known:
            chosen += known[word.lower()]
        else:
            raise ConfigError(
                f"no experiment {word!r}{suggest(word, known)}; `effbench reproduce` lists them, or"
                " give a Python file"
            )
    return [load(path) for path in dict.fromkeys(chosen)]


def outline(path: Path) -> Experiment:
    """Return an experiment's question, constants and claims (without their functions), without
    running its file and so without importing torch. Raises ConfigError."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants, claims = literals_of(tree)
        sweeps = dict(constants.get("SWEEPS", {}))
    # unreadable, no Python, no literal, or no argument of Claim
    except (OSError, SyntaxError, ValueError, TypeError) as error:
        raise ConfigError(
            f"cannot read the experiment {path}: {one_line(error)} (constants and arguments of"
            " Claim must be literals)"
        ) from error
    needs = constants.get("NEEDS")
    question, _, _ = (ast.get_docstring(tree) or "").partition("\n\n")
    return Experiment(
        name=name_of(path),
        question=" ".join(question.split()),
        path=path,
        gpu_seconds=constants.get("GPU_SECONDS", 0),
        sweeps=sweeps,
        claims=[replace(claim, needs=claim.needs or needs) for claim in claims],
    )


def literals_of(tree: ast.Module) -> tuple[dict[str, Any], list[Claim]]:
    """Return the constants and the claims of a file. Raises ValueError for what is no literal,
    TypeError for what is no argument of Claim."""
    constants: dict[str, Any] = {}
    claims = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            name = getattr(node.targets[0], "id", None)
            if name in CONSTANTS:
                constants[name] = ast.literal_eval(node.value)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", None) == "Claim":
            values = [ast.literal_eval(word) for word in node.args]
            settings = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
            claims.append(Claim(*values, **settings))
    return constants, claims


def load(path: Path) -> Experiment:
    """Run an experiment's file and return the experiment. Raises ConfigError that names the file
    and the fault."""
    listed = outline(path)
    values = vars(execute(path))
    functions = {value.id: value.function for value in values.values() if isinstance(value, Claim)}
    claims = [replace(claim, function=functions.get(claim.id)) for claim in listed.claims]
    checks = []
    for name, value in values.items():
        if inspect.isfunction(value) and hasattr(value, "needs"):
            checks.append(name)
    experiment = replace(listed, claims=claims, checks=checks)
    for claim in claims:
        fault = fault_of(claim, experiment)
        if fault:
            raise ConfigError(f"{path}: claim {claim.id} {fault}")
    return experiment


def execute(path: Path) -> ModuleType:
    """Run a file as a module, which may import its neighbours; return it. Raises ConfigError if it
    fails."""
    name = f"effbench_experiment_{path.stem}"
    parent = str(path.resolve().parent)
    if parent not in sys.path:
        sys.path.append(parent)
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the file may raise anything
        raise ConfigError(f"{path}: running it raised {describe(error)}") from error
    return module


def fault_of(claim: Claim, experiment: Experiment) -> str:
    """Return what is wrong with a claim of this experiment; empty if nothing is."""
    ids = [other.id for other in experiment.claims]
    if ids.count(claim.id) > 1:
        return "is defined twice; change one id"
    if (claim.function is None) == (claim.not_measurable is None):
        return "needs either a function at the top level of the file or not_measurable"
    inputs = set(claim.inputs)
    rows = ["rows", *experiment.sweeps]
    if claim.function and not (inputs and inputs <= {*rows, *experiment.checks}):
        expected = ", ".join([*rows, *experiment.checks])
        return f"takes {', '.join(claim.inputs) or 'nothing'}; expected some of {expected}"
    if claim.axes and len(inputs & set(rows)) != 1:
        return "splits rows by each; take the rows of exactly one sweep"
    return ""
