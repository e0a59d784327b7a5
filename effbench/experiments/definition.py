"""Read and check the files of experiments (docs/reference/experiments.md)."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
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
_NAME = re.compile(r"[A-Za-z0-9][\w-]*", re.ASCII)


@dataclass(frozen=True)
class Found:
    """The result of a claim's function. `holds`: a condition, or statement -> condition for several
    statements.

    `value`: the figure to show. `also`: text -> further figures, which do not affect the verdict.
    """

    holds: Any
    value: Any = None
    also: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """A published statement; used as a decorator, it takes the function that judges it.

    The function's parameters name its inputs: `rows` (of all sweeps), a sweep (its rows), or a
    check (its facts). It returns a Found. `each`: columns; each combination of their values is
    judged separately. `needs`: cuda, if the claim is only about CUDA. `not_measurable`: why no
    measurement can decide it. `published`: the published figures.
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
        words = [word.partition("=")[0] for words in self.sweeps.values() for word in words]
        keys = dict.fromkeys(
            OF_NETWORK.sub("model.module.", word) for word in words if word.startswith(SWEPT)
        )
        names = [key.rpartition(".")[2] for key in keys]
        is_free = {name: names.count(name) == 1 and name not in AXES for name in names}
        return {name if is_free[name] else key: key for name, key in zip(names, keys, strict=True)}

    def require(self, allowed: Any, text: str) -> None:
        if not allowed:
            raise ConfigError(f"{self.path}: {text}")


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
            near = f"nearest: {nearest(word, known)}; " if nearest(word, known) else ""
            raise ConfigError(
                f"no experiment {word!r}; {near}`effbench reproduce` lists them, or give a Python"
                " file"
            )
        chosen |= dict.fromkeys(paths)
    return [load(path) for path in chosen]


def outline(path: Path) -> Experiment:
    """Return an experiment's question, constants and claims (without their functions), without
    running its file and so without importing torch. Raises ConfigError that names the file and the
    fault."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read the experiment {path}: {error.strerror or error}"
        ) from error
    except SyntaxError as error:
        raise ConfigError(f"{path}, line {error.lineno}: {error.msg}") from error
    # no UTF-8, null bytes, or nested too deep
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{path} is not Python: {error}") from error
    constants: dict[str, Any] = {"GPU_SECONDS": None, "NEEDS": None, "SWEEPS": {}}
    claims = []
    for statement in tree.body:
        value = getattr(statement, "value", None)
        if (
            isinstance(statement, ast.Assign)
            and getattr(statement.targets[0], "id", None) in constants
        ):
            constants[statement.targets[0].id] = literal(path, value)
        for call in (value, *getattr(statement, "decorator_list", ())):
            if isinstance(call, ast.Call) and getattr(call.func, "id", None) == "Claim":
                claims.append(claim_of(path, call))
    seconds, needs, sweeps = constants.values()
    question = " ".join((ast.get_docstring(tree) or "").partition("\n\n")[0].split())
    claims = [replace(claim, needs=claim.needs or needs) for claim in claims]
    experiment = Experiment(path.stem.replace("_", "-"), question, path, seconds, sweeps, claims)
    check_outline(experiment)
    return experiment


def literal(path: Path, node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        reason = (
            "constants and the arguments of Claim(…) are read without running the file; write a"
            " literal"
        )
        raise ConfigError(f"{path}, line {node.lineno}: {reason}") from error


def claim_of(path: Path, call: ast.Call) -> Claim:
    positional = [literal(path, node) for node in call.args]
    named = {str(keyword.arg): literal(path, keyword.value) for keyword in call.keywords}
    try:
        return Claim(*positional, **named)
    except TypeError as error:
        raise ConfigError(
            f"{path}, line {call.lineno}: {str(error).replace('Claim.__init__()', 'Claim()')}"
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
        is_list = (
            isinstance(words, list | tuple)
            and words
            and all(isinstance(w, str) and "=" in w for w in words)
        )
        require(
            is_list, f"sweep {name}: expected a list of overrides, such as ['model=mlp', 'bs=1,8']"
        )
        require(str(name).isidentifier() and name != "rows", f"sweep {name!r}: choose another name")
    ids = [claim.id for claim in experiment.claims]
    known = (*AXES, *experiment.swept)
    for claim in experiment.claims:
        where = f"claim {claim.id}"
        is_text = all(isinstance(text, str) and text for text in (claim.id, claim.text))
        require(is_text, f"{where}: id and text must be non-empty strings")
        require(ids.count(claim.id) == 1, f"{where} is defined twice; change one id")
        require(
            claim.needs in (None, "cuda"),
            f"{where}: needs: expected 'cuda' or nothing, got {claim.needs!r}",
        )
        is_known = isinstance(claim.each, str | list | tuple) and set(claim.axes) <= set(known)
        require(
            is_known,
            f"{where}: each: expected columns among {', '.join(known)}, got {claim.each!r}",
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
        checks=[
            name
            for name, value in values.items()
            if inspect.isfunction(value) and hasattr(value, "needs")
        ],
        tables=values.get("TABLES", ()),
    )
    require, sweeps, checks = experiment.require, experiment.sweeps, experiment.checks
    unlisted = functions.keys() - {claim.id for claim in listed.claims}
    require(not unlisted, f"write @Claim(…) at the top level of the file: {', '.join(unlisted)}")
    require(
        not set(sweeps) & set(checks),
        f"a sweep and a check have the same name; rename one of {', '.join(sweeps)}",
    )
    for table in experiment.tables:
        require(isinstance(table, Pivot), f"TABLES: expected a list of Pivot, got {table!r}")
        require(
            table.sweep in ("rows", *sweeps), f"table {table.title!r}: no sweep {table.sweep!r}"
        )
    known = [*(("rows", *sweeps) if sweeps else ()), *checks]
    for claim in experiment.claims:
        where = f"claim {claim.id}"
        is_one = (claim.function is None) != (claim.not_measurable is None)
        require(is_one, f"{where} needs either a function that judges it or not_measurable")
        is_known = claim.function is None or (claim.inputs and set(claim.inputs) <= set(known))
        require(
            is_known,
            f"{where}: its function takes {', '.join(claim.inputs)}; expected some of"
            f" {', '.join(known)}",
        )
        frames = [name for name in claim.inputs if name not in checks]
        require(
            not claim.axes or len(frames) == 1,
            f"{where}: each splits the rows of one sweep, not {len(frames)}",
        )
    return experiment


def execute(path: Path) -> ModuleType:
    """Run a file as a module, which may import its neighbours; return it. Raises ConfigError if it
    fails."""
    name = f"effbench_experiment_{path.stem}"
    if (parent := str(path.resolve().parent)) not in sys.path:
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
