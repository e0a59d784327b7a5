"""Compose the configurations of a sweep's jobs: each distinct section once, instead of each job by
Hydra."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict

from effbench import config, streams
from effbench.launcher import errors

#: Groups with one option at a time; Hydra would merge the options of a list.
ONE_OPTION = ("model", "stream", "mode", "protocol", "executor")
#: A reference to another value, not to an environment variable: its top-level key, and the rest.
REFERENCE = re.compile(r"\$\{(?!oc\.env:)([^.\[}]*)([^}]*)")


@dataclass(frozen=True)
class Word:
    """A parsed override, and the section (top-level key) that it changes. `is_choice`: it chooses
    an option of a group or configures Hydra; `is_local`: it cannot affect other sections."""

    override: Override
    section: str
    is_choice: bool
    is_local: bool


class Composer:
    """Compose jobs section by section (model, mode, bs …). Jobs share sections: treat these as
    read-only.

    Hydra takes about 100 ms for a configuration. A section depends on its own words and on those of
    the sections that it refers to, unless the file of an option has a `defaults` list or another
    package: then Hydra composes each distinct choice of groups.
    """

    def __init__(self, config_loader: ConfigLoader, master: DictConfig) -> None:
        self.loader = config_loader
        self.master = master
        self.options_of = cache(config_loader.get_group_options)
        self.parse_override = OverridesParser.create(config_loader=config_loader).parse_override
        self.parse = cache(self.parse)
        self.section = cache(self.section)
        self.references = cache(self.references)
        self.with_choices = cache(self.with_choices)
        self.only = cache(self.only)
        # choices that affect only their sections -> composition
        self.local: dict[tuple[str, ...], DictConfig] = {}
        chosen = master.hydra.runtime.choices.items()
        self.is_local = all(
            self.is_plain_option(*item) for item in chosen if not item[0].startswith("hydra/")
        )

    def compose(self, words: Sequence[str]) -> dict[str, Any]:
        """Return a job's configuration as plain, resolved values, without Hydra's own section.

        Raises errors of Hydra and OmegaConf if it cannot be composed, ConfigError for a list where
        one value is needed.
        """
        parsed = [self.parse(word) for word in words]
        is_local = self.is_local and all(word.is_local for word in parsed)
        choices = self.choices_in(words)
        together = () if is_local else choices
        if is_local and not self.local:
            self.local[choices] = self.with_choices(choices)  # it has every section of this job
        of_section: dict[str, tuple[str, ...]] = {
            str(name): () for name in self.having((), together, ())
        }
        for text, word in zip(words, parsed, strict=True):
            if not (word.is_choice and word.section == "hydra"):
                of_section[word.section] = (*of_section.get(word.section, ()), text)
        plain: dict[str, Any] = {}
        for name in of_section:
            related = self.related(name, together, of_section)
            texts = tuple(text for other in related for text in of_section[other])
            plain |= self.section(name, related, together, texts)
        return plain

    def related(
        self, name: str, together: tuple[str, ...], of_section: dict[str, tuple[str, ...]]
    ) -> tuple[str, ...]:
        """Return the sections that a section's values depend on, itself included. `of_section`: the
        words of each."""
        names = [name]
        for one in names:  # this list grows meanwhile
            keys = self.references(one, together, of_section[one])
            # a reference of another kind, such as `${oc.select:bs}`
            if not keys <= of_section.keys():
                return tuple(of_section)
            names += sorted(keys.difference(names))
        return tuple(sorted(names))

    def parse(self, text: str) -> Word:
        override = self.parse_override(text)
        key = override.key_or_group
        is_option = not isinstance(override.value(), dict) and bool(self.options_of(key))
        is_choice = is_option or override.package is not None or key.partition(".")[0] == "hydra"
        if is_choice and key in ONE_OPTION and isinstance(override.value(), list):
            raise errors.wrong_type(str(override.input_line), "of type 'list'")
        is_plain = not (override.is_delete() or override.is_add() or override.package)
        is_local = not is_choice or (is_plain and self.is_plain_option(key, override.value()))
        return Word(override, re.split(r"[./@]", key)[0], is_choice, is_local)

    def is_plain_option(self, group: str, option: Any) -> bool:
        """Return whether the file of this option sets only its group's section, by itself."""
        found = (
            self.loader.repository.load_config(f"{group}/{option}")
            if isinstance(option, str)
            else None
        )
        package = found and found.header.get("package")
        return found is not None and package in (None, "_group_", group) and not found.defaults_list

    def with_choices(self, choices: tuple[str, ...]) -> DictConfig:
        """Return Hydra's composition of these choices, without its own section; do not change
        it."""
        composed = self.loader.load_sweep_config(self.master, list(choices))
        OmegaConf.set_readonly(composed, False)
        # named after its file, because a user's file that extends a shipped protocol inherits its
        # name
        composed.protocol.name = (
            composed.hydra.runtime.choices.get("protocol") or composed.protocol.name
        )
        with open_dict(composed):
            del composed["hydra"]
        return composed

    def having(
        self, names: tuple[str, ...], together: tuple[str, ...], choices: tuple[str, ...]
    ) -> DictConfig:
        """Return a composition of all choices `together`, or one in which these sections have these
        choices and others may have any; do not change it."""
        if together:
            return self.with_choices(together)
        for known, composed in self.local.items():
            if tuple(text for text in known if self.parse(text).section in names) == choices:
                return composed
        return self.local.setdefault(choices, self.with_choices(choices))

    def only(
        self, names: tuple[str, ...], together: tuple[str, ...], choices: tuple[str, ...]
    ) -> DictConfig:
        """Return such a composition without all other sections: it is faster to copy, and as strict
        about types."""
        composed = copy.deepcopy(self.having(names, together, choices))
        with open_dict(composed):
            for other in [other for other in composed if other not in names]:
                del composed[other]
        return composed

    def choices_in(self, texts: Sequence[str]) -> tuple[str, ...]:
        return tuple(
            str(word.override.input_line) for word in map(self.parse, texts) if word.is_choice
        )

    def references(
        self, name: str, together: tuple[str, ...], texts: tuple[str, ...]
    ) -> frozenset[str]:
        """Return the top-level keys that a section's values may refer to, such as `bs` for `${bs}`,
        and other texts for references in which another one decides the key."""
        composed = self.having((name,), together, self.choices_in(texts))
        section = OmegaConf.to_container(OmegaConf.masked_copy(composed, name))
        found = REFERENCE.findall(" ".join([str(section), *texts]))
        keys = {key if "$" not in rest else rest for key, rest in found}
        # a stream of batch sizes sets bs
        return frozenset(keys | {"stream"} if name == "bs" else keys)

    def section(
        self, name: str, related: tuple[str, ...], together: tuple[str, ...], texts: tuple[str, ...]
    ) -> dict[str, Any]:
        """Return the section by its name, as plain, resolved values; an empty mapping if its words
        remove it. `texts`: the words of all `related` sections."""
        choices = self.choices_in(texts)
        if changes := [word.override for word in map(self.parse, texts) if not word.is_choice]:
            composed = copy.deepcopy(self.only(related, together, choices))
            # Hydra has no public function for this
            self.loader._apply_overrides_to_config(changes, composed)
        else:
            composed = OmegaConf.masked_copy(self.having(related, together, choices), related)
        if "bs" in composed and "stream" in composed:
            settings = OmegaConf.to_container(composed.stream, resolve=True, throw_on_missing=True)
            if sizes := streams.batch_sizes(settings):
                is_set = (
                    any(self.parse(text).section == "bs" for text in texts)
                    or composed.bs != config.Config.bs
                )
                composed.bs = streams.batch_size(sizes, composed.bs if is_set else None)
        plain = OmegaConf.to_container(
            composed, resolve=True, throw_on_missing=True, enum_to_str=True
        )
        return {key: value for key, value in plain.items() if key == name}
