"""Probe an interpreter before a sweep is planned: what its machine has, and whether the cells can
be imported there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from threading import Event
from typing import Any

from effbench.core.cell import Cell, Environment, mode_settings
from effbench.core.errors import ConfigError, suggest
from effbench.core.message import Json, ProbeAnswer, ProbedGpu, ProbeRequest
from effbench.core.settings import LOSSES
from effbench.run.client import NEVER, ForkServer
from effbench.run.interpreters import HERE, Interpreter

PROBE_TIMEOUT_S = 300.0
OWN_MODELS = "effbench.models."
NETWORK = "effbench.models.libraries.network"
OWN_MODES = "effbench.modes."
#: Targets that cannot be imported, in an error.
MOST_ERRORS = 2


@dataclass(frozen=True)
class ProbedMachine:
    """What an interpreter finds on its machine. `modes`: text of a mode -> the mode without
    settings that only others have; `starts_cuda`: whether importing the cells' targets uses a
    GPU."""

    environment: Environment
    details: dict[str, Any]
    gpus: list[ProbedGpu]
    modes: dict[str, dict[str, Any]] = field(default_factory=dict)
    starts_cuda: bool = False

    def adapted(self, cell: Cell) -> Cell:
        """Return the cell with its adapted mode."""
        return replace(cell, mode=self.modes[str(cell.mode)])


def probe(
    server: ForkServer,
    cells: Sequence[Cell],
    baseline_mode: str,
    interpreter: Interpreter,
    stop: Event,
) -> ProbedMachine:
    """Import all targets of these cells in a child. Raises ConfigError if a target cannot be
    imported or a mode does not have a setting, and StoppedError once `stop` is set."""
    request = whole_request(cells)
    answer = ask(server, request, stop)
    if answer.errors:
        raise ConfigError("\n".join(list(dict.fromkeys(answer.errors))[:MOST_ERRORS]))
    return replace(
        machine_of(answer, interpreter),
        modes=adapt_modes(request.modes, answer.settings, baseline_mode),
        starts_cuda=answer.starts_cuda,
    )


def describe_machine(server: ForkServer, device: str = "auto") -> ProbedMachine:
    """Return this machine's environment, its details and its GPUs. Raises WorkerError."""
    return machine_of(ask(server, ProbeRequest(device=device)))


def ask(server: ForkServer, request: ProbeRequest, stop: Event = NEVER) -> ProbeAnswer:
    return ProbeAnswer.from_json(server.call("probe", request.to_json(), PROBE_TIMEOUT_S, stop))


def machine_of(answer: ProbeAnswer, interpreter: Interpreter = HERE) -> ProbedMachine:
    """Return the machine in the answer of a probe."""
    environment = interpreter.environment(answer.environment)
    return ProbedMachine(environment, answer.details, answer.gpus)


def whole_request(cells: Sequence[Cell]) -> ProbeRequest:
    """Return a request to import the modules, the losses and the modes of these cells."""
    losses = {cell.training["loss"] for cell in cells if cell.training}
    request = ProbeRequest(
        losses=sorted(losses.difference(LOSSES)),
        modes={str(cell.mode): cell.mode for cell in cells},
    )
    models = {str(cell.model): cell.model for cell in cells}
    for model in models.values():
        arguments = dict(model["module"])
        target = arguments.pop("_target_")
        request.modules.setdefault(target, []).extend(arguments)
        if target == NETWORK:
            request.networks.append(arguments)
        # models that describe their inputs have none here
        passed = {spec["name"]: bool(spec.get("keyword")) for spec in model.get("inputs", ())}
        if passed:
            request.inputs.setdefault(target, []).append(passed)
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
    elsewhere = set(chain(*filter(None, known.values())))
    for text, mode in modes.items():
        allowed = known[text]
        if allowed is None:
            continue
        unknown = [name for name in mode_settings(mode) if name not in allowed]
        if mode["name"] == baseline_mode and elsewhere.issuperset(unknown):
            adapted[text] = {key: value for key, value in mode.items() if key not in unknown}
        elif unknown:
            near = suggest(unknown[0], elsewhere.difference(unknown))
            names = ", ".join(allowed) or "none"
            raise ConfigError(
                f"mode {mode['name']} has no setting {unknown[0]!r}{near}; allowed: {names}"
            )
    return adapted


def to_preload(cells: Sequence[Cell], machine: ProbedMachine) -> Json:
    """Return what the task `preload` needs to import effbench's own model modules and the classes
    of networks in a server, and to cache what its own modes query about the machine.

    A user's modules are imported in each trial, because importing them must not affect the server.
    So are all modules if importing one of them uses a GPU (a library may ask for its capability):
    processes that are forked afterwards cannot use CUDA.
    """
    modules: set[str] = set()
    networks: dict[tuple[str, str], Json] = {}
    modes: set[tuple[str, str]] = set()
    for cell in cells:
        if cell.env:  # it runs in a server of its own
            continue
        module, mode = cell.model["module"], cell.mode["_target_"]
        if module["_target_"].startswith(OWN_MODELS):
            modules.add(module["_target_"].rpartition(".")[0])
        if module["_target_"] == NETWORK:
            arguments = {name: value for name, value in module.items() if name != "_target_"}
            networks[module["library"], module["arch"]] = arguments
        if mode.startswith(OWN_MODES):
            modes.add((mode, cell.device))
    if machine.starts_cuda:
        modules.clear()
        networks.clear()
    return {
        "modules": sorted(modules),
        "networks": list(networks.values()),
        "modes": sorted(modes),
    }
