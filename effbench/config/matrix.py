"""The matrix of a command line: the words of each job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, product
from math import prod

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.types import ChoiceSweep

from effbench.config.overrides import Word, parse
from effbench.core.errors import UsageError
from effbench.core.labels import override_text

MOST_CELLS = 100_000  # their configurations alone take gigabytes


def matrix(words: Sequence[Word], loader: ConfigLoader) -> Iterator[tuple[Word, ...]]:
    """Return the words of each job: the product of the values of all overrides, the last one of a
    key. Raises UsageError for a product that is too large, and for values that Hydra would drop or
    change."""
    texts: dict[str, list[str]] = {}
    for word in words:
        key = word.override.get_key_element()
        check_repeated(word, key in texts)
        check_environment(word)
        texts[key] = [f"{key}={value}" for value in values_of(word, loader)]
        if prod(map(len, texts.values())) > MOST_CELLS:
            raise UsageError(
                f"{word.text}: a sweep can have at most {MOST_CELLS:,} cells; split it"
            )
    return product(*[[*map(parse, values)] for values in texts.values()])


def values_of(word: Word, loader: ConfigLoader) -> list[str]:
    """Return the values that an override sweeps, or its only one. Raises Hydra's error for an
    interval, which other sweepers understand."""
    if not word.override.is_sweep_override():
        _, _, value = word.text.partition("=")  # as it was given: Hydra's own text has backslashes
        return [value]
    override = replace(word.override, config_loader=loader)  # for the options of `glob`
    # a range may be infinite
    return list(islice(override.sweep_string_iterator(), MOST_CELLS + 1))


def check_repeated(word: Word, is_repeated: bool) -> None:
    """Raise UsageError for a mapping or `exclude` that is given twice, because only the last would
    count."""
    if is_repeated and (isinstance(word.override.value(), dict) or word.key == "exclude"):
        raise UsageError(
            f"{word.text}: {word.key} is given twice; write all its values as one, such as"
            " env={A:1,B:2} or 'exclude=[{bs:1},{mode:default}]'"
        )


def check_environment(word: Word) -> None:
    """Raise UsageError for an environment variable whose text Hydra changes: it reads 12.10 as the
    number 12.1."""
    if word.section != "env":
        return
    value = word.override.value()
    for choice in value.list if isinstance(value, ChoiceSweep) else [value]:
        for number in choice.values() if isinstance(choice, dict) else [choice]:
            passed = override_text(number)
            is_kept = re.search(rf"(?<![\w.+-]){re.escape(passed)}(?![\w.])", word.text)
            if isinstance(number, int | float) and not is_kept:
                raise UsageError(
                    f"{word.text} would set {passed}, because Hydra reads a value; quote it, as in"
                    " env.FOO='\"12.10\"'"
                )
