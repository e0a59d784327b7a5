"""Compose the configurations of a sweep's jobs: each distinct section once, instead of each job by Hydra."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
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
#: Sections, and parts of them, whose values have no type that a reference would have to be converted to.
UNTYPED = (("mode",), ("env",), ("model", "module"), ("model", "inputs"))
REFERENCE = re.compile(r"\$\{([^${}]*)\}")
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Word:
    """A parsed override, and the section (top-level key) that it changes. `is_choice`: it chooses an option of a group
    or configures Hydra; `is_local`: it cannot affect other sections."""

    override: Override
    section: str
    is_choice: bool
    is_local: bool


@dataclass(frozen=True, eq=False)
class Section:
    """A section as plain, resolved values. `links`: paths of values that are those of other top-level keys, such as
    `${bs}`. `is_complex`: it refers to other sections in another way."""

    plain: Any
    links: dict[Path, str]
    is_complex: bool = False


class Composer:
    """Compose jobs section by section (model, mode, bs …). Jobs share sections: treat these as read-only.

    Hydra takes about 50 ms for a configuration. A section depends on its own words only, unless the file of an option
    has a `defaults` list or another package: then Hydra composes each distinct choice of groups.
    """

    def __init__(self, config_loader: ConfigLoader, master: DictConfig) -> None:
        self.loader = config_loader
        self.master = master
        self.options_of = cache(config_loader.get_group_options)
        self.parse_override = OverridesParser.create(config_loader=config_loader).parse_override
        self.parse = cache(self.parse)
        self.section = cache(self.section)
        self.with_choices = cache(self.with_choices)
        self.only = cache(self.only)
        self.batch_sizes = cache(lambda stream: streams.batch_sizes(stream.plain))
        chosen = master.hydra.runtime.choices.items()
        self.is_local = all(self.is_plain_option(*item) for item in chosen if not item[0].startswith("hydra/"))

    def compose(self, words: Sequence[str]) -> dict[str, Any]:
        """Return a job's configuration as plain, resolved values, without Hydra's own section.

        Raises errors of Hydra and OmegaConf if it cannot be composed, ConfigError for a list where one value is needed.
        """
        parsed = [self.parse(word) for word in words]
        is_local = self.is_local and all(word.is_local for word in parsed)
        together = () if is_local else tuple(str(word.override.input_line) for word in parsed if word.is_choice)
        of_section: dict[str, list[str]] = {str(name): [] for name in self.with_choices(together)}
        for text, word in zip(words, parsed, strict=True):
            if not (word.is_choice and word.section == "hydra"):
                of_section.setdefault(word.section, []).append(text)
        sections = {name: self.section(name, together, tuple(own)) for name, own in of_section.items()}
        if any(section is not None and section.is_complex for section in sections.values()):
            return self.compose_whole(words)
        plain = {name: section.plain for name, section in sections.items() if section is not None}
        stream = sections.get("stream")
        if sizes := self.batch_sizes(stream) if stream and stream.plain else None:
            is_set = bool(of_section.get("bs")) or plain.get("bs") != config.Config.bs
            plain["bs"] = streams.batch_size(sizes, plain.get("bs") if is_set else None)
        for name, section in sections.items():
            for path, key in section.links.items() if section is not None else ():
                plain[name] = replaced(plain[name], path, plain[key])
        return plain

    def compose_whole(self, words: Sequence[str]) -> dict[str, Any]:
        """Compose a job that has references between sections, which only OmegaConf can resolve."""
        parsed = [self.parse(word) for word in words]
        choices = tuple(str(word.override.input_line) for word in parsed if word.is_choice)
        composed = self.changed(self.with_choices(choices), parsed)
        node = OmegaConf.select(composed, "stream")
        settings = None if node is None else OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
        if sizes := streams.batch_sizes(settings) if settings else None:
            is_set = any(word.section == "bs" for word in parsed) or composed.bs != config.Config.bs
            composed.bs = streams.batch_size(sizes, composed.bs if is_set else None)
        return to_plain(composed)

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
        found = self.loader.repository.load_config(f"{group}/{option}") if isinstance(option, str) else None
        package = found and found.header.get("package")
        return found is not None and package in (None, "_group_", group) and not found.defaults_list

    def with_choices(self, choices: tuple[str, ...]) -> DictConfig:
        """Return Hydra's composition of these choices, without its own section; do not change it."""
        composed = self.loader.load_sweep_config(self.master, list(choices))
        OmegaConf.set_readonly(composed, False)
        # named after its file, because a user's file that extends a shipped protocol inherits its name
        composed.protocol.name = composed.hydra.runtime.choices.get("protocol") or composed.protocol.name
        with open_dict(composed):
            del composed["hydra"]
        return composed

    def only(self, name: str, choices: tuple[str, ...]) -> DictConfig:
        """Return the composition without all other sections: it is faster to copy, and as strict about types."""
        composed = copy.deepcopy(self.with_choices(choices))
        with open_dict(composed):
            for other in [other for other in composed if other != name]:
                del composed[other]
        return composed

    def changed(self, composed: DictConfig, words: Sequence[Word]) -> DictConfig:
        """Return a copy with the overrides that are no choices."""
        composed = copy.deepcopy(composed)
        # Hydra has no public function for this
        self.loader._apply_overrides_to_config([word.override for word in words if not word.is_choice], composed)
        return composed

    def section(self, name: str, together: tuple[str, ...], texts: tuple[str, ...]) -> Section | None:
        """Return the section that its words give, with the choices `together`; None if they remove it."""
        words = [self.parse(text) for text in texts]
        own = tuple(str(word.override.input_line) for word in words if word.is_choice)
        composed = self.with_choices(together or own)
        alone = self.changed(self.only(name, together or own), words)
        if name not in alone:
            return None
        found = list(references(OmegaConf.to_container(alone)[name]))
        if not found:
            return Section(to_plain(alone)[name], {})
        links = {path: text[2:-1] for path, text in found if is_link((name, *path), text, composed)}
        inner = [target for path, text in found if path not in links for target in targets(text)]
        linked = [".".join(map(str, (name, *path))) for path in links]
        is_inner = all(target.startswith((f"{name}.", f"{name}[")) for target in inner)
        if not is_inner or any(overlap(target, path) for target in inner for path in linked):
            return Section(None, {}, is_complex=True)
        return Section(to_plain(self.changed(composed, words)[name]), links)


