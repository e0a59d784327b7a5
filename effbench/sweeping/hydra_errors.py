"""Hydra's and OmegaConf's errors in one or two lines: what was wrong, what is allowed, the nearest name."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterator

import yaml
from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue, OmegaConfBaseException

from effbench import config
from effbench.errors import ConfigError


def explain(error: Exception, argv: list[str]) -> ConfigError:
    """A ConfigError that says the same for a person."""
    text = " ".join(str(link) for link in chain(error))
    if isinstance(error, MissingConfigException) and (group := re.search(r"Could not find '(.+?)/(.+?)'", str(error))):
        options = re.findall(
            r"^\t(\S+)$", str(error).partition("Available options")[2].partition("Config search")[0], re.M
        )
        return ConfigError(
            f"unknown {group[1]} {group[2]!r}{suggest(group[2], options)}\nallowed: {', '.join(options)}"
        )
    if isinstance(error, MissingConfigException):
        return ConfigError(first_line(error))
    if re.search(r"Could not override 'check'|Key 'check' not in 'Config'", text):
        return ConfigError(
            "check is no part of a sweep: `effbench check` and `effbench compare` take it as --config NAME"
        )
    if found := re.search(r"Could not override '(.+?)'", text):
        names = [name for name in settings() if name.count(".") <= found[1].count(".") + 1]
        return ConfigError(
            f"unknown setting {found[1]!r}{suggest(found[1], names)}; effbench --help lists all settings"
        )
    if found := re.search(r"Could not append to config\. An item is already at '(.+?)'", text):
        return ConfigError(f"{found[1]} exists already: leave the + away")
    if found := re.search(r"Ambiguous value for argument '(.+?)'", text):
        return ConfigError(f"{found[1]} holds several values, and --cfg shows one configuration: give one of them")
    if "Config group override must be a string or a list" in text:
        return ConfigError("a group takes one of its options: mode=eager, for example, and not null or a number")
    if found := re.search(r"Error merging override (\S+)", text):
        return ConfigError(f"{found[1]}: {first_line(list(chain(error))[-1])}")
    if isinstance(error, MissingMandatoryValue):
        name = re.search(r"full_key: (\S+)", text)
        return ConfigError(
            f"{name[1] if name else 'a value'} must be given, for example {name[1] if name else 'key'}=…"
        )
    if isinstance(error, InterpolationResolutionError):
        return ConfigError(first_line(error))
    if type(error).__name__ == "OverrideParseException":
        override = str(getattr(error, "override", ""))
        if re.search(r"[=,]\s*,|,\s*$", override):
            return ConfigError(f"cannot read the override {override!r}: a value is missing before or after a comma")
        return ConfigError(
            f"cannot read the override {override!r}: {first_line(error)}\n"
            "an override is key=value; put quotes around values with spaces, ? or ="
        )
    if found := re.search(r"In '(.+?)': \w+ raised while composing config:\s*(.+)", text):
        return ConfigError(f"{found[1]}.yaml: {found[2]}")
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark):
        return ConfigError(f"{mark.name}, line {mark.line + 1}: {error.problem}")
    said = first_line(list(chain(error))[-1])
    known = isinstance(error, HydraException | OmegaConfBaseException)
    return ConfigError(said if known else f"{type(error).__name__}: {said}")


def chain(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__


def first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def suggest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f": did you mean {near[0]}?" if near else ""


def settings() -> list[str]:
    """Every setting's dotted name."""
    names = []
    for top in dataclasses.fields(config.Config):
        names.append(top.name)
        kind = {
            "model": config.Model,
            "stream": config.Stream,
            "numerics": config.Numerics,
            "sweep": config.SweepSettings,
            "protocol": config.Protocol,
            "executor": config.Executor,
        }.get(top.name)
        names += [f"{top.name}.{inner.name}" for inner in dataclasses.fields(kind)] if kind else []
    return names
