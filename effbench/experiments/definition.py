"""Read and check the files of experiments (docs/reference/experiments.md)."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from effbench.errors import ConfigError, suggest
from effbench.printable import describe, one_line

#: Columns that may split a claim (`each`), besides the swept parameters.
AXES = ("model", "bs", "mode", "dtype", "phase", "device")
#: Sections whose settings become columns if a sweep sets them.
SWEPT = ("model.", "mode.", "numerics.", "stream.", "training.", "generate.", "env.")
#: Start of the settings that cells hold only as arguments of their module, such as model.arch.
OF_NETWORK = re.compile(r"^model\.(?=(arch|task|seq|image_size|pretrained|config|kwargs)\b)")


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
        return list(inspect.signature(self.function).parameters) if self.function else []

    @property
    def axes(self) -> list[str]:
        return [self.each] if isinstance(self.each, str) else list(self.each)


@dataclass(frozen=True)
class Pivot:
    """A table to print: one value for each combination of `rows` × `columns`. `value`: a column, or
    a function that returns one for the rows. `sweep`: the sweep that gives the rows, by default
    all."""

    title: str
    value: str | Callable[[Any], Any]
    sweep: str = "rows"
    rows: Sequence[str] = ("model", "bs")
    columns: str = "mode"
    unit: str = ""


@dataclass(frozen=True)
class Experiment:
    """An experiment. `gpu_seconds`: its cost on one GPU; `sweeps`: name -> Hydra overrides;
    `checks`: names of functions. An outline has no checks and tables, and its claims have no
    functions."""

    name: str
    question: str
    path: Path
    gpu_seconds: float | None
    sweeps: Mapping[str, Sequence[str]]
    claims: Sequence[Claim]
    checks: Sequence[str] = ()
    tables: Sequence[Pivot] = ()

    @property
    def swept(self) -> dict[str, str]:
        """Column -> path of each parameter that the sweeps set: `width` for
        `model.module.width=16,32`. A name that several have, or that is a column of the view,
        remains whole: `mode.mode`."""
        words = [word for words in self.sweeps.values() for word in words if word.startswith(SWEPT)]
        settings = [OF_NETWORK.sub("model.module.", word.partition("=")[0]) for word in words]
        names = {path: path.rpartition(".")[2] for path in settings}
        counts = Counter([*AXES, *names.values()])
        return {name if counts[name] == 1 else path: path for path, name in names.items()}


# --- find ---


def load_all() -> list[Experiment]:
    """Return the outlines of the shipped experiments, by name."""
    from effbench.experiments import FOLDER

    return [outline(path) for path in sorted(FOLDER.glob("*.py")) if not path.name.startswith("_")]


def find(words: Sequence[str]) -> list[Experiment]:
    """Load the experiments that words name: `all`, names, ids of claims, paths of files. Raises
    ConfigError."""
    known: dict[str, list[Path]] = {}
    if not all(word.endswith(".py") for word in words):
        for shipped in load_all():
            for name in ("all", shipped.name, *(claim.id for claim in shipped.claims)):
                known.setdefault(name, []).append(shipped.path)
    chosen: dict[Path, None] = {}
    for word in words:
        paths = [Path(word)] if word.endswith(".py") else known.get(word) or known.get(word.upper())
        if paths is None:
            raise ConfigError(
                f"no experiment {word!r}{suggest(word, known)}; `effbench reproduce` lists them, or"
                " give a Python file"
            )
        chosen |= dict.fromkeys(paths)
    return [load(path) for path in chosen]


def outline(path: Path) -> Experiment:
    """Return an experiment's question, constants and claims (without their functions), without
    running its file and so without importing torch. Raises ConfigError."""
    values: dict[str, Any] = {"GPU_SECONDS": None, "NEEDS": None, "SWEEPS": {}}
    claims = []
    node: ast.AST | None = None
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                if node.targets[0].id in values:
                    values[node.targets[0].id] = ast.literal_eval(node.value)
            elif isinstance(node, ast.Call) and getattr(node.func, "id", None) == "Claim":
                settings = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
                claims.append(Claim(*map(ast.literal_eval, node.args), **settings))
    # unreadable, no Python, no literal, no argument of Claim, or nested too deep
    except (OSError, SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        line = f", line {node.lineno}" if isinstance(node, ast.stmt | ast.expr) else ""
        raise ConfigError(
            f"cannot read the experiment {path}{line}: {one_line(error)} (constants and arguments"
            " of Claim must be literals)"
        ) from error
    return Experiment(
        name=path.stem.replace("_", "-"),
        question=" ".join((ast.get_docstring(tree) or "").partition("\n\n")[0].split()),
        path=path,
        gpu_seconds=values["GPU_SECONDS"],
        sweeps=values["SWEEPS"],
        claims=[replace(claim, needs=claim.needs or values["NEEDS"]) for claim in claims],
    )


def load(path: Path) -> Experiment:
    """Run an experiment's file and return the experiment. Raises ConfigError that names the file
    and the fault."""
    listed = outline(path)
    values = vars(execute(path))
    functions = {value.id: value.function for value in values.values() if isinstance(value, Claim)}
    experiment = replace(
        listed,
        claims=[replace(claim, function=functions.get(claim.id)) for claim in listed.claims],
        checks=[name for name, value in values.items() if is_check(value)],
        tables=values.get("TABLES", ()),
    )
    for fault in faults(experiment):
        raise ConfigError(f"{path}: {fault}")
    return experiment


def is_check(value: Any) -> bool:
    return inspect.isfunction(value) and hasattr(value, "needs")


def execute(path: Path) -> ModuleType:
    """Run a file as a module, which may import its neighbours; return it. Raises ConfigError if it
    fails."""
    name, parent = f"effbench_experiment_{path.stem}", str(path.resolve().parent)
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


# --- mistakes ---


def faults(experiment: Experiment) -> Iterator[str]:
    """Yield what is wrong in an experiment."""
    sweeps = experiment.sweeps
    if not isinstance(sweeps, dict) or not all(
        isinstance(words, list) for words in sweeps.values()
    ):
        yield f"SWEEPS: expected name -> list of overrides, got {sweeps!r}"
        return
    columns, known = (*AXES, *experiment.swept), ["rows", *sweeps, *experiment.checks]
    counts = Counter(claim.id for claim in experiment.claims)
    for claim in experiment.claims:
        label, inputs = f"claim {claim.id}", set(claim.inputs)
        if counts[claim.id] > 1:
            yield f"{label} is defined twice; change one id"
        if (claim.function is None) == (claim.not_measurable is None):
            yield f"{label} needs either a function at the top level of the file or not_measurable"
        if claim.function and not (inputs and inputs <= set(known)):
            text = ", ".join(claim.inputs)
            yield f"{label}: its function takes {text}; expected some of {', '.join(known)}"
        if not set(claim.axes) <= set(columns):
            yield f"{label}: each: expected columns among {', '.join(columns)}, got {claim.each!r}"
        if claim.axes and len(inputs - set(experiment.checks)) != 1:
            yield f"{label}: each splits the rows of one sweep; take exactly one"
