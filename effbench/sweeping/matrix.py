"""Select the cells of a matrix that a sweep plans: `exclude` removes cells, `shard` takes one of
several parts."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from effbench import config
from effbench.cell import Cell
from effbench.errors import ConfigError, suggest
from effbench.labels import OMITTED, flatten

EXAMPLE = """Example: 'exclude=[{mode:cuda-graph,bs:">256"}]'"""
COMPARISON = re.compile(r"(>=|<=|>|<)(.*)")
OPERATORS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


def excluded(cells: Sequence[Cell], rules: Any) -> tuple[set[Cell], list[str]]:
    """Return the cells that match a rule, and the rules that match no cell, as text.

    A rule maps keys of cells (`model`, `bs`, `mode`, `model.module.width` …) to a value, a pattern
    (`max-*`), a comparison (`>256`) or a list of these; it matches cells that fit all its keys.
    Raises ConfigError for an invalid rule, and for a key that no cell has.
    """
    rules = check_rules(rules)
    matched: set[Cell] = set()
    texts = (", ".join(f"{key}: {value}" for key, value in rule.items()) for rule in rules)
    unused = {index: f"{{{text}}}" for index, text in enumerate(texts)}
    known = {
        f"{name}.{key}"
        for name, keys in config.sections()
        if name in Cell.__dataclass_fields__
        for key in keys
    }
    for cell in cells if rules else ():
        values = OMITTED | flatten(cell.params())
        # settings such as model.arch are in cells only as arguments of the module
        values = {
            key.replace("model.module.", "model.", 1): value for key, value in values.items()
        } | values
        values |= {"model": cell.model_name, "mode": cell.mode_name}
        known.update(values)
        for index, rule in enumerate(rules):
            if all(key in values and fits(values[key], wanted) for key, wanted in rule.items()):
                matched.add(cell)
                unused.pop(index, None)
    for key in dict.fromkeys(key for rule in rules if cells for key in rule if key not in known):
        hint = (
            suggest(key, known, before="")
            or "keys are those of cells, such as model, bs, model.module.width"
        )
        raise ConfigError(f"exclude: unknown key {key!r}; {hint}")
    return matched, list(unused.values())


def check_rules(rules: Any) -> list[dict[str, Any]]:
    """Return the rules of the setting `exclude`. Raises ConfigError if it is invalid."""
    rules = [] if rules is None else rules
    if not isinstance(rules, list) or not all(isinstance(rule, dict) and rule for rule in rules):
        raise ConfigError(
            f"exclude must be a list of rules, each with keys of cells, got {rules!r}. {EXAMPLE}"
        )
    for key, wanted in ((key, wanted) for rule in rules for key, wanted in rule.items()):
        for value in wanted if isinstance(wanted, list) else [wanted]:
            compared = COMPARISON.fullmatch(value) if isinstance(value, str) else None
            if isinstance(value, dict | list) or (compared and not is_number(compared[2])):
                raise ConfigError(
                    f"exclude: {key}: expected a value, a pattern, a comparison with a number or a"
                    f" list of these, got {value!r}. {EXAMPLE}"
                )
    return rules


def is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def fits(value: Any, wanted: Any) -> bool:
    """Return whether a cell's value fits what a rule gives for its key."""
    if isinstance(wanted, list):
        return any(fits(value, one) for one in wanted)
    if isinstance(wanted, str) and (compared := COMPARISON.fullmatch(wanted)):
        # the values of `env` are texts
        return is_number(str(value)) and OPERATORS[compared[1]](float(value), float(compared[2]))
    text, pattern = (
        str(one).lower() if isinstance(one, bool) else str(one) for one in (value, wanted)
    )
    return value == wanted or text == pattern or fnmatchcase(text, pattern)


def parse_shard(text: str) -> tuple[int, int]:
    """Return (3, 8) for `3/8`. Raises ConfigError."""
    parts = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", text)  # one name per shard
    index, number = map(int, parts.groups()) if parts else (0, 0)
    if not 1 <= index <= number:
        raise ConfigError(
            f"shard={text}: write which of how many parts to run, from 1/8 to 8/8 for eight parts"
        )
    return index, number


def shards(cells: Iterable[Cell], number: int) -> list[list[Cell]]:
    """Return the cells in `number` parts of about the same size, which depend only on the cells and
    their order.

    Cells that differ only in their mode are compared, so they stay together, unless there are more
    of them than a part has cells.
    """
    compared: dict[str, list[Cell]] = {}
    distinct = list(dict.fromkeys(cells))
    for cell in distinct:
        compared.setdefault(cell.comparison_key, []).append(cell)
    most = math.ceil(len(distinct) / number)
    pieces = [
        group[start : start + most]
        for group in compared.values()
        for start in range(0, len(group), most)
    ]
    parts: list[list[Cell]] = [[] for _ in range(number)]
    for piece in sorted(pieces, key=len, reverse=True):
        min(parts, key=len).extend(piece)
    return parts
