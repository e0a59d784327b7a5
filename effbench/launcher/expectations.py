"""Say which values a setting takes, with an example, for errors about values of the wrong type or
out of bounds."""

from __future__ import annotations

import dataclasses
import re
import shlex
import typing
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from effbench.config import Config, quoted
from effbench.errors import ConfigError, nearest

#: Values of examples, for settings whose default would be no useful one.
EXAMPLES = {
    "bs": "8",
    "sweep.name": "nightly",
    "sweep.label": "v1.2",
    "model.name": "net",
    "model.arch": "resnet18",
    "model.task": "encode",
    "model.tolerance": "0.001",
    "model.seq": "128",
    "model.image_size": "224",
    "stream.length": "64",
    "stream.low": "1",
    "stream.high": "32",
    "stream.rate": "100",
    "stream.path": "sizes.csv",
    "stream.column": "bs",
    "protocol.enough_interval": "0.01",
    "python": "venv/bin/python",
    "folder": "../before",
    "shard": "3/8",
    "resume": "last",
}
#: Examples of settings whose values have names.
MAPPING_EXAMPLES = {
    "model.module": "model.module.width=64",
    "model.inputs": "model.inputs.x.shape=[3,224,224]",
    "model.config": "model.config.num_labels=10",
    "model.kwargs": "model.kwargs.num_classes=10",
    "executor.sbatch": "executor.sbatch.qos=high",
    "env": "env.OMP_NUM_THREADS=1",
}
#: The largest integer of the database, the default bound of integers: too large to be worth
#: mentioning.
LARGEST = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Setting:
    """A setting with a type and bounds. `kind`: its type without None, which `is_optional`
    allows."""

    name: str
    kind: Any
    is_optional: bool
    default: Any
    least: float | None = None
    above: float | None = None
    most: float = LARGEST


def settings(kind: Any = Config, prefix: str = "") -> dict[str, Setting]:
    """Return every typed setting by its name, such as `protocol.rounds`."""
    hints = typing.get_type_hints(kind)
    by_name: dict[str, Setting] = {}
    for field in dataclasses.fields(kind):
        name, hint = f"{prefix}{field.name}", hints[field.name]
        if dataclasses.is_dataclass(hint):
            by_name |= settings(hint, f"{name}.")
            continue
        if hint is Any:
            continue
        parts = [part for part in typing.get_args(hint) if part is not type(None)]
        is_optional = type(None) in typing.get_args(hint)
        default = None if field.default is dataclasses.MISSING else field.default
        bounds = {key: value for key, value in field.metadata.items() if value is not None}
        by_name[name] = Setting(
            name, parts[0] if is_optional else hint, is_optional, default, **bounds
        )
    return by_name


def expectation(setting: Setting) -> str:
    """Return which values a setting takes, such as `a whole number of at least 1`."""
    text = expected_kind(setting)
    if not setting.is_optional:
        return text
    if len(text.split()) > 2:
        return f"{text}, or null"
    return f"{text} or null"


def is_list(setting: Setting) -> bool:
    return typing.get_origin(setting.kind) is list


def expected_kind(setting: Setting) -> str:
    kind = setting.kind
    if is_list(setting):
        (element,) = typing.get_args(kind)
        return f"a list of {', '.join(element)}"
    if issubclass(kind, Enum):
        return f"one of {', '.join(member.value for member in kind)}"
    if kind is bool:
        return "true or false"
    if kind is str:
        return "text"
    return expected_number(setting)


def expected_number(setting: Setting) -> str:
    noun = "a number"
    if setting.kind is int:
        noun = "a whole number"
    if setting.name.endswith("_s"):
        noun = f"{noun} of seconds"
    if setting.above is not None:
        return f"{noun} above {setting.above:g}"
    if setting.least is None:
        return noun
    if setting.most != LARGEST:
        return f"{noun} from {setting.least:g} to {setting.most:,}"
    if noun.endswith("seconds"):
        return f"{noun}, at least {setting.least:g}"
    return f"{noun} of at least {setting.least:g}"


