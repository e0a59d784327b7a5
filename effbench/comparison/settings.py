"""The configuration of `compare` and `check`: effbench's defaults, a user's file over them, then single settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from effbench.comparison.limits import Limits, limits_of
from effbench.config import shipped
from effbench.errors import ConfigError, nearest

#: Where a user's own files lie if they are named without a path.
OWN = Path("conf") / "check"
#: The name that counts if none is given; the user's own file of this name goes before effbench's.
DEFAULT = "default"


def read(name: str | None = None, settings: Sequence[str] = ()) -> Limits:
    """Return the limits of `name` (a file, or a name below conf/check here or in effbench) with `settings` (key=value).

    Without a name `default` counts: conf/check/default.yaml of the working directory, if it exists. Every file goes
    over effbench's own defaults: a list (`metrics`, `exceptions`) replaces the one below it, mappings are merged.
    `source` of the result says where it is from. Raises ConfigError.
    """
    shipped_path = shipped("conf") / "check" / f"{DEFAULT}.yaml"
    values = load(shipped_path)
    path = find(DEFAULT if name is None else str(name))
    source = "effbench's defaults"
    if path.resolve() != shipped_path.resolve():
        values = OmegaConf.merge(values, load(path))
        source = f"{path} over {source}"
        try:
            limits_of(plain(values))
        except ConfigError as error:  # a file that was found by itself may be news to the user
            raise ConfigError(f"{path}: {error}") from error
    for word in settings:
        if not word.partition("=")[0] or "=" not in word:
            raise ConfigError(f"{word!r} is no setting: a setting is key=value, such as floor=0.03")
        try:
            values = OmegaConf.merge(values, OmegaConf.from_dotlist([word]))
        except (yaml.YAMLError, OmegaConfBaseException) as error:
            raise ConfigError(f"{word!r}: the value cannot be read") from error
    limits = limits_of(plain(values))
    limits.source = ", ".join([source, *settings])
    return limits


def find(name: str) -> Path:
    """Return the file that `name` means. Raises ConfigError that lists the known names."""
    given = Path(name)
    if given.suffix in (".yaml", ".yml") or len(given.parts) > 1:
        return given
    folders = (OWN, shipped("conf") / "check")
    for folder in folders:
        if (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
    known = sorted({path.stem for folder in folders if folder.is_dir() for path in folder.glob("*.yaml")})
    near = nearest(name, known)
    hint = f"did you mean {near}?" if near else f"there are {', '.join(known)}; a file needs its path"
    raise ConfigError(f"no configuration {name!r} in {OWN} or in effbench's own; {hint}")


def load(path: Path) -> DictConfig:
    try:
        values = OmegaConf.load(path)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path} is no YAML: {' '.join(str(error).split())[:150]}") from error
    if not isinstance(values, DictConfig):
        raise ConfigError(f"{path} holds no mapping of settings")
    return values


def plain(values: DictConfig) -> dict:
    """Return built-in values; `${…}` stays text."""
    return OmegaConf.to_container(values, resolve=False)
