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
from effbench.sweeping import hydra_errors

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
        """One job's configuration as plain, resolved values, without Hydra's own part.

        Raises Hydra's and OmegaConf's errors for what cannot be composed, ConfigError for a value that does not fit.
        """
        parsed = [self.parse(text) for text in overrides]
        for override in parsed:
            if override.key_or_group in ONE_OPTION and isinstance(override.value(), list):
                raise hydra_errors.a_list(str(override.input_line))
        values: list[Override] = []
        rest: list[Override] = []
        for override in reversed(parsed):
            # what a later word that is no plain value changes again must not be set after it
            is_free = not any(overlap(override.key_or_group, later.key_or_group) for later in rest)
            (values if is_free and self.is_plain_value(override) else rest).insert(0, override)
        key = (tuple(override.input_line for override in rest), tuple(override.key_or_group for override in values))
        if key not in self.composed:
            self.composed[key] = self.loader.load_sweep_config(self.master, list(overrides))
            with_hydra = self.composed[key]
            OmegaConf.set_readonly(with_hydra, False)
            OmegaConf.set_struct(with_hydra, False)
            name_protocol(with_hydra)
            with_hydra.pop("hydra", None)
            OmegaConf.set_struct(with_hydra, True)
        config = self.composed[key]
        for override in values:
            set_value(config, override)
        with largest_size(config, given="bs" in {override.key_or_group for override in parsed}):
            plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        assert isinstance(plain, dict)
        return plain

    def parse(self, text: str) -> Override:
        if text not in self.parsed:
            self.parsed[text] = self.parser.parse_override(text)
        return self.parsed[text]

    def is_plain_value(self, override: Override) -> bool:
        """`key=value` with a scalar or a list, where key is no group: safe to set on a composed configuration."""
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
    """Name a protocol of the user's own after its file, unless the file says its name.

    The name of a protocol that effbench ships stays that protocol's own, also where the file builds on it.
    """
    option = config.hydra.runtime.choices.get("protocol")
    name = OmegaConf.select(config, "protocol.name")
    if option and name != option and (shipped("conf") / "protocol" / f"{name}.yaml").is_file():
        config.protocol.name = option


@contextmanager
def largest_size(config: DictConfig, given: bool) -> Iterator[None]:
    """`bs` is the largest size of a stream while what refers to it (`${bs}`) is resolved. The configuration is composed
    once for many jobs: it gets back its own. Raises ConfigError where another `bs` was given."""
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
    """Whether one of two dotted names is, or lies below, the other."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def set_value(config: DictConfig, override: Override) -> None:
    try:
        OmegaConf.update(config, override.key_or_group, override.value(), merge=True)
    except OmegaConfBaseException as error:
        raise hydra_errors.unfit_value(str(override.input_line), error) from error
