"""Read and check the files of experiments (docs/reference/experiments.md)."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from effbench.core.errors import ConfigError, suggest
from effbench.core.printable import describe, one_line
from effbench.core.python_files import module_of

#: The shipped experiments: in a wheel, or in a checkout in the repository's top folder.
FOLDER = Path(__file__).parent / "shipped"
if not FOLDER.is_dir():
    FOLDER = Path(__file__).parents[2] / "experiments"
#: What a claim may need -> how many GPUs that is.
GPUS = {None: 0, "cuda": 1, "two GPUs": 2}


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
    check (its facts). It returns an Answer, or only what it `holds`. `needs`: "cuda", if the claim
    is only about CUDA, or "two GPUs". `not_measurable`: why no measurement can decide it.
    `published`: the published figures.
    """

    id: str
    text: str
    unit: str = ""
    needs: str | None = None
    published: str | None = None
    not_measurable: str | None = None
    function: Callable[..., Any] = lambda: None

    def __call__(self, function: Callable[..., Any]) -> Claim:
        return replace(self, function=function)

    @property
    def gpus(self) -> int:
        """The least number of GPUs that it needs."""
        return GPUS[self.needs]

    @property
    def inputs(self) -> list[str]:
        return list(inspect.signature(self.function).parameters)


@dataclass(frozen=True)
class Experiment:
    """An experiment. `sweeps`: name -> Hydra overrides; `checks`: names of functions."""

    name: str
    question: str
    path: Path
    sweeps: Mapping[str, Sequence[str]]
    claims: Sequence[Claim]
    checks: Sequence[str]


def name_of(path: Path) -> str:
    """Return the name of the experiment in a file."""
    return path.stem.replace("_", "-")


def question_of(docstring: str | None) -> str:
    """Return the first paragraph of a docstring on one line."""
    first = (docstring or "").split("\n\n")[0]
    return " ".join(first.split())


def shipped_files() -> list[Path]:
    return sorted(FOLDER.glob("[!_]*.py"))


def shipped_verdicts() -> list[dict[str, Any]]:
    """Return all shipped claims, with their statements and their verdicts on the reference machine.
    This runs no experiment's file and so does not import torch."""
    text = (FOLDER / "verdicts-h200.json").read_text(encoding="utf-8")
    return list(json.loads(text))


def find(words: Sequence[str]) -> list[Experiment]:
    """Load the experiments that words name: `all`, names, ids of claims, paths of files. Raises
    ConfigError."""
    paths = shipped_files()
    known = {name_of(path): [path] for path in paths}
    for record in shipped_verdicts():
        known[record["claim"].lower()] = known[record["experiment"]]
    known["all"] = paths
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


def load(path: Path) -> Experiment:
    """Run an experiment's file and return the experiment. Raises ConfigError that names the file
    and the fault."""
    try:
        values = vars(module_of(path))
    except (Exception, SystemExit) as error:  # the file may raise anything
        raise ConfigError(f"{path}: running it raised {describe(error)}") from error
    claims = []
    checks = []
    for name, value in values.items():
        if isinstance(value, Claim):
            claims.append(replace(value, needs=value.needs or values.get("NEEDS")))
        elif inspect.isfunction(value) and hasattr(value, "needs"):
            checks.append(name)
    experiment = Experiment(
        name=name_of(path),
        question=question_of(values["__doc__"]),
        path=path,
        sweeps=sweeps_of(path, values.get("SWEEPS", {})),
        claims=claims,
        checks=checks,
    )
    for claim in claims:
        check_claim(claim, experiment)
    return experiment


def sweeps_of(path: Path, value: Any) -> dict[str, list[str]]:
    """Return the sweeps of an experiment's file. Raises ConfigError."""
    try:
        return msgspec.convert(value, dict[str, list[str]])
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{path}: SWEEPS: {one_line(error)}. Example: {{'main': ['model=mlp', 'bs=1,8']}}"
        ) from error


def check_claim(claim: Claim, experiment: Experiment) -> None:
    """Raise ConfigError if a claim needs or takes something that the experiment cannot give."""
    place = f"{experiment.path}: claim {claim.id}"
    if claim.needs not in list(GPUS):
        raise ConfigError(f"{place} needs {claim.needs!r}; expected 'cuda' or 'two GPUs'")
    known = ["rows", *experiment.sweeps, *experiment.checks]
    inputs = claim.inputs or ["nothing"]
    if not claim.not_measurable and not set(inputs) <= set(known):
        raise ConfigError(f"{place} takes {', '.join(inputs)}; expected some of {', '.join(known)}")
