"""Compose the configuration of each job: Hydra composes the options of groups, once each; the other
overrides of a job are applied to the result, and checked by the types of their settings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, reduce
from operator import getitem
from typing import Any

import msgspec
from hydra.core.config_loader import ConfigLoader
from omegaconf import DictConfig, OmegaConf

from effbench.config import refusals
from effbench.config.overrides import Word
from effbench.core import streams
from effbench.core.cell import canonical_json
from effbench.core.errors import ConfigError
from effbench.core.settings import SECTIONS, SETTINGS, Config, Setting

#: A reference to another value. OmegaConf resolves all other forms, such as `${oc.env:HOME}`.
REFERENCE = re.compile(r"\$\{(\w[\w.-]*)\}")
#: What a file has for a value that a user must give.
MISSING = "???"

#: Values of a configuration by name, sections as mappings; shared by jobs, so never changed.
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Job:
    """A job of a sweep: its overrides, and the configuration composed from them."""

    words: Sequence[Word]
    config: Config


class Composer:
    """Compose jobs from their overrides.

    Hydra takes about 100 ms for a configuration, so it composes each option of a group once. An
    option whose file has a `defaults` list or another package may change other sections than its
    group's: then Hydra composes each distinct choice of options.

    `master`: the defaults, with the configuration of Hydra itself.
    """

    def __init__(self, loader: ConfigLoader, master: DictConfig) -> None:
        self.loader = loader
        self.master = master
        self.groups = {str(group) for group in master.hydra.runtime.choices}
        self.chosen = cache(self._choose)
        self.composed = cache(self._compose)

    def job(self, words: Sequence[Word]) -> Job:
        """Return the job with these overrides. Raises ConfigError, and errors of Hydra and
        OmegaConf for files that cannot be read."""
        choices = tuple(filter(self.is_choice, words))
        values = self.chosen(choices)
        for word in words:
            if word in choices:
                continue
            if word.override.is_delete():
                values = without(values, word.key)
            else:
                values = assign(values, word.key, word.override.value())
        values = with_batch_size(values, any(word.key == "bs" for word in words))
        return Job(words, config_of(resolved(values)))

    def is_choice(self, word: Word) -> bool:
        """Return whether an override chooses an option of a group. Raises ConfigError if the option
        is no name."""
        override = word.override
        group, value = override.key_or_group, override.value()
        is_group = group in self.groups
        if override.is_add():
            is_group = bool(self.loader.get_group_options(group))
        if override.package is None and (not is_group or isinstance(value, dict)):
            return False
        if not isinstance(value, str) and not override.is_delete():
            raise refusals.no_option(group, value)
        return True

    def _choose(self, choices: tuple[Word, ...]) -> Values:
        """Return the composition of these options."""
        defaults = self.composed(())
        values = dict(defaults)
        for word in choices:
            alone = self.composed((word.text,))
            others = [name for name in alone if name != word.key]
            if word.key not in alone or any(alone[name] != defaults[name] for name in others):
                return self.composed(tuple(choice.text for choice in choices))
            values[word.key] = alone[word.key]
        return values

    def _compose(self, choices: tuple[str, ...]) -> Values:
        """Return Hydra's composition of these options. Raises ConfigError for a file with an
        unknown setting or an invalid value."""
        tree = self.loader.load_sweep_config(self.master, list(choices))
        protocol = tree.hydra.runtime.choices.get("protocol")
        values: Any = OmegaConf.to_container(tree)
        del values["hydra"]
        if protocol:
            # a user's file that extends a shipped protocol inherits its name
            values["protocol"]["name"] = protocol
        try:
            return typed(values)
        except ConfigError as error:
            if len(choices) != 1:
                raise
            file = choices[0].lstrip("+").replace("=", "/")
            raise ConfigError(f"{file}.yaml: {error}") from None


# --- values ---


def assign(values: Values, name: str, value: Any) -> Values:
    """Return the values with another one for a setting, or for all settings of a mapping. Raises
    ConfigError if there is no such setting, or the value is invalid."""
    try:
        canonical_json(value)
    except ValueError:
        how = "to use them as text, put quotes inside quotes: 'model.name=\"nan\"'"
        raise ConfigError(f"nan and inf are not allowed as numbers; {how}") from None
    if name in SECTIONS:
        if not isinstance(value, dict):
            raise refusals.no_value(name, value)
        for key, inner in value.items():
            values = assign(values, f"{name}.{key}", inner)
        return values
    setting = setting_of(name)
    if setting is None:
        raise refusals.unknown_setting(name, values)
    if setting.name == name:
        value = checked(setting, value)
    changed: Values = updated(values, name.split("."), value)
    return changed


@cache
def setting_of(name: str) -> Setting | None:
    """Return the setting with this name, or the open one that has it as a key."""
    for setting in SETTINGS.values():
        is_inside = setting.is_open and name.startswith(f"{setting.name}.")
        if is_inside or name == setting.name:
            return setting
    return None


def checked(setting: Setting, value: Any) -> Any:
    """Return a value with the type of its setting: 5 as 5.0, 2026 as text. Raises ConfigError."""
    if isinstance(value, str) and ("${" in value or value == MISSING):  # not known yet
        return value
    readings = [value]
    if isinstance(value, int | float):
        readings.append(str(value).lower())
    for reading in readings:
        with suppress(msgspec.ValidationError):
            return msgspec.convert(reading, setting.kind, strict=False)
    raise refusals.wrong_value(setting, value)


def typed(values: Values) -> Values:
    """Return the values with the types of their settings. Raises ConfigError for an invalid one,
    and if there is no such setting."""
    for name, value in values.items():
        values = assign(values, name, value)
    return values


def config_of(values: Values) -> Config:
    """Return the configuration with these values. Raises ConfigError for an invalid one."""
    try:
        return msgspec.convert(values, Config, strict=False)
    except msgspec.ValidationError:
        return msgspec.convert(typed(values), Config, strict=False)


def with_batch_size(values: Values, is_given: bool) -> Values:
    """Return the values with the largest size of a stream as `bs`. Raises ConfigError if another
    one is given."""
    if values["stream"]["name"] == streams.NONE:
        return values
    values = assign(values, "stream", resolved(values)["stream"])  # a reference may have any type
    sizes = streams.sizes_of(values["stream"])
    if sizes is None:
        return values
    given, largest = values["bs"], max(sizes)
    if given != largest and (is_given or given != Config.bs):
        raise ConfigError(
            f"bs={given} contradicts the stream, whose largest size is {largest}; omit bs"
        )
    return {**values, "bs": largest}


# --- references ---


def resolved(values: Values) -> Values:
    """Return the values with those that references refer to in place of the references. Raises
    ConfigError for a missing value, and OmegaConf's errors for a reference to nothing."""
    try:
        return {name: with_referred(value, values, name) for name, value in values.items()}
    except (LookupError, TypeError, RecursionError):  # a reference that only OmegaConf resolves
        plain: Any = OmegaConf.to_container(
            OmegaConf.create(dict(values)), resolve=True, throw_on_missing=True
        )
        return dict(plain)


