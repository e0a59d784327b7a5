"""Compose the configuration of each job: Hydra composes the options of groups, once each; the other
overrides of a job are applied to the result, and checked by the types of their settings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.types import OverrideType
from omegaconf import DictConfig, OmegaConf

from effbench.config import refusals
from effbench.config.overrides import Word
from effbench.core import streams
from effbench.core.cell import canonical_json
from effbench.core.errors import ConfigError, suggest
from effbench.core.settings import Config, Setting, sections, settings

SETTINGS = {setting.name: setting for setting in settings()}
SECTIONS = dict(sections())
#: A reference to another value. OmegaConf resolves all other forms, such as `${oc.env:HOME}`.
REFERENCE = re.compile(r"\$\{(\w[\w.-]*)\}")
#: What a file has for a value that a user must give.
MISSING = "???"

#: Values of a configuration by name, sections as mappings; shared by jobs, so never changed.
Values = Mapping[str, Any]


class Composer:
    """Compose jobs from their overrides.

    Hydra takes about 100 ms for a configuration, so it composes each option of a group once. An
    option whose file has a `defaults` list or another package may change other sections: then Hydra
    composes each distinct choice of options.
    """

    def __init__(self, loader: ConfigLoader, master: DictConfig) -> None:
        self.loader = loader
        self.master = master
        self.is_plain_option = cache(self._is_plain_option)
        self.chosen = cache(self._choose)
        self.composed = cache(self._compose)
        groups = map(str, master.hydra.runtime.choices)
        self.groups = {group for group in groups if not group.startswith("hydra/")}

    def compose(self, words: Sequence[Word]) -> Config:
        """Return the configuration of a job. Raises ConfigError, and errors of Hydra and OmegaConf
        for files that cannot be read."""
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
        return config_of({name: resolved(values, name) for name in values})

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

    def is_plain_choice(self, word: Word) -> bool:
        """Return whether an override changes only its group's section."""
        is_change = word.override.type == OverrideType.CHANGE
        return is_change and self.is_plain_option(word.key, word.override.value())

    def _is_plain_option(self, group: str, option: object) -> bool:
        """Return whether the file of this option sets only its group's section, by itself. Raises
        ConfigError if it holds no settings."""
        path = f"{group}/{option}"
        for source in self.loader.get_sources():
            if source.is_config(path):
                file = source.load_config(path)
                if not OmegaConf.is_dict(file.config):
                    raise ConfigError(f"{path}.yaml: expected settings by name, got a list")
                is_own = file.header.get("package") in (None, "_group_", group)
                return is_own and "defaults" not in file.config
        return False

    def _choose(self, choices: tuple[Word, ...]) -> Values:
        """Return the composition of these options."""
        if not all(map(self.is_plain_choice, choices)):
            return self.composed(tuple(word.text for word in choices))
        values = dict(self.composed(()))
        for word in choices:
            values[word.key] = self.composed((word.text,))[word.key]
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
        where = ""
        if len(choices) == 1:
            where = f"{choices[0].lstrip('+').replace('=', '/')}.yaml: "
        check_names(values, where)
        return with_valid_values(values, where)


# --- values ---


def assign(values: Values, name: str, value: Any) -> Values:
    """Return the values with another one for a setting, or for all settings of a mapping. Raises
    ConfigError if there is no such setting, or the value is invalid."""
    check_finite(value)
    if name in SECTIONS:
        if not isinstance(value, dict):
            raise refusals.no_value(name, value, SECTIONS[name])
        for key, inner in value.items():
            values = assign(values, f"{name}.{key}", inner)
        return values
    setting = setting_of(name)
    if setting is None:
        raise refusals.unknown_setting(name, values)
    if setting.name == name:
        value = checked(setting, value)
    updated: Values = replaced(values, name.split("."), merged(select(values, name), value))
    return updated


def setting_of(name: str) -> Setting | None:
    """Return the setting with this name, or the open one that has it as a key."""
    if name in SETTINGS:
        return SETTINGS[name]
    while "." in name:
        name = name.rpartition(".")[0]
        setting = SETTINGS.get(name)
        if setting and setting.is_open:
            return setting
    return None


def checked(setting: Setting, value: Any, where: str = "") -> Any:
    """Return a value with the type of its setting: 5 as 5.0, 2026 as text. Raises ConfigError.
    `where`: the file that sets it."""
    if isinstance(value, str) and ("${" in value or value == MISSING):  # not known yet
        return value
    try:
        return msgspec.convert(value, setting.kind, strict=False)
    except msgspec.ValidationError:
        pass
    if isinstance(value, int | float):
        try:
            return msgspec.convert(str(value).lower(), setting.kind)
        except msgspec.ValidationError:
            pass
    raise refusals.wrong_value(setting, value, where)


