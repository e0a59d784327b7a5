"""Rewrite errors of Hydra and OmegaConf in one or two lines: what is wrong, what is allowed, the
nearest name."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

import yaml
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from effbench import config
from effbench.errors import ConfigError, nearest, suggest
from effbench.launcher.expectations import (
    SETTINGS,
    as_typed,
    expectation,
    is_list,
    mapping_error,
    wrong_value,
)
from effbench.models.presets import PRESETS, canonical
from effbench.printable import first_line
from effbench.sweeping.plan import Settings

#: Settings at the top level that apply to a whole sweep.
OF_SWEEP = tuple(field.name for field in dataclasses.fields(Settings))
#: Parts of OmegaConf's messages about a value of the wrong type; the group is the value, if the
#: message has it.
WRONG_TYPES = (
    r"Value '(.*)' of type '\w+' could not be converted",
    r"Value '(.*)' is not a valid bool",
    r"Invalid value '(.*)', expected one of",
    r"Cannot convert '\w+' to string: '(.*)'",
    r"field '[\w.]+' is not Optional()",
)

#: Similarity from which a name is a misspelled option.
SIMILAR = 0.66


def explain(error: Exception, words: Sequence[str]) -> ConfigError:
    """Return a ConfigError with the same meaning in one or two lines. `words`: the overrides."""
    causes = list(chain(error))
    text = " ".join(map(str, causes))
    last = first_line(str(causes[-1]), limit=None) or type(causes[-1]).__name__
    if isinstance(error, MissingConfigException):
        return missing_config(error, words)
    if isinstance(error, OverrideParseException):
        return cannot_parse(str(error.override))
    if match := re.search(r"Could not override '(.+?)'", text):
        return ConfigError(unknown_setting(match[1], words))
    if match := re.search(r"Error merging override (\S+)", text):
        return wrong_type(match[1], last)
    if "Config group override must be a string" in text:
        how = "quote a name such as inf: \"model='inf'\""
        return ConfigError(
            f"model=, mode= and other groups take a name, not a number, true, false or null; {how}"
        )
    if match := re.search(r"Could not append to config. An item is already at '(.+?)'", text):
        return ConfigError(f"{match[1]} is a setting already: write {match[1]}=VALUE, without +")
    if match := re.search(r"In '(.+?)': \w+ raised while composing config:\s*(.+)", text):
        if wrong := wrong_in_file(match[1], text):
            return wrong
        unknown = re.match(r"Key '(.+?)' not in '(\w+)'", match[2])
        hint = (
            suggest(unknown[1], getattr(config, unknown[2]).__dataclass_fields__) if unknown else ""
        )
        return ConfigError(f"{match[1]}.yaml: {match[2]}{hint}")
    if isinstance(error, MissingMandatoryValue) and (name := re.search(r"full_key: (\S+)", text)):
        return ConfigError(f"{name[1]} has no value; give one with {name[1]}=…")
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark):
        return ConfigError(f"{mark.name}, line {mark.line + 1}: {error.problem}")
    if isinstance(error, OmegaConfBaseException) and error.full_key:
        value = value_in(last)
        wrong = None if value is None else wrong_value(error.full_key, value)
        return wrong or ConfigError(f"{error.full_key}: {last}")
    is_known = isinstance(error, HydraException | OmegaConfBaseException)
    return ConfigError(last if is_known else f"{type(error).__name__}: {last}")


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def missing_config(error: MissingConfigException, words: Sequence[str] = ()) -> ConfigError:
    group = re.search(r"Could not find '(.+?)/(.*?)'", str(error))
    if group is None:
        return ConfigError(first_line(str(error), limit=None))
    available = str(error).partition("Available options")[2].partition("Config search")[0]
    options = re.findall(r"^\t(\S+)$", available, re.M)
    hint = of_own_yaml(group[1], group[2], options, words) or suggest(group[2], options)
    return ConfigError(f"unknown {group[1]} {group[2]!r}{hint}\nallowed: {', '.join(options)}")


def of_own_yaml(group: str, name: str, options: Sequence[str], words: Sequence[str]) -> str:
    """Return how to use an option of the user's own. It is empty for a misspelled one, except for a
    model, where own names are common."""
    near = misspelled(name, options)
    if not name or (near and group != "model"):
        return ""
    meant = f", did you mean {near}?" if near else ""
    folder = next(
        (word.partition("=")[2] for word in words if word.startswith("--config-dir=")), None
    )
    yaml_file = f"{folder}/{group}/{name}.yaml does not exist" if folder else "--config-dir=DIR"
    if group != "model":
        return f": not a shipped {group}; own YAML: {yaml_file}"
    if canonical("transformers", name) in PRESETS:
        return (
            f": not a shipped model{meant}; a network of transformers: model=transformers"
            f" model.arch={name}"
        )
    own_module = "own module: model=custom model.module._target_=my_pkg.Net"
    return f": not a shipped model{meant}; own YAML: {yaml_file}, {own_module}"


def misspelled(name: str, options: Sequence[str]) -> str | None:
    """Return the option that a name resembles or begins, or None."""
    begun = [option for option in options if len(name) > 2 and option.startswith(name)]
    return nearest(name, options, cutoff=SIMILAR) or nearest(name, begun, cutoff=0)


def unknown_setting(name: str, words: Sequence[str]) -> str:
    sections = dict(config.sections())
    group, _, key = name.partition(".")
    if group == "model" and key in sections[""]:
        hint = f": did you mean {key}?"
    elif group == "model" and not nearest(key.partition(".")[0], sections["model"]):
        # an argument of the constructor, or an input; similarity would name any setting of the
        # model
        hint = f": did you mean model.{'inputs' if '.' in key else 'module'}.{key}?"
    else:
        settings = [
            f"{section}.{key}".lstrip(".") for section, keys in sections.items() for key in keys
        ]
        # tf32 for numerics.tf32
        same = [setting for setting in settings if setting.endswith(f".{name}")]
        if not same and (argument := name.removeprefix("module.")) in arguments(words):
            same = [f"model.module.{argument}"]
        similar = [setting for setting in settings if setting.count(".") <= name.count(".") + 1]
        hint = f": did you mean {' or '.join(same)}?" if same else suggest(name, similar)
    return f"unknown setting {name!r}{hint}; effbench --cfg job lists all settings"


def arguments(words: Sequence[str]) -> set[str]:
    """Return the names of arguments of the models that these overrides choose from effbench's, such
    as `width`."""
    chosen = [
        name
        for word in words
        for name in word.removeprefix("model=").split(",")
        if word.startswith("model=")
    ]
    files = [
        file
        for file in (config.shipped("conf") / "model").glob("*.yaml")
        if file.stem in (chosen or ["mlp"])
    ]
    return {name for file in files for name in yaml.safe_load(file.read_bytes()).get("module", ())}


def value_in(text: str) -> str | None:
    """Return the value in OmegaConf's message about a value of the wrong type; None for other
    messages."""
    for pattern in WRONG_TYPES:
        match = re.search(pattern, text)
        if match:
            return match[1] or "null"
    return None


def wrong_in_file(file: str, text: str) -> ConfigError | None:
    """Return the error for a value of the wrong type in a YAML file such as `model/mine`; None for
    another error."""
    value = value_in(text)
    full_key = re.search(r"full_key: (\S+)", text)
    if value is None or full_key is None:
        return None
    section, _, _ = file.partition("/")
    for key in (full_key[1], f"{section}.{full_key[1]}"):
        if key in SETTINGS:
            return wrong_value(key, value, where=f"{file}.yaml")
    return None


def cannot_parse(override: str) -> ConfigError:
    """Return the error for an override that is not in Hydra's syntax."""
    key, equals, _ = override.partition("=")
    how = (
        "write key=value, or key=value,value to sweep; quote a value with = ? or ä twice:"
        " 'key=\"a=b\"'"
    )
    if equals and re.fullmatch(r"model\.inputs\.\w+\.shape", key):
        how = f"write the sizes as a list, in quotes: '{key}=[3,224,224]'"
    elif equals and re.fullmatch(r"model\.inputs\.\w+", key):
        how = (
            f"write the description in braces, and quote it: '{key}={{shape: [64], dtype:"
            " float32}'"
        )
    elif equals and key == "model.inputs":
        how = f"write the inputs in braces, and quote them: '{key}={{x: {{shape: [64]}}}}'"
    return ConfigError(f"cannot parse the override {override!r}: {how}")


def wrong_type(override: str, reason: str) -> ConfigError:
    """Return the error for a value of the wrong type. A list for a scalar setting was probably
    meant as a sweep."""
    key, _, value = override.lstrip("+").partition("=")
    setting = SETTINGS.get(key)
    has_brackets = value.startswith("[") and value.endswith("]")
    several = value.removeprefix("[").removesuffix("]")
    if has_brackets and setting and not is_list(setting) and is_of_cell(key):
        how = f"To sweep over several values, write {key}={several}"
        return ConfigError(f"{key}: expected {expectation(setting)}, got {value}. {how}")
    if "of type 'list'" in reason and setting is None:  # an option of a group
        how = f"To sweep over several, write {key}={several}"
        return ConfigError(f"{key}: expected one value, got {value}. {how}")
    wrong = wrong_value(key, value) or mapping_error(key, value, dict(config.sections()))
    if wrong:
        return wrong
    return ConfigError(f"{key}: {reason}, got {as_typed(value)}")


def is_of_cell(key: str) -> bool:
    """Return whether a setting can be swept, because it does not apply to the whole sweep."""
    return key.partition(".")[0] not in OF_SWEEP
