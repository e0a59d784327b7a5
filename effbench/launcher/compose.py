"""Compose the configurations of a sweep's jobs: each distinct section once, instead of each job by
Hydra."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from effbench import config, streams
from effbench.launcher import errors

#: Groups with one option at a time; Hydra would merge the options of a list.
ONE_OPTION = ("model", "stream", "mode", "protocol", "executor")
#: A reference to another value, not to an environment variable: its top-level key, and the rest.
REFERENCE = re.compile(r"\$\{(?!oc\.env:)([^.\[}]*)([^}]*)")


@dataclass(frozen=True, eq=False)
class Word:
    """A parsed override, and the section (top-level key) that it changes. `is_choice`: it chooses
    an option of a group; `is_local`: it cannot affect other sections."""

    override: Override
    section: str
    is_choice: bool
    is_local: bool


#: Words in their order.
Words = tuple[Word, ...]


@dataclass(frozen=True)
class Scope:
    """Sections that depend on each other, and their words. `together`: all choices of the job, if
    they must be composed together; None: the choices of these sections suffice."""

    sections: tuple[str, ...]
    words: Words
    together: Words | None


class Composer:
    """Compose jobs section by section (model, mode, bs …). Jobs share sections: treat these as
    read-only.

    Hydra takes about 100 ms for a configuration. A section depends on its own words and on those of
    the sections that it refers to, unless the file of an option has a `defaults` list or another
    package: then Hydra composes each distinct choice of groups.
    """

    def __init__(self, loader: ConfigLoader, master: DictConfig) -> None:
        self.loader = loader
        self.master = master
        self.parser = OverridesParser.create(config_loader=loader)
        self.options_of = cache(loader.get_group_options)
        self.parse = cache(self._parse)
        self.composition = cache(self._compose_choices)
        self.reduced = cache(self._reduce)
        self.references = cache(self._find_references)
        self.section = cache(self._compose_section)
        # choices that affect only their sections, and that have been composed
        self.local: list[Words] = []
        chosen = master.hydra.runtime.choices
        self.is_local = all(
            self.is_plain_option(str(group), option)
            for group, option in chosen.items()
            if not str(group).startswith("hydra/")
        )

    def compose(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return a job's configuration as plain, resolved values, without Hydra's own section.

        Raises errors of Hydra and OmegaConf if it cannot be composed, ConfigError for a list where
        one value is needed.
        """
        words = [self.parse(text) for text in texts]
        together = self.choices_together(words)
        composed = self.composition(self.local[0] if together is None else together)
        words_of: dict[str, Words] = {str(name): () for name in composed}
        for word in words:
            words_of[word.section] = (*words_of.get(word.section, ()), word)
        plain: dict[str, Any] = {}
        for name in words_of:
            sections = self.related(name, words_of, together)
            related = tuple(word for other in sections for word in words_of[other])
            plain |= self.section(name, Scope(sections, related, together))
        return plain

    def choices_together(self, words: Sequence[Word]) -> Words | None:
        """Return the choices of a job if one of them may affect other sections than its own, else
        None."""
        choices = choices_in(words)
        if not self.is_local or not all(word.is_local for word in words):
            return choices
        if not self.local:
            self.local.append(choices)  # it has every section of this job
        return None

    def related(
        self, name: str, words_of: Mapping[str, Words], together: Words | None
    ) -> tuple[str, ...]:
        """Return the sections that a section's values depend on, itself included."""
        names = [name]
        for other in names:  # this list grows meanwhile
            keys = self.references(other, Scope((other,), words_of[other], together))
            if not keys <= words_of.keys():  # a reference of another kind, such as ${oc.select:bs}
                return tuple(words_of)
            names += sorted(keys.difference(names))
        return tuple(sorted(names))

    def _parse(self, text: str) -> Word:
        override = self.parser.parse_override(text)
        key = override.key_or_group
        value = override.value()
        is_option = not isinstance(value, dict) and bool(self.options_of(key))
        is_choice = is_option or override.package is not None
        if is_choice and key in ONE_OPTION and isinstance(value, list):
            raise errors.wrong_type(text, "of type 'list'")
        is_plain = not (override.is_delete() or override.is_add() or override.package)
        is_local = not is_choice or (is_plain and self.is_plain_option(key, value))
        return Word(override, re.split(r"[./@]", key)[0], is_choice, is_local)

    def is_plain_option(self, group: str, option: object) -> bool:
        """Return whether the file of this option sets only its group's section, by itself."""
        path = f"{group}/{option}"
        if not isinstance(option, str):
            return False
        for source in self.loader.get_sources():
            if source.is_config(path):
                file = source.load_config(path)
                package = file.header.get("package")
                return package in (None, "_group_", group) and "defaults" not in file.config
        return False

    def _compose_choices(self, choices: Words) -> DictConfig:
        """Return Hydra's composition of these choices, without its own section; do not change
        it."""
        texts = [str(word.override.input_line) for word in choices]
        composed = self.loader.load_sweep_config(self.master, texts)
        OmegaConf.set_readonly(composed, False)
        # named after its file, because a user's file that extends a shipped protocol inherits its
        # name
        composed.protocol.name = (
            composed.hydra.runtime.choices.get("protocol") or composed.protocol.name
        )
        with open_dict(composed):
            del composed["hydra"]
        return composed

    def composed_choices(self, scope: Scope) -> Words:
        """Return choices in whose composition the sections of this scope are as their words say;
        other sections may be as in any job."""
        if scope.together is not None:
            return scope.together
        choices = choices_in(scope.words)
        for known in self.local:
            if tuple(word for word in known if word.section in scope.sections) == choices:
                return known
        self.local.append(choices)
        return choices

    def _reduce(self, sections: tuple[str, ...], choices: Words) -> DictConfig:
        """Return a composition without all other sections: it is faster to copy, and as strict
        about types."""
        composed = copy.deepcopy(self.composition(choices))
        with open_dict(composed):
            for name in list(composed):
                if name not in sections:
                    del composed[name]
        return composed

    def _find_references(self, name: str, scope: Scope) -> frozenset[str]:
        """Return the top-level keys that a section's values may refer to, such as `bs` for `${bs}`,
        and other texts for references in which another one decides the key."""
        composed = self.composition(self.composed_choices(scope))
        section = OmegaConf.to_container(OmegaConf.masked_copy(composed, name))
        texts = [str(section), *(str(word.override.input_line) for word in scope.words)]
        keys = set()
        for key, rest in REFERENCE.findall(" ".join(texts)):
            keys.add(rest if "$" in rest else key)
        if name == "bs":  # a stream of batch sizes sets it
            keys.add("stream")
        return frozenset(keys)

    def _compose_section(self, name: str, scope: Scope) -> dict[str, Any]:
        """Return the section by its name, as plain, resolved values; an empty mapping if its words
        remove it."""
        composed = copy.deepcopy(self.reduced(scope.sections, self.composed_choices(scope)))
        for word in scope.words:
            if not word.is_choice:
                apply_override(word.override, composed)
        if "bs" in composed and "stream" in composed:
            set_batch_size(composed, is_given=any(word.section == "bs" for word in scope.words))
        plain = OmegaConf.to_container(
            composed, resolve=True, throw_on_missing=True, enum_to_str=True
        )
        assert isinstance(plain, dict)
        return {str(key): value for key, value in plain.items() if key == name}


