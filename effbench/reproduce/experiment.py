"""An experiment as its YAML describes it (docs/experiments.md), read and checked."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from effbench.analysis.claims import Claim
from effbench.analysis.expression import names_in
from effbench.analysis.kinds import NUMBER, TEXT, kind_of, need_condition, need_figure
from effbench.analysis.rows import HIDDEN
from effbench.config import shipped
from effbench.errors import ConfigError, UsageError
from effbench.store.schema import RESULT_COLUMNS, TEXT_COLUMNS

NEEDS = (None, "cuda")
#: (what must be there, what may be there)
EXPERIMENT_KEYS = (("question", "gpu_seconds"), ("needs", "names", "sweeps", "evidence", "tables", "claims"))
TABLE_KEYS = (("title", "value"), ("sweep", "rows", "columns", "unit"))
CLAIM_KEYS = (
    ("text",),
    ("sweep", "value", "unit", "holds", "each", "also", "needs", "not_measurable", "published"),
)
_NAME = re.compile(r"[A-Za-z0-9][\w-]*", re.ASCII)
COLUMNS = tuple(name for name in RESULT_COLUMNS if name not in HIDDEN)
KINDS = {name: TEXT if name in TEXT_COLUMNS else NUMBER for name in COLUMNS}


@dataclass(frozen=True)
class Table:
    """What is printed: one value (an expression over rows, or a column) for each combination of `rows` × `columns`."""

    title: str
    value: str
    sweep: str | None = None
    rows: tuple[str, ...] = ("model", "bs")
    columns: str = "mode"
    unit: str = ""


@dataclass(frozen=True)
class Evidence:
    """A function that shows a behaviour, and its settings."""

    target: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """`sweeps`: name -> Hydra overrides; `names`: further names for its expressions -> dotted paths of parameters;
    `gpu_seconds`: what it costs on one GPU; `needs`: cuda, where without a GPU nothing of it means anything."""

    name: str
    question: str
    path: Path
    gpu_seconds: float
    needs: str | None = None
    sweeps: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    claims: tuple[Claim, ...] = ()


def folder() -> Path:
    """Where the experiments that ship with effbench are."""
    return shipped("experiments")


def load_all(where: Path | None = None) -> list[Experiment]:
    """Those of a folder, by name. Raises ConfigError where one cannot be read, or two judge one claim."""
    found = [load(path) for path in sorted((where or folder()).glob("*.yaml"))]
    claimed: dict[str, str] = {}
    for experiment in found:
        for claim in experiment.claims:
            if other := claimed.get(claim.id):
                raise ConfigError(
                    f"claim {claim.id} is judged by {other} and by {experiment.name}: give one another id"
                )
            claimed[claim.id] = experiment.name
    return found


def find(words: list[str]) -> list[Experiment]:
    """Those that the words mean: `all`, names, ids of claims, or paths of files, each once. Raises ConfigError."""
    known: dict[str, Experiment] = {}
    found: dict[str, Experiment] = {}
    for word in words:
        if word.endswith((".yaml", ".yml")):
            experiment = load(Path(word))
            found[str(experiment.path)] = experiment
            continue
        known = known or {experiment.name: experiment for experiment in load_all()}
        by_claim = {claim.id: experiment for experiment in known.values() for claim in experiment.claims}
        word = word.upper() if word not in known and word.upper() in by_claim else word
        if word == "all":
            chosen = list(known.values())
        elif word in known or word in by_claim:
            chosen = [known.get(word) or by_claim[word]]
        else:
            near = difflib.get_close_matches(word, [*known, *by_claim], n=3)
            hint = f"nearest: {', '.join(near)}" if near else f"there are {', '.join(known) or 'none'}"
            raise ConfigError(f"no experiment {word!r}; {hint}; `all`, or the path of a YAML of your own")
        found |= {str(experiment.path): experiment for experiment in chosen}
    return list(found.values())


def load(path: Path) -> Experiment:
    """Raises ConfigError that names the file and what is wrong in it."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        data = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except OSError as error:
        raise ConfigError(f"cannot read the experiment {path}: {error.strerror or error}") from error
    except (YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no YAML that can be read: {' '.join(str(error).split())}") from error
    reader = _Reader(path)
    try:
        return reader.experiment(data)
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path}: {error}") from error


