"""The overrides that plan a given cell again: what effbench ships, and whatever differs from it.

Nothing but the configurations that ship is needed: a model or a mode that they do not hold is spelled out.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from effbench import config as schema
from effbench import streams
from effbench.cell import Cell
from effbench.errors import ConfigError

#: Part of a setting's path that Hydra's grammar can name.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
#: Key of a dictionary that is given as a whole.
_DOTTED = re.compile(rf"{_NAME.pattern}(\.{_NAME.pattern})*")
#: Text that needs no quotes in an override, and reads as nothing but text.
_WORD = re.compile(r"[A-Za-z_/][A-Za-z0-9_./+-]*")
_SPECIAL = frozenset({"null", "true", "false", "nan", "inf"})
#: Rounds of laying a change over an option and resolving anew what refers to it.
_MOST_PASSES = 4


class InexpressibleError(ConfigError):
    """No override says this."""


def overrides_of(cell: Cell) -> list[str]:
    """Overrides that compose to a cell of the same key, for Hydra (not yet quoted for a shell).

    Raises InexpressibleError where none do: a stream out of a file, a name that Hydra's grammar does not take, or
    settings that this version of effbench does not have.
    """
    words = [*_model(json.dumps(cell.model), cell.bs), *_mode(json.dumps(cell.mode))]
    if cell.stream is None:
        words.append(f"bs={cell.bs}")
    else:
        words += _stream(cell.stream)
    words += [f"dtype={text_of(cell.dtype)}", f"device={text_of(cell.device)}"]
    if cell.phase != schema.Config.phase:
        words.append(f"phase={text_of(cell.phase)}")
    words += _closed("numerics", cell.numerics, schema.Numerics)
    if cell.training is not None:
        words += _closed("training", cell.training, schema.Training)
    for name, value in cell.env.items():
        words.append(f"{_path('env', name)}={text_of(value)}")
    return words


def protocol_overrides(protocol: Mapping[str, Any]) -> list[str]:
    """Overrides that give a sweep's protocol; settings that this version does not have are left out."""
    name = protocol.get("name")
    name = name if name in _options("protocol") else schema.Protocol.name
    base = dataclasses.asdict(schema.Protocol()) | _options("protocol")[name]
    changed = {key: value for key, value in protocol.items() if key in base and not _same(base[key], value)}
    return [f"protocol={name}", *(f"{_path('protocol', key)}={text_of(value)}" for key, value in changed.items())]


def text_of(value: Any) -> str:
    """A value as Hydra's grammar and OmegaConf read it back. Raises InexpressibleError."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InexpressibleError(f"{value} is no finite number")
        return repr(value)
    if isinstance(value, str):
        if _WORD.fullmatch(value) and value.lower() not in _SPECIAL:
            return value
        return _quoted(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_key(key, _DOTTED)}:{text_of(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ",".join(text_of(item) for item in value) + "]"
    raise InexpressibleError(f"{value!r} is no plain value")


def _quoted(text: str) -> str:
    """Within quotes a backslash counts only before a quote, or at the end."""
    if "${" in text or any(not character.isprintable() for character in text):
        raise InexpressibleError(f"{text!r} has characters that an override cannot hold")
    escaped = re.sub(r'(\\*)("|$)', lambda found: found[1] * 2 + ("\\" if found[2] else "") + found[2], text)
    return f'"{escaped}"'


def _key(key: Any, form: re.Pattern[str] = _NAME) -> str:
    if not isinstance(key, str) or not form.fullmatch(key) or key.lower() in _SPECIAL:
        raise InexpressibleError(f"{key!r} is no name that an override can hold")
    return key


def _path(*parts: str) -> str:
    return ".".join(map(_key, parts))


def _same(one: Any, other: Any) -> bool:
    """Equal also as JSON: 1 is not 1.0, nor true."""
    return json.dumps(one) == json.dumps(other)


@cache
def _options(group: str) -> dict[str, dict[str, Any]]:
    """Name -> the configuration of each shipped option of a group, nothing resolved."""
    folder = Path(schema.shipped("conf")) / group
    found = {path.stem: OmegaConf.to_container(OmegaConf.load(path)) for path in sorted(folder.glob("*.yaml"))}
    return {
        name: {key: value for key, value in option.items() if key != "description"} for name, option in found.items()
    }


@cache
def _refers(group: str, name: str, to: str = "${") -> bool:
    """Whether something in this option refers to something else."""
    return to in json.dumps(_options(group)[name])


# --- models and modes ---

_GONE = object()
Change = tuple[tuple[str, ...], Any]


@cache
def _model(asked: str, bs: int) -> tuple[str, ...]:
    """The words for a cell's model, as JSON, at a batch size."""
    model = json.loads(asked)
    unlike = InexpressibleError(
        f"the model {model.get('name')} was recorded with other settings than this effbench has"
    )
    if {"description", *model} != {f.name for f in dataclasses.fields(schema.Model)}:
        raise unlike
    inputs = {spec["name"]: {key: value for key, value in spec.items() if key != "name"} for spec in model["inputs"]}
    if len(inputs) < len(model["inputs"]):
        raise unlike
    wanted = {**model, "inputs": inputs}
    found = _shortest("model", model, model["module"].get("_target_"), "custom", wanted, bs)
    if found is None:
        raise InexpressibleError(f"no option says the model {model['name']}")
    return found


@cache
def _mode(asked: str) -> tuple[str, ...]:
    """The words for a cell's mode, as JSON."""
    mode = json.loads(asked)
    found = _shortest("mode", mode, mode.get("_target_"), "eager", mode, 1)
    if found is None:
        raise InexpressibleError(f"no option says the mode {mode['name']}")
    return found