def choices_in(words: Iterable[Word]) -> Words:
    return tuple(word for word in words if word.is_choice)


def set_batch_size(composed: DictConfig, is_given: bool) -> None:
    """Set `bs` to the largest size of a stream of batch sizes. Raises ConfigError if another one is
    given."""
    settings = OmegaConf.to_container(composed.stream, resolve=True, throw_on_missing=True)
    assert isinstance(settings, dict)
    sizes = streams.batch_sizes({str(key): value for key, value in settings.items()})
    if sizes:
        is_given = is_given or composed.bs != config.Config.bs
        composed.bs = streams.batch_size(sizes, composed.bs if is_given else None)


def apply_override(override: Override, composed: DictConfig) -> None:
    """Change values of a composition as Hydra does. Raises Hydra's errors."""
    key, value = override.key_or_group, override.value()
    is_added = override.is_add() or override.is_force_add()
    try:
        if override.is_delete():
            delete_value(key, value, composed)
            return
        if override.is_add() and not isinstance(value, dict | list):
            refuse_known(key, composed)
        OmegaConf.update(composed, key, value, merge=True, force_add=is_added)
    except OmegaConfBaseException as error:
        problem = f"Error merging override {override.input_line}"
        if isinstance(error, ConfigAttributeError | ConfigKeyError) and not is_added:
            problem = f"Could not override '{key}'"
        raise ConfigCompositionException(problem) from error


def refuse_known(key: str, composed: DictConfig) -> None:
    """Raise ConfigCompositionException if a key that is to be added has a value."""
    if OmegaConf.select(composed, key, throw_on_missing=False) is not None:
        raise ConfigCompositionException(
            f"Could not append to config. An item is already at '{key}'."
        )


def delete_value(key: str, value: object, composed: DictConfig) -> None:
    """Delete a key. Raises ConfigCompositionException if it is missing or has another value."""
    known = OmegaConf.select(composed, key, throw_on_missing=False)
    if known is None:
        raise ConfigCompositionException(f"Could not delete from config. '{key}' does not exist.")
    if value is not None and value != known:
        raise ConfigCompositionException(
            f"Could not delete from config. The value of '{key}' is {known} and not {value}."
        )
    parent, _, last = key.rpartition(".")
    with open_dict(composed):
        node = OmegaConf.select(composed, parent) if parent else composed
        del node[last]
