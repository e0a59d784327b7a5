"""Rewrite errors of Hydra and OmegaConf in one or two lines: what is wrong, what is allowed, the
nearest name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields

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
from effbench.sweeping.plan import OF_SWEEP

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
    if isinstance(error, MissingConfigException):
        return missing_config(error, words)
    if isinstance(error, OverrideParseException):
        return cannot_parse(str(error.override))
    causes = list(chain(error))
    text = " ".join(map(str, causes))
    last = first_line(str(causes[-1]), limit=None) or type(causes[-1]).__name__
    return (
        explain_override(text, last, words)
        or explain_file(error, text)
        or explain_value(error, text, last)
    )


def explain_override(text: str, last: str, words: Sequence[str]) -> ConfigError | None:
    """Return the error for an override that cannot be applied; None for another error."""
    unknown = re.search(r"Could not override '(.+?)'", text)
    if unknown:
        return ConfigError(unknown_setting(unknown[1], words))
    wrong = re.search(r"Error merging override (\S+)", text)
    if wrong:
        return wrong_type(wrong[1], last)
    if "Config group override must be a string" in text:
        how = "quote a name such as inf: \"model='inf'\""
        return ConfigError(
            f"model=, mode= and other groups take a name, not a number, true, false or null; {how}"
        )
    known = re.search(r"Could not append to config. An item is already at '(.+?)'", text)
    if known:
        return ConfigError(f"{known[1]} is a setting already: write {known[1]}=VALUE, without +")
    return None


def explain_file(error: Exception, text: str) -> ConfigError | None:
    """Return the error for a YAML file that cannot be read or composed; None for another error."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        mark = error.problem_mark
        return ConfigError(f"{mark.name}, line {mark.line + 1}: {error.problem}")
    match = re.search(r"In '(.+?)': \w+ raised while composing config:\s*(.+)", text)
    if match is None:
        return None
    file, problem = match.groups()
    wrong = wrong_in_file(file, text)
    if wrong:
        return wrong
    unknown = re.match(r"Key '(.+?)' not in '(\w+)'", problem)
    hint = ""
    if unknown:
        section = getattr(config, unknown[2])
        hint = suggest(unknown[1], [field.name for field in fields(section)])
    return ConfigError(f"{file}.yaml: {problem}{hint}")


def explain_value(error: Exception, text: str, last: str) -> ConfigError:
    """Return the error for a value that is missing or wrong, or the first line of any other."""
    missing = re.search(r"full_key: (\S+)", text)
    if isinstance(error, MissingMandatoryValue) and missing:
        return ConfigError(f"{missing[1]} has no value; give one with {missing[1]}=…")
    if isinstance(error, OmegaConfBaseException) and error.full_key:
        value = value_in(last)
        wrong = None if value is None else wrong_value(error.full_key, value)
        return wrong or ConfigError(f"{error.full_key}: {last}")
    if isinstance(error, HydraException | OmegaConfBaseException):
        return ConfigError(last)
    return ConfigError(f"{type(error).__name__}: {last}")


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
    yaml_file = "--config-dir=DIR"
    for word in words:
        if word.startswith("--config-dir="):
            folder = word.partition("=")[2]
            yaml_file = f"{folder}/{group}/{name}.yaml does not exist"
    if group != "model":
        return f": not a shipped {group}; own YAML: {yaml_file}"
    meant = f", did you mean {near}?" if near else ""
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
    hint = hint_for_model(name) or hint_for_setting(name, words)
    return f"unknown setting {name!r}{hint}; effbench --cfg job lists all settings"


def hint_for_model(name: str) -> str:
    """Return what an unknown setting of the model was meant to be: a setting of the top level, an
    argument of the constructor, or an input. Empty for others."""
    group, _, key = name.partition(".")
    if group != "model":
        return ""
    sections = dict(config.sections())
    if key in sections[""]:
        return f": did you mean {key}?"
    if nearest(key.partition(".")[0], sections["model"]):
        return ""
    # similarity would name any setting of the model
    kind = "inputs" if "." in key else "module"
    return f": did you mean model.{kind}.{key}?"


def hint_for_setting(name: str, words: Sequence[str]) -> str:
    """Return which setting was meant: one with this name in another section, an argument of the
    model, or the most similar one."""
    settings = []
    for section, names in config.sections():
        settings += [f"{section}.{key}".lstrip(".") for key in names]
    same = [setting for setting in settings if setting.endswith(f".{name}")]  # numerics.tf32
    argument = name.removeprefix("module.")
    if not same and argument in arguments(words):
        same = [f"model.module.{argument}"]
    if same:
        return f": did you mean {' or '.join(same)}?"
    depth = name.count(".") + 1
    return suggest(name, [setting for setting in settings if setting.count(".") <= depth])


def arguments(words: Sequence[str]) -> set[str]:
    """Return the names of arguments of the models that these overrides choose from effbench's, such
    as `width`."""
    chosen = []
    for word in words:
        if word.startswith("model="):
            chosen += word.removeprefix("model=").split(",")
    names: set[str] = set()
    for file in (config.shipped("conf") / "model").glob("*.yaml"):
        if file.stem in (chosen or ["mlp"]):
            names.update(yaml.safe_load(file.read_bytes()).get("module", ()))
    return names


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
