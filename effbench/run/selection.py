"""Select the cells of a matrix that a sweep plans: `exclude` removes cells."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any

from effbench.core import settings as config
from effbench.core.cell import Cell
from effbench.core.errors import ConfigError, suggest
from effbench.core.labels import all_parameters

EXAMPLE = """Example: 'exclude=[{mode:cuda-graph,bs:">256"}]'"""
COMPARISON = re.compile(r"(>=|<=|>|<)(.*)")
OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}

#: Key of cells -> what the rule wants.
Rule = dict[str, Any]


def excluded(cells: Sequence[Cell], rules: Any) -> tuple[set[Cell], list[str]]:
    """Return the cells that match a rule, and the rules that match no cell, as text.

    A rule maps keys of cells (`model`, `bs`, `mode`, `model.module.width` …) to a value, a pattern
    (`max-*`), a comparison (`>256`) or a list of these; it matches cells that fit all its keys.
    Raises ConfigError for an invalid rule, and for a key that no cell has.
    """
    rules = check_rules(rules)
    if not rules or not cells:
        return set(), list(map(rule_text, rules))
    values = {cell: values_of(cell) for cell in cells}
    known = known_keys().union(*values.values())
    for key in chain(*rules):
        if key not in known:
            near = suggest(key, known, before="")
            hint = near or "keys are those of cells, such as model, bs, model.module.width"
            raise ConfigError(f"exclude: unknown key {key!r}; {hint}")
    matched: set[Cell] = set()
    unused = []
    for rule in rules:
        fitting = {cell for cell in cells if fits_all(values[cell], rule)}
        matched |= fitting
        if not fitting:
            unused.append(rule_text(rule))
    return matched, unused


def rule_text(rule: Rule) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in rule.items()) + "}"


def known_keys() -> set[str]:
    """Return the keys that cells may have, besides those of their own model and mode."""
    names = Cell.__dataclass_fields__
    return {f"{name}.{key}" for name, keys in config.sections() if name in names for key in keys}


def values_of(cell: Cell) -> dict[str, Any]:
    """Return the values of a cell by key."""
    values = all_parameters(cell.params())
    # settings such as model.arch are in cells only as arguments of the module
    for key in list(values):
        values.setdefault(key.replace("model.module.", "model.", 1), values[key])
    return values | {"model": cell.model_name, "mode": cell.mode_name}


def fits_all(values: dict[str, Any], rule: Rule) -> bool:
    for key, wanted in rule.items():
        if key not in values or not fits(values[key], wanted):
            return False
    return True


def check_rules(rules: Any) -> list[Rule]:
    """Return the rules of the setting `exclude`. Raises ConfigError if it is invalid."""
    if rules is None:
        return []
    if not isinstance(rules, list) or not all(isinstance(rule, dict) and rule for rule in rules):
        raise ConfigError(
            f"exclude must be a list of rules, each with keys of cells, got {rules!r}. {EXAMPLE}"
        )
    for rule in rules:
        for key, wanted in rule.items():
            choices = wanted if isinstance(wanted, list) else [wanted]
            for value in choices:
                if not is_valid(value):
                    raise ConfigError(
                        f"exclude: {key}: expected a value, a pattern, a comparison with a number"
                        f" or a list of these, got {value!r}. {EXAMPLE}"
                    )
    return rules


def is_valid(value: Any) -> bool:
    """Return whether a rule may have this value."""
    if isinstance(value, dict | list):
        return False
    compared = COMPARISON.fullmatch(typed(value))
    return compared is None or is_number(compared[2])


def is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def fits(value: Any, wanted: Any) -> bool:
    """Return whether a cell's value fits what a rule gives for its key."""
    if isinstance(wanted, list):
        return any(fits(value, choice) for choice in wanted)
    compared = COMPARISON.fullmatch(typed(wanted))
    if compared is not None:
        # the values of `env` are texts
        compare = OPERATORS[compared[1]]
        return is_number(str(value)) and compare(float(value), float(compared[2]))
    return value == wanted or fnmatchcase(typed(value), typed(wanted))


def typed(value: Any) -> str:
    """Return a value as it is typed."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return str(value)
