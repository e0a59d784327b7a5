"""The text of a refused override: what is wrong, what is allowed, how to fix it.

Here is what needs the names, types or examples of the settings. The function that finds one of the
other mistakes has its text:

- syntax: `cannot_parse`; `overrides.check_word` (a word that is no override, or lacks quotes),
  `overrides.read` (options)
- names: `unknown_setting`, `unknown_option`, `no_option`; `compose.without` (`~`)
- values: `wrong_value`, `no_value`; `compose.assign` (nan), `compose.with_referred` (no
  value), `matrix.check_environment` (a number as text)
- sweeps: `matrix` (too many cells, a mapping given twice), `launch.composer_of` (another launcher),
  `cells.split` (no cell, a setting that cannot be swept), `cells.check_effect` (a phase that no
  cell has), `cells.select` (nothing is left), `run.sweep.check_baseline` (no cell of the baseline)
- parts of a model, mode or stream: `models.spec`, `modes.base.check_setting`, `modes.inductor`,
  `core.streams`, `core.buckets`
- together: `validation`, `compose.with_batch_size`; `run.selection` (`exclude`)
- after the import of modules and modes: `run.probe` (a mode's settings), `worker.probe` (arguments
  of a module), `models.libraries.check` (those of a network by name), `models.build` (targets),
  `cells.resolve` (two modules of one name), `cells.check_devices`
- interpreters: `run.interpreters.resolve`
- `resume=`: `overrides.sweep_to_resume`; `run.resume` (another plan)
- files: `explain` (errors of Hydra and OmegaConf), `overrides.check_folder`
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.errors import HydraException, MissingConfigException
from msgspec import inspect
from omegaconf.errors import OmegaConfBaseException

from effbench.core.errors import ConfigError, nearest, suggest
from effbench.core.printable import first_line, one_line
from effbench.core.settings import LARGEST, SECTIONS, SETTINGS, Setting, quoted
from effbench.models.presets import PRESETS, canonical
from effbench.models.spec import KEYS
from effbench.run.plan import OF_SWEEP

#: Examples where the default would be no useful one.
EXAMPLES = {
    "bs": "bs=8",
    "model.module": "model.module.width=64",
    "model.inputs": "model.inputs.x.shape=[3,224,224]",
    "model.config": "model.config.num_labels=10",
    "model.kwargs": "model.kwargs.num_classes=10",
    "executor.sbatch": "executor.sbatch.qos=high",
    "env": "env.OMP_NUM_THREADS=1",
}


# --- names ---


def unknown_setting(name: str, values: Mapping[str, Any]) -> ConfigError:
    """Return the error for a setting that does not exist. `values`: of the job."""
    hint = meant(name, values)
    return ConfigError(f"unknown setting {name!r}{hint}; effbench --cfg job lists all settings")


def meant(name: str, values: Mapping[str, Any]) -> str:
    """Return which settings were meant: an input, those that have this name elsewhere, or the most
    similar one."""
    group, *inner = name.split(".")
    if group == "model" and len(inner) == 2 and inner[1] in KEYS:
        return f": did you mean model.inputs.{'.'.join(inner)}?"
    arguments = [f"model.module.{argument}" for argument in values["model"]["module"]]
    names = [*SECTIONS, *SETTINGS, *arguments]
    last = name.rpartition(".")[2]
    same = [known for known in names if known.rpartition(".")[2] == last]
    if same:
        return f": did you mean {' or '.join(same)}?"
    return suggest(name, names)


def unknown_option(group: str, name: str, options: Sequence[str]) -> ConfigError:
    """Return the error for an option that a group does not have."""
    hint = suggest(name, options)
    own = f"own YAML: --config-dir=DIR with {group}/{name or 'NAME'}.yaml in it"
    if group == "model":
        own = f"{own}, own module: model=custom model.module._target_=my_pkg.Net"
        if canonical("transformers", name) in PRESETS:
            hint = f": a network of transformers: model=transformers model.arch={name}"
    return ConfigError(f"unknown {group} {name!r}{hint}; {own}\nallowed: {', '.join(options)}")


def no_option(group: str, value: Any) -> ConfigError:
    """Return the error for the option of a group that is no name."""
    if isinstance(value, list):
        several = ",".join(map(as_override, value))
        return ConfigError(
            f"{group}: expected one value, got {as_override(value)}. To sweep over several, write"
            f" {group}={several}"
        )
    how = "quote a name such as inf: \"model='inf'\""
    return ConfigError(
        f"model=, mode= and other groups take a name, not a number, true, false or null; {how}"
    )


def no_value(section: str, value: Any) -> ConfigError:
    """Return the error for the value of a section, which has only settings."""
    inner = ", ".join(name for name in SETTINGS if name.startswith(f"{section}."))
    return ConfigError(f"{section} takes no value, got {as_typed(value)}. Set one of {inner}")


# --- values ---


def wrong_value(setting: Setting, value: Any) -> ConfigError:
    """Return the error for a value that a setting does not take."""
    name, kind = setting.name, inspect.type_info(setting.kind)
    limit = ""
    if isinstance(value, int) and abs(value) > LARGEST:
        limit = f", within ±{LARGEST:,}"
    refused = f"{name}: expected {expectation(kind)}{limit}, got {as_typed(value)}"
    if isinstance(value, list) and not setting.is_open and name.partition(".")[0] not in OF_SWEEP:
        several = ",".join(map(as_override, value))
        return ConfigError(f"{refused}. To sweep over several values, write {name}={several}")
    return ConfigError(f"{refused}. Example: {shlex.quote(example(setting, value))}")


def expectation(kind: inspect.Type) -> str:
    """Return which values a type takes, such as `a whole number of at least 1`."""
    match kind:
        case inspect.UnionType(types=types):
            return " or ".join(map(expectation, types))
        case inspect.LiteralType(values=values):
            return f"one of {', '.join(map(str, values))}"
        case inspect.DictType():
            return "values by name"
        case inspect.BoolType():
            return "true or false"
        case inspect.NoneType():
            return "null"
        case inspect.IntType():
            return expected_number("a whole number", kind)
        case inspect.FloatType():
            return expected_number("a number", kind)
    return "text"


def expected_number(noun: str, kind: inspect.IntType | inspect.FloatType) -> str:
    if kind.gt is not None:
        return f"{noun} above {kind.gt:g}"
    if kind.ge is None or kind.ge == -LARGEST:
        return noun
    if kind.le in (None, LARGEST):
        return f"{noun} of at least {kind.ge:g}"
    return f"{noun} from {kind.ge:g} to {kind.le:,}"


def example(setting: Setting, value: Any = None) -> str:
    """Return an override that sets a valid value: of names the one most similar to `value`, else
    usually the default."""
    if setting.name in EXAMPLES:
        return EXAMPLES[setting.name]
    valid = setting.default
    kind = inspect.type_info(setting.kind)
    if isinstance(kind, inspect.UnionType):
        kind = kind.types[0]
    match kind:
        case inspect.LiteralType(values=values):
            valid = nearest(str(value), map(str, values)) or valid or values[0]
        case inspect.BoolType():
            valid = not valid
        case inspect.StrType():
            valid = quoted(valid or "text")
        case inspect.IntType() | inspect.FloatType() if valid is None:
            valid = 1
    return f"{setting.name}={as_override(valid)}"


def as_override(value: Any) -> str:
    """Return a value as it is typed in an override."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value, separators=(",", ":"), default=str).replace('"', "")