def check_names(values: Values, where: str) -> None:
    """Raise ConfigError if a section has unknown settings."""
    for section, known in SECTIONS.items():
        for key in values[section] if section else values:
            if key not in known:
                near = suggest(str(key), known)
                name = f"{section}.{key}".lstrip(".")
                raise ConfigError(f"{where}unknown setting {name}{near}")


def with_valid_values(values: Values, where: str = "") -> Values:
    """Return the values with the types of their settings. Raises ConfigError."""
    for setting in SETTINGS.values():
        value = select(values, setting.name)
        check_finite(value)
        values = replaced(values, setting.name.split("."), checked(setting, value, where))
    return values


def check_finite(value: Any) -> None:
    """Raise ConfigError for NaN and infinity."""
    try:
        canonical_json(value)
    except ValueError:
        how = "to use them as text, put quotes inside quotes: 'model.name=\"nan\"'"
        raise ConfigError(f"nan and inf are not allowed as numbers; {how}") from None


def config_of(values: Values) -> Config:
    """Return the configuration with these values. Raises ConfigError for an invalid one."""
    try:
        return msgspec.convert(values, Config, strict=False)
    except msgspec.ValidationError:
        return msgspec.convert(with_valid_values(values), Config, strict=False)


def with_batch_size(values: Values, is_given: bool) -> Values:
    """Return the values with the largest size of a stream as `bs`. Raises ConfigError if another
    one is given."""
    if values["stream"]["name"] == streams.NONE:
        return values
    stream = {}
    for name, value in resolved(values, "stream").items():  # a reference may have any type
        stream[name] = checked(SETTINGS[f"stream.{name}"], value)
    sizes = streams.sizes_of(stream)
    if sizes is None:
        return values
    given, largest = values["bs"], max(sizes)
    if given != largest and (is_given or given != Config.bs):
        raise ConfigError(
            f"bs={given} contradicts the stream, whose largest size is {largest}; omit bs"
        )
    return {**values, "bs": largest}


# --- references ---


class OtherReferenceError(Exception):
    """A reference that only OmegaConf resolves."""


def resolved(values: Values, name: str) -> Any:
    """Return a section, or a setting of the top level, with values for its references. Raises
    ConfigError for a missing value, and OmegaConf's errors for a reference to nothing."""
    value = values[name]
    text = str(value)
    if "${" not in text and MISSING not in text:
        return value
    try:
        return with_referred(value, values, name)
    except (OtherReferenceError, RecursionError):
        pass
    plain = OmegaConf.to_container(
        OmegaConf.create(dict(values)), resolve=True, throw_on_missing=True
    )
    assert isinstance(plain, dict)
    return plain[name]


def with_referred(value: Any, values: Values, name: str) -> Any:
    """Return a value in which the values that `${a.b}` refers to replace the references."""
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
        raise OtherReferenceError
    referred = select(values, reference[1], OtherReferenceError)
    if referred is OtherReferenceError:
        raise OtherReferenceError
    return with_referred(referred, values, name)


# --- mappings ---


def select(values: Any, name: str, missing: Any = None) -> Any:
    """Return the value of a name such as `protocol.rounds`, or `missing`."""
    for key in name.split("."):
        if not isinstance(values, dict) or key not in values:
            return missing
        values = values[key]
    return values


def replaced(node: Any, keys: Sequence[str], value: Any) -> Any:
    """Return a copy of a mapping or list with another value at these keys."""
    if not keys:
        return value
    key, *rest = keys
    if isinstance(node, list):
        copied = list(node)
        copied[int(key)] = replaced(node[int(key)], rest, value)
        return copied
    mapping = node if isinstance(node, dict) else {}
    return {**mapping, key: replaced(mapping.get(key), rest, value)}


def merged(before: Any, value: Any) -> Any:
    """Return a value; a mapping with the keys that it had before and does not have now."""
    if not isinstance(before, dict) or not isinstance(value, dict):
        return value
    return before | {key: merged(before.get(key), inner) for key, inner in value.items()}


def without(values: Values, name: str) -> Values:
    """Return the values without a key of an open setting. Raises ConfigError for any other."""
    if name in SETTINGS or name in SECTIONS:
        raise ConfigError(f"~{name}: every sweep requires it; omit the ~ override")
    parent, _, key = name.rpartition(".")
    node = select(values, parent)
    if not isinstance(node, dict) or key not in node:
        raise ConfigError(f"~{name}: there is no such setting to remove")
    kept = {other: inner for other, inner in node.items() if other != key}
    remaining: Values = replaced(values, parent.split("."), kept)
    return remaining