def example(setting: Setting, value: str | None = None) -> str:
    """Return an override that sets a valid value, quoted for the shell if needed. `value`: the one
    to set."""
    value = value or EXAMPLES.get(setting.name) or example_value(setting)
    override = f"{setting.name}={value}"
    if re.search(r"[\[\]\s\"']", value):
        return shlex.quote(override)
    return override


def example_value(setting: Setting) -> str:
    """Return the default of a setting as it is typed, or another value if the default is null."""
    kind, default = setting.kind, setting.default
    if is_list(setting):
        (element,) = typing.get_args(kind)
        return f"[{next(iter(element))}]"
    if issubclass(kind, Enum):
        return str(default or next(iter(kind)))
    if kind is bool:
        return str(not default).lower()
    if kind is str:
        return quoted(default or "text")
    return f"{1 if default is None else default:g}"


def as_typed(value: str) -> str:
    """Return a value of an override for a message: words in quotes; numbers, null, lists and
    mappings as they are."""
    if value and re.fullmatch(r"-?[\d.,_]+(e[+-]?\d+)?|true|false|null|[\[{].*", value, re.I):
        return value
    return f"'{value}'"


def wrong_value(key: str, value: str, where: str = "") -> ConfigError | None:
    """Return the error for a value that the setting `key` does not take; None if no such setting
    has a type. `where`: the file that sets it."""
    setting = SETTINGS.get(key)
    if setting is None:
        return None
    expected = f"expected {expectation(setting)}, got {as_typed(value)}"
    if where:  # it is corrected in the file
        return ConfigError(f"{where}: {key}: {expected}")
    meant = None
    if not is_list(setting) and issubclass(setting.kind, Enum):
        meant = nearest(value, [member.value for member in setting.kind])
    return ConfigError(f"{key}: {expected}. Example: {example(setting, meant)}")


def check_override(key: str, values: Iterable[Any]) -> None:
    """Raise ConfigError for parsed values of an override that Hydra would accept, or about which
    its error would be hard to understand: other numbers than 0 and 1 for true and false, and a
    single value where names are needed."""
    setting = SETTINGS.get(key)
    for value in values:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if setting and setting.kind is bool and is_number and value not in (0, 1):
            raise wrong_value(key, f"{value:g}") or ConfigError(key)
        if key in MAPPING_EXAMPLES and (is_number or isinstance(value, bool | list)):
            raise mapping_error(key, str(value).lower(), {}) or ConfigError(key)


def check_bounds(key: str, value: Any) -> None:
    """Raise ConfigError if a number is out of the bounds of the setting `key`."""
    setting = SETTINGS.get(key)
    if setting is None or isinstance(value, bool) or not isinstance(value, int | float):
        return
    is_large = setting.kind is int and abs(value) > setting.most
    if not is_large and not is_below(setting, value):
        return
    got = f"{value:,}" if isinstance(value, int) else f"{value:g}"
    expected = expectation(setting)
    if is_large and f"{setting.most:,}" not in expected:
        limit = f"at least {-setting.most:,}"
        if value > 0:
            limit = f"at most {setting.most:,}"
        expected = f"{expected}, {limit}"
    raise ConfigError(f"{key}: expected {expected}, got {got}. Example: {example(setting)}")


def is_below(setting: Setting, value: float) -> bool:
    """Return whether a number is less than the setting allows."""
    if setting.above is not None and value <= setting.above:
        return True
    return setting.least is not None and value < setting.least


def mapping_error(
    key: str, value: str, sections: Mapping[str, Iterable[str]]
) -> ConfigError | None:
    """Return the error for a single value where values by name are expected; None for other
    settings. `sections`: the names of the settings in each section."""
    if key in MAPPING_EXAMPLES:
        how = f"Example: {shlex.quote(MAPPING_EXAMPLES[key])}"
        return ConfigError(f"{key}: expected values by name, got {as_typed(value)}. {how}")
    inner = [f"{key}.{name}" for name in sections.get(key, ())]
    if key and inner:
        return ConfigError(
            f"{key} takes no value, got {as_typed(value)}. Set one of {', '.join(inner)}"
        )
    return None


SETTINGS = settings()
