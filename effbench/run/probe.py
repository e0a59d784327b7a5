"""Probe an interpreter before a sweep is planned: what its machine has, and whether the cells can
be imported there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from effbench.core.cell import Cell, Environment, mode_settings, targets_in
from effbench.core.errors import ConfigError, suggest
from effbench.core.message import ProbedGpu, ProbeRequest
from effbench.core.settings import LOSSES
from effbench.models.catalog import LIBRARIES
from effbench.run.client import ForkServer
from effbench.run.interpreters import HERE, Interpreter

PROBE_TIMEOUT_S = 300.0
OWN_MODELS = "effbench.models."
NETWORK = "effbench.models.libraries.network"
OWN_MODES = "effbench.modes."


@dataclass(frozen=True)
class ProbedMachine:
    """What an interpreter finds on its machine. `modes`: text of a mode -> the mode without
    settings that only others have."""

    environment: Environment
    details: dict[str, Any]
    gpus: list[ProbedGpu]
    modes: dict[str, dict[str, Any]] = field(default_factory=dict)

    def adapted(self, cell: Cell) -> Cell:
        """Return the cell with its adapted mode."""
        return replace(cell, mode=self.modes[str(cell.mode)])


def probe(
    server: ForkServer,
    cells: Sequence[Cell],
    baseline_mode: str,
    interpreter: Interpreter = HERE,
) -> ProbedMachine:
    """Import all targets of these cells in a child. Raises ConfigError if a target cannot be
    imported or a mode does not have a setting."""
    modes = {str(cell.mode): cell.mode for cell in cells}
    request = whole_request(cells)
    request.modes = list(modes.values())
    answer = server.call("probe", request.to_json(), PROBE_TIMEOUT_S)
    refuse(list(dict.fromkeys(answer["errors"])))
    known = dict(zip(modes, answer["settings"], strict=True))
    adapted = adapt_modes(modes, known, baseline_mode)
    return ProbedMachine(
        interpreter.environment(answer["environment"]),
        answer["details"],
        gpus_in(answer),
        adapted,
    )


def describe_machine(server: ForkServer, device: str = "auto") -> ProbedMachine:
    """Return this machine's environment, its details and its GPUs. Raises WorkerError."""
    answer = server.call("probe", ProbeRequest(device=device).to_json(), PROBE_TIMEOUT_S)
    environment = HERE.environment(answer["environment"])
    return ProbedMachine(environment, answer["details"], gpus_in(answer))


def gpus_in(answer: Mapping[str, Any]) -> list[ProbedGpu]:
    """Return the GPUs in the answer of a probe."""
    return [ProbedGpu(**gpu) for gpu in answer["gpus"]]


def refuse(errors: Sequence[str]) -> None:
    """Raise ConfigError with the first of these errors, if there are any."""
    if not errors:
        return
    text = "\n".join(errors[:2])
    if len(errors) > 2:
        text += f" (and {len(errors) - 2} more errors)"
    raise ConfigError(text)


def imported_losses(cells: Sequence[Cell]) -> list[str]:
    """Return the losses of these cells that are imported. Raises ConfigError for an unknown
    name."""
    losses = dict.fromkeys(cell.training["loss"] for cell in cells if cell.training)
    imported = [loss for loss in losses if loss not in LOSSES]
    for loss in imported:
        if "." not in loss:  # neither an import path nor a file
            allowed = f"{', '.join(LOSSES)}, or an import path such as my_pkg.loss"
            raise ConfigError(
                f"unknown training.loss {loss!r}{suggest(loss, LOSSES)}; allowed: {allowed}"
            )
    return imported


def whole_request(cells: Sequence[Cell]) -> ProbeRequest:
    """Return a request to import the modules, the losses and all other targets of these cells.
    Raises ConfigError for an unknown name of a loss."""
    request = ProbeRequest(losses=imported_losses(cells))
    networks: dict[str, dict[str, Any]] = {}
    others: dict[str, None] = {}
    for cell in cells:
        module = cell.model["module"]
        first, *inner = targets_in(module)
        others |= dict.fromkeys(inner)
        names = request.modules.setdefault(first, [])
        names += [name for name in module if name not in ("_target_", *names)]
        if first == NETWORK:
            arguments = {name: value for name, value in module.items() if name != "_target_"}
            networks[str(module)] = arguments
        # models that describe their inputs have none here
        passed = {spec["name"]: bool(spec.get("keyword")) for spec in cell.model.get("inputs", ())}
        described = {"target": module["_target_"], "passed": passed}
        if passed and described not in request.inputs:
            request.inputs.append(described)
    request.networks = list(networks.values())
    request.others = list(others)
    return request


def adapt_modes(
    modes: Mapping[str, dict[str, Any]],
    known: Mapping[str, list[str] | None],
    baseline_mode: str,
) -> dict[str, dict[str, Any]]:
    """Return these modes without settings of the baseline that only other modes have, as in
    `mode=eager,default mode.fullgraph=true`. `known`: the settings of each mode. Raises ConfigError
    for all other unknown settings."""
    adapted = dict(modes)
    errors: list[str] = []
    elsewhere = set(chain(*filter(None, known.values())))
    for text, mode in modes.items():
        allowed = known[text]
        if allowed is None:
            continue
        unknown = [name for name in mode_settings(mode) if name not in allowed]
        if mode["name"] == baseline_mode and elsewhere.issuperset(unknown):
            adapted[text] = {key: value for key, value in mode.items() if key not in unknown}
        else:
            errors += [unknown_setting(mode["name"], name, allowed) for name in unknown]
    refuse(list(dict.fromkeys(errors)))
    return adapted


def unknown_setting(mode: str, name: str, allowed: Sequence[str]) -> str:
    near = suggest(name, allowed)
    return f"mode {mode} has no setting {name!r}{near}; allowed: {', '.join(allowed) or 'none'}"


def preload(server: ForkServer, cells: Sequence[Cell]) -> None:
    """Import effbench's own model modules in the server, and cache what its own modes query about
    the machine.

    A user's modules are imported in each trial, because importing them must not affect the server.
    Raises StoppedError.
    """
    modules: set[str] = set()
    modes: set[tuple[str, str]] = set()
    for cell in cells:
        if cell.env:  # it runs in a server of its own
            continue
        module = cell.model["module"]
        if module["_target_"].startswith(OWN_MODELS):
            modules.add(module["_target_"].rpartition(".")[0])
        if module["_target_"] == NETWORK and module.get("library") in LIBRARIES:
            modules.add(f"{OWN_MODELS}libraries.{module['library']}")
        if cell.mode["_target_"].startswith(OWN_MODES):
            modes.add((cell.mode["_target_"], cell.device))
    payload = {"modules": sorted(modules), "modes": sorted(modes)}
    server.call("preload", payload, PROBE_TIMEOUT_S)