def to_plain(composed: DictConfig) -> dict[str, Any]:
    plain = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True, enum_to_str=True)
    assert isinstance(plain, dict)
    return plain


def references(node: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Yield the path and text of every value that has a reference (`${…}`)."""
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from references(value, (*path, key))
    elif isinstance(node, str) and "${" in node:
        yield path, node


def targets(text: str) -> list[str]:
    """Return what a text refers to; an empty target for a reference that contains others."""
    found = REFERENCE.findall(text)
    return [*found, *([""] * (text.count("${") - len(found)))]


def overlap(key: str, other: str) -> bool:
    """Return whether one dotted key is the other, or inside it."""
    short, long = sorted((re.split(r"[.\[]", key), re.split(r"[.\[]", other)), key=len)
    return long[: len(short)] == short


def is_link(path: Path, text: str, composed: DictConfig) -> bool:
    """Return whether the value at `path` is that of another top-level key, unchanged."""
    key = text[2:-1]
    if not REFERENCE.fullmatch(text) or key not in composed or not any(path[: len(part)] == part for part in UNTYPED):
        return False
    return not (OmegaConf.is_interpolation(composed, key) or OmegaConf.is_config(composed[key]))


def replaced(node: Any, path: Path, value: Any) -> Any:
    """Return a copy of nested containers with the value at `path` replaced; all else is shared."""
    if not path:
        return value
    changed = node.copy()
    changed[path[0]] = replaced(node[path[0]], path[1:], value)
    return changed
