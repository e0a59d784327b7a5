"""Hydra's and OmegaConf's errors in one or two lines: what is wrong, what is allowed, the nearest name."""

from __future__ import annotations

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
from effbench.launcher.overrides import key_of, value_of

#: Pattern in the messages of an error and its causes -> our message; {0} and so on are the groups.
MESSAGES = (
    (
        r"Could not override 'check'|Key 'check' not in 'Config'",
        "check is no part of a sweep: `effbench check` and `effbench compare` take it as --config NAME",
    ),
    (r"Could not append to config\. An item is already at '(.+?)'", "{0} exists already: omit the +"),
    (
        r"Ambiguous value for argument '(.+?)'",
        "{0} holds several values, and --cfg shows one configuration: give one of them",
    ),
    (
        r"Config group override must be a string or a list",
        "a group takes one of its options: mode=eager, for example, and not null or a number",
    ),
)


def explain(error: Exception, words: Sequence[str]) -> ConfigError:
    """Return a ConfigError with the same meaning in one or two lines.

    `words`: the command line as `overrides.arrange` returns it.
    """
    causes = list(chain(error))
    text = " ".join(map(str, causes))
    for path in chosen_files(words):
        if problem := no_mapping(path):
            return ConfigError(problem)
    if isinstance(error, MissingConfigException):
        return missing_config(error)
    for pattern, message in MESSAGES:
        if match := re.search(pattern, text):
            return ConfigError(message.format(*match.groups()))
    if match := re.search(r"Could not override '(.+?)'", text):
        return ConfigError(unknown_setting(match[1], words))
    if match := re.search(r"Error merging override (\S+)", text):
        return wrong_type(match[1], causes[-1])
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
    if match := re.search(r"In '(.+?)': \w+ raised while composing config:\s*(.+)", text):
        if unknown := re.match(r"Key '(.+?)' not in '(\w+)'", match[2]):
            allowed = list(getattr(config, unknown[2]).__dataclass_fields__)
            hint = suggest(unknown[1], allowed)
            return ConfigError(f"{match[1]}.yaml: unknown key {unknown[1]!r}{hint}; allowed: {', '.join(allowed)}")
        return ConfigError(f"{match[1]}.yaml: {match[2]}")
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark):
        return ConfigError(f"{mark.name}, line {mark.line + 1}: {error.problem}")
    last = first_line(causes[-1])
    known = isinstance(error, HydraException | OmegaConfBaseException)
    return ConfigError(last if known else f"{type(error).__name__}: {last}")


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def suggest(name: str, known: Iterable[str]) -> str:
    near = nearest(name, known, cutoff=0.5)
    return f": did you mean {near}?" if near else ""


def missing_config(error: MissingConfigException) -> ConfigError:
    group = re.search(r"Could not find '(.+?)/(.+?)'", str(error))
    if group is None:
        return ConfigError(first_line(error))
    available = str(error).partition("Available options")[2].partition("Config search")[0]
    options = re.findall(r"^\t(\S+)$", available, re.M)
    return ConfigError(f"unknown {group[1]} {group[2]!r}{suggest(group[2], options)}\nallowed: {', '.join(options)}")


def unknown_setting(name: str, words: Sequence[str]) -> str:
    """Suggest the group that has the option given to `name`, or the setting with the most similar name."""
    values = {values_of(word)[0] for word in words if key_of(word) == name} - {""}
    patterns = [f"*/{glob.escape(value)}.yaml" for value in values]
    groups = [path.parent.name for folder in folders_of(words) for one in patterns for path in folder.glob(one)]
    settings = [f"{section}.{key}".lstrip(".") for section, keys in config.sections() for key in keys]
    known = [setting for setting in settings if setting.count(".") <= name.count(".") + 1]
    hint = suggest(name, groups) or suggest(name, known)
    return f"unknown setting {name!r}{hint}; effbench --help lists all settings"


def folders_of(words: Sequence[str]) -> list[Path]:
    """Return the folders of the configuration groups: those of --config-dir, then effbench's own."""
    own = [Path(value_of(word) or "") for word in words if key_of(word) == "--config-dir"]
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


def no_mapping(path: Path) -> str | None:
    """Return an error for a YAML file that holds no mapping, None for all others."""
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):  # Hydra's own error is more exact
        return None
    if content is None or isinstance(content, dict):
        return None
    got = {"list": "a list", "str": "text"}.get(type(content).__name__, repr(content))
    return f"{path} must be a mapping (key: value), got {got}"


def unresolved(error: InterpolationResolutionError, words: Sequence[str]) -> ConfigError:
    """Name the key, and the file that the interpolation is in unless an override sets the key."""
    key = str(error.full_key or "")
    missing = re.search(r"Interpolation key '(.+?)' not found", str(error))
    if missing is None:
        return ConfigError(f"{key}: {first_line(error)}".removeprefix(": "))
    refers = re.compile(rf"\$\{{\s*{re.escape(missing[1])}")
    files = [path for path in chosen_files(words) if key.startswith(path.parent.name)]
    names = [str(path) for path in files if refers.search(path.read_text(encoding="utf-8"))]
    why = f"${{{missing[1]}}} refers to a setting that does not exist"
    return ConfigError(": ".join([*names[:1], *([key] if key else []), why]))


def wrong_type(override: str, error: BaseException) -> ConfigError:
    """Return the error of an override whose value has the wrong type."""
    if "of type 'list'" in str(error):
        return list_for_one_value(override)
    if "is not a ListConfig" in str(error):
        key, _, value = override.partition("=")
        return ConfigError(f"{override} is no list: use brackets: '{key}=[{value}]'")
    return ConfigError(f"{override}: {first_line(error)}")


def list_for_one_value(override: str) -> ConfigError:
    """Return the error of an override that gives a list to a setting of one value: a sweep was probably meant."""
    key, _, value = override.partition("=")
    several = value.removeprefix("[").removesuffix("]")
    return ConfigError(f"{override}: {key} takes one value; to sweep over several, write {key}={several}")