def as_typed(value: Any) -> str:
    """Return a value for a message, text in quotes."""
    if isinstance(value, str):
        return f"'{value}'"
    return as_override(value)


# --- errors of Hydra ---


def cannot_parse(override: str) -> ConfigError:
    """Return the error for an override that is not in Hydra's syntax."""
    how = (
        "write key=value, or key=value,value to sweep; quote a value with = ? or ä twice:"
        " 'key=\"a=b\"'"
    )
    if override.startswith("model.inputs") and "=" in override:
        how = (
            "write sizes as a list and inputs in braces, and quote them:"
            " 'model.inputs.x={shape: [64], dtype: float32}'"
        )
    return ConfigError(f"cannot parse the override {override!r}: {how}")


def explain(error: Exception) -> ConfigError:
    """Return a ConfigError with the same meaning as an error of Hydra in one or two lines."""
    if isinstance(error, MissingConfigException) and error.options:
        group, _, name = str(error.missing_cfg_file).partition("/")
        return unknown_option(group, name, error.options)
    cause: BaseException = error
    while cause.__cause__ is not None and not str(cause):  # Hydra wraps some errors in an empty one
        cause = cause.__cause__
    text = one_line(cause, 300)
    if isinstance(cause, OmegaConfBaseException) and cause.full_key:
        return ConfigError(f"{cause.full_key}: {first_line(str(cause))}")
    if isinstance(cause, HydraException | OmegaConfBaseException):
        return ConfigError(text)
    return ConfigError(f"{type(cause).__name__}: {text}")
