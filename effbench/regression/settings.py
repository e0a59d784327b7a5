"""The configuration of `compare` and `check`: effbench's defaults, a file of the user's over them, then settings."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from effbench.analysis.limits import Limits, limits_of
from effbench.config import shipped
from effbench.errors import ConfigError

#: Where a user's own files lie if they are named without a path.
OWN = Path("conf") / "check"
#: The name that counts where none is given; the user's own file of this name goes before effbench's.
DEFAULT = "default"


def read(name: str | None = None, settings: Sequence[str] = ()) -> Limits:
    """Limits of `name` (a file, or a name below conf/check here or in effbench) with `settings` (key=value) over them.

    Without a name `default` counts: conf/check/default.yaml of the working directory, where there is one. Every file
    goes over effbench's own defaults: a list (`metrics`, `exceptions`) replaces the one below it, mappings are merged.
    `source` of what comes back says where it is from. Raises ConfigError.
    """
    shipped_path = shipped("conf") / "check" / f"{DEFAULT}.yaml"
    values = load(shipped_path)
    path = find(DEFAULT if name is None else str(name))
    source = "effbench's defaults"
    if path.resolve() != shipped_path.resolve():
        values = merged(values, load(path))
        source = f"{path} over {source}"
        try:
            limits_of(values)
        except ConfigError as error:  # a file that was found by itself may be news to the user
            raise ConfigError(f"{path}: {error}") from error
    for word in settings:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ConfigError(f"{word!r} is no setting: a setting is key=value, such as floor=0.03")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"{word!r}: {text!r} cannot be read") from error
        for inner in reversed(key.split(".")):
            value = {inner: value}
        values = merged(values, value)
    limits = limits_of(values)
    limits.source = ", ".join([source, *settings])
    return limits


def find(name: str) -> Path:
    """The file that `name` means. Raises ConfigError that names those there are."""
    given = Path(name)
    if given.suffix in (".yaml", ".yml") or len(given.parts) > 1:
        return given
    folders = (OWN, shipped("conf") / "check")
    for folder in folders:
        if (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
    known = sorted({path.stem for folder in folders if folder.is_dir() for path in folder.glob("*.yaml")})
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}; a file needs its path"
    raise ConfigError(f"no configuration {name!r} in {OWN} or in effbench's own; {hint}")


def load(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no YAML: {' '.join(str(error).split())[:150]}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds no mapping of settings")
    return values


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    both = copy.deepcopy(dict(below))
    for key, value in above.items():
        old = both.get(key)
        both[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return both