def with_referred(value: Any, values: Values, name: str) -> Any:
    """Return a value in which the values that `${a.b}` refers to replace the references. Raises
    LookupError or TypeError for other references."""
    if isinstance(value, dict):
        return {key: with_referred(inner, values, f"{name}.{key}") for key, inner in value.items()}
    if isinstance(value, list):
        return [with_referred(inner, values, name) for inner in value]
    if value == MISSING:
        raise ConfigError(f"{name} has no value; give one with {name}=…")
    if not isinstance(value, str) or "${" not in value:
        return value
    reference = REFERENCE.fullmatch(value)
    if reference is None:
        raise LookupError(value)
    referred = reduce(getitem, reference[1].split("."), values)
    return with_referred(referred, values, name)


# --- mappings ---


def updated(node: Any, keys: Sequence[str], value: Any) -> Any:
    """Return a copy of a mapping or list with another value at these keys. A mapping there keeps
    the keys that the new one does not have."""
    if not keys:
        if isinstance(node, dict) and isinstance(value, dict):
            return node | {key: updated(node.get(key), (), inner) for key, inner in value.items()}
        return value
    key, *rest = keys
    if isinstance(node, list):
        copied = list(node)
        copied[int(key)] = updated(node[int(key)], rest, value)
        return copied
    mapping = node if isinstance(node, dict) else {}
    return {**mapping, key: updated(mapping.get(key), rest, value)}


def without(values: Values, name: str) -> Values:
    """Return the values without a key of an open setting. Raises ConfigError for any other."""
    if name in SETTINGS or name in SECTIONS:
        raise ConfigError(f"~{name}: every sweep requires it; omit the ~ override")
    try:
        return removed(values, name.split("."))
    except (KeyError, TypeError):
        raise ConfigError(f"~{name}: there is no such setting to remove") from None


def removed(node: Any, keys: Sequence[str]) -> Values:
    """Return a copy of a mapping without the value at these keys. Raises KeyError or TypeError for
    keys that it does not have."""
    key, *rest = keys
    copied = {**node}
    if rest:
        copied[key] = removed(node[key], rest)
    else:
        del copied[key]
    return copied
