"""Read and check the files of experiments (docs/reference/experiments.md)."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from effbench.errors import ConfigError, nearest
from effbench.printable import describe

#: Columns that may split a claim (`each`), besides the swept parameters.
AXES = ("model", "bs", "mode", "dtype", "phase", "device")
#: Sections whose settings become columns if a sweep sets them.
SWEPT = ("model.", "mode.", "numerics.", "stream.", "training.", "generate.", "env.")
#: Start of the settings that cells hold only as arguments of their module, such as model.arch.
OF_NETWORK = re.compile(r"^model\.(?=(arch|task|seq|image_size|pretrained|config|kwargs)\b)")
#: Constants of an experiment's file, which are read without running it.
CONSTANTS = ("GPU_SECONDS", "NEEDS", "SWEEPS")
_NAME = re.compile(r"[A-Za-z0-9][\w-]*", re.ASCII)


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
    gpu_seconds: float
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
        paths = list(dict.fromkeys(settings))
        names = [path.rpartition(".")[2] for path in paths]
        columns = {}
        for name, path in zip(names, paths, strict=True):
            is_free = names.count(name) == 1 and name not in AXES
            columns[name if is_free else path] = path
        return columns

    def require(self, is_met: Any, text: str) -> None:
        if not is_met:
            raise ConfigError(f"{self.path}: {text}")


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
            near = nearest(word, known)
            raise ConfigError(
                f"no experiment {word!r}; {f'nearest: {near}; ' if near else ''}`effbench"
                " reproduce` lists them, or give a Python file"
            )
        chosen |= dict.fromkeys(paths)
    return [load(path) for path in chosen]


# --- read without running ---


def outline(path: Path) -> Experiment:
    """Return an experiment's question, constants and claims (without their functions), without
    running its file and so without importing torch. Raises ConfigError that names the file and the
    fault."""
    tree = parse(path)
    values: dict[str, Any] = {"SWEEPS": {}}
    claims = []
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id
            if name in CONSTANTS:
                values[name] = literal(path, statement.value)
        claims += [claim_of(path, call) for call in claim_calls(statement)]
    needs = values.get("NEEDS")
    experiment = Experiment(
        name=path.stem.replace("_", "-"),
        question=" ".join((ast.get_docstring(tree) or "").partition("\n\n")[0].split()),
        path=path,
        gpu_seconds=values.get("GPU_SECONDS"),  # type: ignore[arg-type]  # checked next
        sweeps=values["SWEEPS"],
        claims=[replace(claim, needs=claim.needs or needs) for claim in claims],
    )
    check_outline(experiment)
    return experiment


def parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"cannot read the experiment {path}: {reason}") from error
    except SyntaxError as error:
        raise ConfigError(f"{path}, line {error.lineno}: {error.msg}") from error
    # no UTF-8, null bytes, or nested too deep
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{path} is not Python: {error}") from error


def claim_calls(statement: ast.stmt) -> Iterator[ast.Call]:
    """Yield `Claim(…)` of a statement `name = Claim(…)`, or of the decorators of a function."""
    calls = [getattr(statement, "value", None), *getattr(statement, "decorator_list", ())]
    for call in calls:
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            if call.func.id == "Claim":
                yield call


def claim_of(path: Path, call: ast.Call) -> Claim:
    positional = [literal(path, node) for node in call.args]
    named = {str(keyword.arg): literal(path, keyword.value) for keyword in call.keywords}
    try:
        return Claim(*positional, **named)
    except TypeError as error:
        text = str(error).replace("Claim.__init__()", "Claim()")
        raise ConfigError(f"{path}, line {call.lineno}: {text}") from error


def literal(path: Path, node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ConfigError(
            f"{path}, line {node.lineno}: constants and the arguments of Claim(…) are read without"
            " running the file; write a literal"
        ) from error


def check_outline(experiment: Experiment) -> None:
    """Raise ConfigError if a part is missing or invalid."""
    require, seconds, sweeps = experiment.require, experiment.gpu_seconds, experiment.sweeps
    is_name = _NAME.fullmatch(experiment.path.stem) and experiment.name != "all"
    require(is_name, "name the file with letters, digits, - and _, and not `all`")
    require(
        experiment.question,
        "the question is missing: write it as the first paragraph of the file's docstring",
    )
    is_number = type(seconds) in (int, float) and 0 <= seconds < float("inf")
    require(is_number, f"GPU_SECONDS: expected a number of seconds, got {seconds!r}")
    require(isinstance(sweeps, Mapping), f"SWEEPS: expected name -> overrides, got {sweeps!r}")
    for name, words in sweeps.items():
        require(
            isinstance(words, list | tuple) and words and all("=" in str(word) for word in words),
            f"sweep {name}: expected a list of overrides, such as ['model=mlp', 'bs=1,8']",
        )
        require(str(name).isidentifier() and name != "rows", f"sweep {name!r}: choose another name")
    ids = [claim.id for claim in experiment.claims]
    known = (*AXES, *experiment.swept)
    for claim in experiment.claims:
        label = f"claim {claim.id}"
        is_text = all(isinstance(text, str) and text for text in (claim.id, claim.text))
        require(is_text, f"{label}: id and text must be non-empty strings")
        require(ids.count(claim.id) == 1, f"{label} is defined twice; change one id")
        require(
            claim.needs in (None, "cuda"),
            f"{label}: needs: expected 'cuda' or nothing, got {claim.needs!r}",
        )
        is_known = isinstance(claim.each, str | list | tuple) and set(claim.axes) <= set(known)
        require(
            is_known,
            f"{label}: each: expected columns among {', '.join(known)}, got {claim.each!r}",
        )


# --- run ---


def load(path: Path) -> Experiment:
    """Run an experiment's file and return the experiment. Raises ConfigError that names the file
    and the fault."""
    listed = outline(path)
    values = vars(execute(path))
    functions = {value.id: value.function for value in values.values() if isinstance(value, Claim)}
    unlisted = functions.keys() - {claim.id for claim in listed.claims}
    listed.require(
        not unlisted, f"write @Claim(…) at the top level of the file: {', '.join(unlisted)}"
    )
    experiment = replace(
        listed,
        claims=[replace(claim, function=functions.get(claim.id)) for claim in listed.claims],
        checks=[name for name, value in values.items() if is_check(value)],
        tables=values.get("TABLES", ()),
    )
    check_parts(experiment)
    return experiment


def is_check(value: Any) -> bool:
    return inspect.isfunction(value) and hasattr(value, "needs")


def check_parts(experiment: Experiment) -> None:
    """Raise ConfigError if a table or a claim's function refers to something unknown."""
    require, sweeps, checks = experiment.require, experiment.sweeps, experiment.checks
    require(
        not set(sweeps) & set(checks),
        f"a sweep and a check have the same name; rename one of {', '.join(sweeps)}",
    )
    for table in experiment.tables:
        require(isinstance(table, Pivot), f"TABLES: expected a list of Pivot, got {table!r}")
        is_known = table.sweep in ("rows", *sweeps)
        require(is_known, f"table {table.title!r}: no sweep {table.sweep!r}")
    frames = ("rows", *sweeps) if sweeps else ()
    known = (*frames, *checks)
    for claim in experiment.claims:
        label, inputs = f"claim {claim.id}", claim.inputs
        has_function = claim.function is not None
        require(
            has_function == (claim.not_measurable is None),
            f"{label} needs either a function that judges it or not_measurable",
        )
        require(
            not has_function or (inputs and set(inputs) <= set(known)),
            f"{label}: its function takes {', '.join(inputs)}; expected some of {', '.join(known)}",
        )
        split = [name for name in inputs if name in frames]
        require(
            not claim.axes or len(split) == 1,
            f"{label}: each splits the rows of one sweep, not {len(split)}",
        )


def execute(path: Path) -> ModuleType:
    """Run a file as a module, which may import its neighbours; return it. Raises ConfigError if it
    fails."""
    name = f"effbench_experiment_{path.stem}"
    parent = str(path.resolve().parent)
    if parent not in sys.path:
        sys.path.append(parent)
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the file may raise anything
        raise ConfigError(f"{path}: running it raised {describe(error)}") from error
    return module