def _shortest(
    group: str, named: Mapping[str, Any], target: Any, last: str, wanted: dict[str, Any], bs: int
) -> tuple[str, ...] | None:
    """Of the options with this name, else of those with this target, the one with the fewest changes; else `last`."""
    options = _options(group)
    same = [name for name, option in options.items() if _target(option) == target]
    own = [name for name in same if named["name"] in (name, options[name]["name"])]
    for names in (own, same, [last]):
        found = [words for name in names if (words := _laid_over(group, name, wanted, bs)) is not None]
        if found:
            return tuple(min(found, key=len))
    return None


def _target(option: Mapping[str, Any]) -> Any:
    return option.get("module", option).get("_target_")


def _laid_over(group: str, name: str, wanted: dict[str, Any], bs: int) -> list[str] | None:
    """The option, and what to change in it to have what is wanted; None where changes do not lead there."""
    changes: list[Change] = []
    for _ in range(_MOST_PASSES):
        have = _resolved(group, name, changes, bs)
        if have is None:
            return None
        differing = list(_differences(have, wanted))
        if not differing:
            # a call's arguments have an order, which no change of single settings gives
            if list(have.get("inputs", ())) != list(wanted.get("inputs", ())):
                return None
            return [f"{group}={name}", *(_word(group, path, value) for path, value in changes)]
        # inputs may follow the module's arguments: those first, then see what is left
        changes += [change for change in differing if change[0][0] == "module"] or differing
    return None


def _resolved(group: str, name: str, changes: Sequence[Change], bs: int) -> dict[str, Any] | None:
    """The option with these changes as planning sees it; None where something in it refers to what is not there."""
    if _refers(group, name):
        have = _resolved_by_omegaconf(group, name, changes, bs)
    else:  # nothing in it refers to anything: a hundred times as fast
        have = _changed(copy.deepcopy(_options(group)[name]), changes)
    if have is None:
        return None
    if not have.get("name") and "module" in have:  # as planning names it
        have["name"] = str(have["module"].get("_target_")).replace(":", ".").rpartition(".")[2]
    return have


def _resolved_by_omegaconf(group: str, name: str, changes: Sequence[Change], bs: int) -> dict[str, Any] | None:
    config = OmegaConf.create({group: _options(group)[name], "bs": bs})
    try:
        for path, value in changes:
            if value is _GONE:
                if OmegaConf.select(config, ".".join((group, *path))) is None:
                    return None  # Hydra takes out nothing that is null
                OmegaConf.select(config, ".".join((group, *path[:-1]))).pop(path[-1])
            else:
                OmegaConf.update(config, _path(group, *path), value, merge=True)
        return OmegaConf.to_container(config, resolve=True)[group]
    except OmegaConfBaseException:
        return None


def _changed(have: dict[str, Any], changes: Sequence[Change]) -> dict[str, Any] | None:
    """The same without references."""
    for path, value in changes:
        node = have
        for part in path[:-1]:
            node = node.setdefault(part, {})
        if value is _GONE:
            if node[path[-1]] is None:
                return None
            del node[path[-1]]
        elif isinstance(value, dict) and isinstance(node.get(path[-1]), dict):
            node[path[-1]] |= value
        else:
            node[path[-1]] = value
    return have


def _differences(have: Mapping[str, Any], wanted: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[Change]:
    """Settings with the value that is wanted, or _GONE."""
    yield from (((*path, key), _GONE) for key in have if key not in wanted)
    for key, value in wanted.items():
        here = (*path, key)
        if not _NAME.fullmatch(key):  # no part of a path, as Inductor's `triton.cudagraphs`: set from above
            if key not in have or not _same(have[key], value):
                yield path, {key: value}
        elif isinstance(value, Mapping) and (value if key not in have else isinstance(have[key], Mapping)):
            yield from _differences(have.get(key, {}), value, here)
        elif key not in have or not _same(have[key], value):
            yield here, value


def _word(group: str, path: tuple[str, ...], value: Any) -> str:
    setting = _path(group, *path)
    return f"~{setting}" if value is _GONE else f"{setting}={text_of(value)}"


# --- what has the same settings always ---


def _closed(group: str, values: Mapping[str, Any], kind: type) -> list[str]:
    defaults = _defaults(kind)
    if values.keys() != defaults.keys():
        unknown = ", ".join(sorted(values.keys() ^ defaults.keys()))
        raise InexpressibleError(f"its {group} was recorded with other settings than this effbench has ({unknown})")
    changed = {key: value for key, value in values.items() if not _same(value, defaults[key])}
    return [f"{_path(group, key)}={text_of(value)}" for key, value in changed.items()]


@cache
def _defaults(kind: type) -> dict[str, Any]:
    return dataclasses.asdict(kind())


def _stream(stream: Mapping[str, Any]) -> list[str]:
    kind, *words = stream["name"].split(" ")
    if kind not in streams.KINDS or kind == "csv":
        raise InexpressibleError(f"the stream {stream['name']} came out of a file, which is not in the database")
    try:
        given = {key: json.loads(value) for key, _, value in (word.partition("=") for word in words)}
        again = streams.resolve({"name": kind, **streams.KINDS[kind], **given})
    except (ValueError, ConfigError):
        again = None
    if again != stream:
        raise InexpressibleError(f"this effbench generates other sizes for the stream {stream['name']}")
    base = _options("stream")[kind]
    changed = {key: value for key, value in (streams.KINDS[kind] | given).items() if not _same(base.get(key), value)}
    return [f"stream={kind}", *(f"{_path('stream', key)}={text_of(value)}" for key, value in changed.items())]
