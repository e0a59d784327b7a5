"""Hydra's and OmegaConf's errors in one or two lines: what was wrong, what is allowed, the nearest name."""

from __future__ import annotations

import dataclasses
import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue, OmegaConfBaseException

from effbench import config
from effbench.errors import ConfigError, nearest
from effbench.sweeping.resume import key_of, value_of


def explain(error: Exception, words: Sequence[str]) -> ConfigError:
    """Return a ConfigError that says the same in one or two lines.

    `words`: the command line as `arguments.arrange` returns it.
    """
    text = " ".join(str(link) for link in chain(error))
    if not_mapping := next(filter(None, map(wrong_kind, chosen_files(words))), None):
        return ConfigError(not_mapping)
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
        hint = suggest(found[1], groups_with(found[1], words)) or suggest(found[1], names)
        return ConfigError(f"unknown setting {found[1]!r}{hint}; effbench --help lists all settings")
    if found := re.search(r"Could not append to config\. An item is already at '(.+?)'", text):
        return ConfigError(f"{found[1]} exists already: leave the + away")
    if found := re.search(r"Ambiguous value for argument '(.+?)'", text):
        return ConfigError(f"{found[1]} holds several values, and --cfg shows one configuration: give one of them")
    if "Config group override must be a string or a list" in text:
        return ConfigError("a group takes one of its options: mode=eager, for example, and not null or a number")
    if found := re.search(r"Error merging override (\S+)", text):
        return unfit_value(found[1], list(chain(error))[-1])
    if isinstance(error, MissingMandatoryValue):
        name = re.search(r"full_key: (\S+)", text)
        return ConfigError(
            f"{name[1] if name else 'a value'} must be given, for example {name[1] if name else 'key'}=…"
        )
    if isinstance(error, InterpolationResolutionError):
        return unresolved(error, words)
    if type(error).__name__ == "OverrideParseException":
        override = str(getattr(error, "override", ""))
        if re.search(r"[=,]\s*,|,\s*$", override):
            return ConfigError(f"cannot read the override {override!r}: a value is missing before or after a comma")
        return ConfigError(
            f"cannot read the override {override!r}: {first_line(error)}\n"
            "an override is key=value; put quotes around values with spaces, ? or ="
        )
    if found := re.search(r"In '(.+?)': \w+ raised while composing config:\s*(.+)", text):
        if unknown := re.match(r"Key '(.+?)' not in '(\w+)'", found[2]):
            allowed = [field.name for field in dataclasses.fields(getattr(config, unknown[2]))]
            hint = suggest(unknown[1], allowed)
            return ConfigError(f"{found[1]}.yaml: unknown key {unknown[1]!r}{hint}; allowed: {', '.join(allowed)}")
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


def suggest(name: str, known: Iterable[str]) -> str:
    near = nearest(name, known, cutoff=0.5)
    return f": did you mean {near}?" if near else ""


def folders_of(words: Sequence[str]) -> list[Path]:
    """Return the folders that hold the configuration groups: those of --config-dir, then effbench's own."""
    own = [Path(word.partition("=")[2]) for word in words if word.startswith("--config-dir=")]
    return [*own, config.shipped("conf")]


def values_of(word: str) -> list[str]:
    return (value_of(word) or "").split(",")


def chosen_files(words: Sequence[str]) -> Iterator[Path]:
    """Yield the YAML file of every option that the words name."""
    for word in words:
        for value in values_of(word):
            paths = (f"{folder}/{key_of(word)}/{value}.yaml" for folder in folders_of(words))
            # unlike Path.is_file, isfile is False for a name that is too long
            yield from (Path(path) for path in paths if os.path.isfile(path))  # noqa: PTH113


def groups_with(name: str, words: Sequence[str]) -> list[str]:
    """Return the groups that have the option which the words give to the unknown setting `name`."""
    values = {values_of(word)[0] for word in words if key_of(word) == name} - {""}
    patterns = [f"*/{glob.escape(value)}.yaml" for value in values]
    return [path.parent.name for folder in folders_of(words) for one in patterns for path in folder.glob(one)]


def wrong_kind(path: Path) -> str | None:
    """Return what is wrong with a YAML file that holds no mapping, None for all others."""
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):  # Hydra's own error says more
        return None
    if content is None or isinstance(content, dict):
        return None
    got = {"list": "a list", "str": "text"}.get(type(content).__name__, repr(content))
    return f"{path} must be a mapping (key: value), got {got}"


def unresolved(error: InterpolationResolutionError, words: Sequence[str]) -> ConfigError:
    """Name the key, and the file that the interpolation is in unless an override sets the key."""
    key = str(error.full_key or "")
    missing = re.search(r"Interpolation key '(.+?)' not found", str(error))
    said = f"${{{missing[1]}}} refers to a setting that does not exist" if missing else first_line(error)
    texts = {path: path.read_text(encoding="utf-8") for path in chosen_files(words)}
    names = [
        str(path)
        for path, text in texts.items()
        if key.startswith(path.parent.name) and missing and re.search(rf"\$\{{\s*{re.escape(missing[1])}", text)
    ]
    return ConfigError(": ".join([*names[:1], *([key] if key else []), said]))


def unfit_value(override: str, error: BaseException) -> ConfigError:
    """Return the error of an override whose value has the wrong type."""
    return a_list(override) if "of type 'list'" in str(error) else ConfigError(f"{override}: {first_line(error)}")


def a_list(override: str) -> ConfigError:
    """Return the error of an override that gives a list to a setting of one value: a sweep was probably meant."""
    key, _, value = override.partition("=")
    several = value.removeprefix("[").removesuffix("]")
    return ConfigError(f"{override}: {key} takes one value; to sweep over several, write {key}={several}")


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