class _Reader:
    """Turns plain data into an Experiment; whatever is wrong is said with the file's name."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def wrong(self, text: str) -> ConfigError:
        return ConfigError(f"{self.path}: {text}")

    def keys(self, node: Any, where: str, needed: tuple[str, ...], known: tuple[str, ...]) -> Mapping[str, Any]:
        if not isinstance(node, Mapping):
            raise self.wrong(f"{where} is {node!r}, and it takes {', '.join((*needed, *known))}")
        for key in node:
            if key not in (*needed, *known):
                near = difflib.get_close_matches(str(key), (*needed, *known), n=1)
                hint = f"did you mean {near[0]}?" if near else f"allowed: {', '.join((*needed, *known))}"
                raise self.wrong(f"{where} has no {key!r}; {hint}")
        for key in needed:
            if node.get(key) in (None, ""):
                raise self.wrong(f"{where} needs {key!r}")
        return node

    def experiment(self, data: Any) -> Experiment:
        node = self.keys(data, "an experiment", *EXPERIMENT_KEYS)
        name = self.path.stem
        if not _NAME.fullmatch(name):
            raise self.wrong("the file's name is the experiment's: letters, digits, hyphens and underscores")
        if name == "all":
            raise self.wrong("all means all experiments: give the file another name")
        if node.get("needs") not in NEEDS:
            raise self.wrong(f"needs is {node['needs']!r}; allowed: cuda, or leave it out")
        sweeps = {str(key): self.overrides(key, value) for key, value in self.mapping(node, "sweeps").items()}
        evidence = {str(key): self.evidence(key, value) for key, value in self.mapping(node, "evidence").items()}
        self.names = {str(key): self.parameter(key, value) for key, value in self.mapping(node, "names").items()}
        self.pieces = tuple(evidence)
        claims = self.mapping(node, "claims")
        for key, value in claims.items():
            if not isinstance(value, Mapping):
                raise self.wrong(f"claim {key} is {value!r}, and it takes text, holds and more")
        if not sweeps and not evidence and not all("not_measurable" in claim for claim in claims.values()):
            raise self.wrong("an experiment has sweeps, evidence, or both")
        if not sweeps and not evidence and not claims:
            raise self.wrong("an experiment has sweeps, evidence, or both")
        tables = node.get("tables") or ()
        if not isinstance(tables, list | tuple):
            raise self.wrong(f"tables is {tables!r}, and it is a list of mappings with title and value")
        return Experiment(
            name,
            " ".join(str(node["question"]).split()),
            self.path,
            self.seconds(node["gpu_seconds"]),
            node.get("needs"),
            sweeps,
            evidence,
            self.names,
            tuple(self.table(value, sweeps) for value in tables),
            tuple(self.claim(key, value, sweeps) for key, value in claims.items()),
        )

    def mapping(self, node: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        found = node.get(key) or {}
        if not isinstance(found, Mapping):
            raise self.wrong(f"{key} is {found!r}, and it maps names to what they are")
        return found

    def seconds(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise self.wrong(f"gpu_seconds is {value!r}, and it is a number of seconds")
        return float(value)

    def parameter(self, key: Any, value: Any) -> str:
        """A further name: none that means something already."""
        if not str(key).isidentifier() or str(key) in ("evidence", "value"):
            raise self.wrong(f"names: {key!r} cannot be a name in expressions")
        if not isinstance(value, str):
            raise self.wrong(f"names: {key} is {value!r}, and it is a parameter's path, such as model.module.width")
        return value

    def overrides(self, key: Any, value: Any) -> tuple[str, ...]:
        words = value if isinstance(value, list) else [value]
        if not words or not all(isinstance(word, str) and "=" in word for word in words):
            raise self.wrong(f"sweep {key} is a list of overrides, such as [model=mlp, 'bs=1,8']")
        return tuple(words)

    def evidence(self, key: Any, value: Any) -> Evidence:
        if not isinstance(value, Mapping) or not isinstance(value.get("_target_"), str):
            raise self.wrong(f"evidence {key} needs _target_, the function that shows it")
        return Evidence(value["_target_"], {name: own for name, own in value.items() if name != "_target_"})

    def sweep_of(self, where: str, named: Any, sweeps: Mapping[str, Any]) -> str | None:
        if named is None:  # all of them
            return next(iter(sweeps)) if len(sweeps) == 1 else None
        if named not in sweeps:
            raise self.wrong(f"{where}: sweep is {named!r}; there are {', '.join(sweeps) or 'none'}")
        return str(named)

    def table(self, value: Any, sweeps: Mapping[str, Any]) -> Table:
        node = self.keys(value, "a table", *TABLE_KEYS)
        where = f"table {node['title']!r}"
        self.expression(where, node["value"])
        sweep = self.sweep_of(where, node.get("sweep"), sweeps)
        if not sweeps:
            raise self.wrong(f"{where} shows rows of a sweep, and there is none")
        rows = self.columns(f"{where}: rows", node.get("rows")) or ("model", "bs")
        columns = self.columns(f"{where}: columns", node.get("columns")) or ("mode",)
        if len(columns) != 1:
            raise self.wrong(f"{where}: columns is one name, such as mode")
        return Table(str(node["title"]), node["value"], sweep, rows, columns[0], str(node.get("unit") or ""))

    def columns(self, where: str, value: Any) -> tuple[str, ...]:
        """One name or a list of them, of columns or of `names`."""
        found = tuple(map(str, value if isinstance(value, list) else [] if value is None else [value]))
        for name in found:
            self.known(where, name, (*COLUMNS, *self.names))
        return found

    def known(self, where: str, name: str, allowed: Collection[str]) -> None:
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, n=3)
            hint = f"nearest: {', '.join(near)}" if near else "names are columns of the view `results`, or under names"
            raise self.wrong(f"{where}: no name {name!r}; {hint}")

    def claim(self, key: Any, value: Any, sweeps: Mapping[str, Any]) -> Claim:
        where = f"claim {key}"
        node = self.keys(value, where, *CLAIM_KEYS)
        if bool(node.get("holds")) == bool(node.get("not_measurable")):
            raise self.wrong(f"{where} needs either holds (the condition that confirms it) or not_measurable (why)")
        if node.get("needs") not in NEEDS:
            raise self.wrong(f"{where}: needs is {node['needs']!r}; allowed: cuda, or leave it out")
        also = {str(name): text for name, text in self.mapping(node, "also").items()}
        for name, text in also.items():
            self.expression(f"{where}, also {name!r}", text)
        if node.get("value") is not None:
            self.expression(f"{where}, value", node["value"], fits=need_figure)
        holds = self.conditions(where, node)
        return Claim(
            str(key),
            " ".join(str(node["text"]).split()),
            self.sweep_of(where, node.get("sweep"), sweeps),
            node.get("value"),
            str(node.get("unit") or ""),
            holds,
            self.columns(f"{where}: each", node.get("each")),
            also,
            node.get("needs"),
            node.get("not_measurable"),
            node.get("published"),
        )

    def conditions(self, where: str, node: Mapping[str, Any]) -> Any:
        """One condition, or statement -> condition."""
        holds = node.get("holds")
        if isinstance(holds, Mapping):
            holds = {str(statement): text for statement, text in holds.items()}
            if len(holds) < 2:
                raise self.wrong(f"{where}: holds maps several statements to their conditions; one is written as it is")
        several = holds if isinstance(holds, Mapping) else {} if holds is None else {"": holds}
        for statement, text in several.items():
            named = f"{where}, holds" + (f" {statement!r}" if statement else "")
            self.expression(named, text, with_value=bool(node.get("value")), fits=need_condition)
            spoken = names_in(text)
            if not (spoken | (names_in(node["value"]) if "value" in spoken else set())) - {"value"}:
                raise self.wrong(f"{named}: {text!r} speaks of nothing that is measured: no column, no evidence")
        return holds

    def expression(
        self, where: str, text: Any, with_value: bool = False, fits: Callable[[str, Mapping[str, str]], Any] = kind_of
    ) -> None:
        """Every name in it exists, and what it gives `fits`; what evidence has in it is seen when it is there."""
        if not isinstance(text, str):
            raise self.wrong(f"{where}: {text!r} is no expression; put it in quotes")
        try:
            names = names_in(text)
        except UsageError as error:
            raise self.wrong(f"{where}: {error}") from error
        pieces = [f"evidence.{piece}" for piece in self.pieces]
        always = ("evidence", "fact") if pieces else ("fact",)
        allowed = (*COLUMNS, *self.names, *pieces, *always, *(["value"] if with_value else []))
        for name in sorted(names):
            if name.startswith("evidence.") or "." not in name:  # relative() takes dotted paths as well
                self.known(where, name, allowed)
        try:
            fits(text, {name: kind for name, kind in KINDS.items() if name not in self.names})
        except UsageError as error:
            raise self.wrong(f"{where}: {error}") from error
