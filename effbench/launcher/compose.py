"""From lists of overrides to plain configurations, without composing each of thousands of cells anew.

Hydra composes a configuration in about 50 ms. A sweep's jobs mostly differ in plain values, so one composition is made
for each distinct choice of groups and the plain values are set on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from effbench import streams
from effbench.config import Config, shipped
from effbench.launcher import errors

#: A list would lay one option over the other.
ONE_OPTION = ("model", "stream", "mode", "protocol", "executor")


class Composer:
    """Composes jobs of one sweep. Not thread-safe: the composed configurations are reused in place."""

    def __init__(self, config_loader: ConfigLoader, master: DictConfig) -> None:
        self.loader = config_loader
        self.master = master
        self.parser = OverridesParser.create(config_loader=config_loader)
        self.composed: dict[tuple, DictConfig] = {}
        self.groups: dict[str, bool] = {}
        self.parsed: dict[str, Override] = {}

    def compose(self, overrides: Sequence[str]) -> dict[str, Any]:
        """Return one job's configuration as plain, resolved values, without Hydra's own part.

        Raises Hydra's and OmegaConf's errors if it cannot be composed, ConfigError for a value of the wrong type.
        """
        parsed = [self.parse(text) for text in overrides]
        for override in parsed:
            if override.key_or_group in ONE_OPTION and isinstance(override.value(), list):
                raise errors.list_for_one_value(str(override.input_line))
        values: list[Override] = []
        rest: list[Override] = []
        for override in reversed(parsed):
            # a plain value that a later word of another kind changes again must not be set after it
            is_free = not any(overlap(override.key_or_group, later.key_or_group) for later in rest)
            (values if is_free and self.is_plain_value(override) else rest).insert(0, override)
        key = (tuple(override.input_line for override in rest), tuple(override.key_or_group for override in values))
        if key not in self.composed:
            self.composed[key] = self.compose_with_hydra(overrides)
        config = self.composed[key]
        for override in values:
            try:
                OmegaConf.update(config, override.key_or_group, override.value(), merge=True)
            except OmegaConfBaseException as error:
                raise errors.wrong_type(str(override.input_line), error) from error
        with largest_size(config, given="bs" in {override.key_or_group for override in parsed}):
            plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True, enum_to_str=True)
        assert isinstance(plain, dict)
        return plain

    def compose_with_hydra(self, overrides: Sequence[str]) -> DictConfig:
        config = self.loader.load_sweep_config(self.master, list(overrides))
        OmegaConf.set_readonly(config, False)
        OmegaConf.set_struct(config, False)
        name_protocol(config)
        config.pop("hydra", None)
        OmegaConf.set_struct(config, True)
        return config

    def parse(self, text: str) -> Override:
        if text not in self.parsed:
            self.parsed[text] = self.parser.parse_override(text)
        return self.parsed[text]

    def is_plain_value(self, override: Override) -> bool:
        """Return whether this is `key=value` with a scalar or a list, where key is no group: safe to set on a composed
        configuration."""
        name = override.key_or_group
        if name not in self.groups:
            self.groups[name] = bool(self.loader.get_group_options(name))
        return (
            override.type is OverrideType.CHANGE
            and override.package is None
            and not self.groups[name]
            and not isinstance(override.value(), dict)
        )


def name_protocol(config: DictConfig) -> None:
    """Name a user's protocol after its file, unless the file gives it a name of its own.

    A protocol that effbench ships keeps its name to itself: a user's file that builds on it does not inherit it.
    """
    option = config.hydra.runtime.choices.get("protocol")
    name = OmegaConf.select(config, "protocol.name")
    if option and name != option and (shipped("conf") / "protocol" / f"{name}.yaml").is_file():
        config.protocol.name = option


@contextmanager
def largest_size(config: DictConfig, given: bool) -> Iterator[None]:
    """Set `bs` to the largest size of a stream while `${bs}` is resolved, and restore it: many jobs share the
    configuration. Raises ConfigError if another `bs` was given."""
    node = OmegaConf.select(config, "stream")
    settings = None if node is None else OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
    sizes = streams.sizes_of(settings) if settings else None
    if sizes is None:
        yield
        return
    before = config.bs
    config.bs = streams.batch_size(sizes, before if given or before != Config.bs else None)
    try:
        yield
    finally:
        config.bs = before


def overlap(key: str, other: str) -> bool:
    """Return whether one of two dotted names is, or lies below, the other."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")
