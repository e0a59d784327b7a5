"""Select the cells of a matrix that a sweep plans: `exclude` removes cells."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from effbench.core.cell import Cell, JsonObject
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


def excluded(cells: Sequence[Cell], rules: Any) -> tuple[set[Cell], list[Rule]]:
    """Return the cells that match a rule, and the rules that match no cell.

    A rule maps keys of cells (`model`, `bs`, `mode`, `model.module.width` …) to a value, a
    comparison (`>256`) or a list of these; it matches cells that fit all its keys. Raises
    ConfigError for an invalid rule, and for a key that no cell has.
    """
    rules = check_rules(rules)
    values = {cell: values_of(cell.params()) for cell in cells}
    known = set(chain(*values.values()))
    for key in chain(*rules):
        if key not in known:
            near = suggest(key, known)
            raise ConfigError(f"exclude: no cell has the key {key!r}{near}. {EXAMPLE}")
    matched: set[Cell] = set()
    unused = []
    for rule in rules:
        fitting = {cell for cell in cells if fits_all(values[cell], rule)}
        matched |= fitting
        if not fitting:
            unused.append(rule)
    return matched, unused


def check_rules(rules: Any) -> list[Rule]:
    """Return the rules of the setting `exclude`. Raises ConfigError if it is no list of rules."""
    if rules is None:
        return []
    if not isinstance(rules, list) or not all(isinstance(rule, dict) and rule for rule in rules):
        raise ConfigError(
            f"exclude must be a list of rules, each with keys of cells, got {rules!r}. {EXAMPLE}"
        )
    return rules


def values_of(params: JsonObject) -> dict[str, Any]:
    """Return the values of a cell by key. `params`: what `Cell.params` returns."""
    values: dict[str, Any] = {**all_parameters(params)}
    # settings such as model.arch are in cells only as arguments of the module
    for key in list(values):
        values.setdefault(key.replace("model.module.", "model.", 1), values[key])
    return values | {"model": params["model"]["name"], "mode": params["mode"]["name"]}


def fits_all(values: Mapping[str, Any], rule: Rule) -> bool:
    return all(key in values and fits(values[key], wanted) for key, wanted in rule.items())


def fits(value: Any, wanted: Any) -> bool:
    """Return whether a cell's value fits what a rule gives for its key. Raises ConfigError for a
    comparison with anything but a number."""
    if isinstance(wanted, list):
        return any(fits(value, choice) for choice in wanted)
    compared = COMPARISON.fullmatch(typed(wanted))
    if compared is None:
        return typed(value) == typed(wanted)
    try:
        limit = float(compared[2])
    except ValueError:
        raise ConfigError(f"exclude: expected a number in {wanted!r}. {EXAMPLE}") from None
    try:
        # the values of `env` are texts
        return OPERATORS[compared[1]](float(value), limit)
    except (TypeError, ValueError):
        return False


def typed(value: Any) -> str:
    """Return a value as it is typed."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return str(value)
