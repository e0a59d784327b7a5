"""Probe an interpreter before a sweep is planned: what its machine has, and whether the cells can
be imported there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from effbench.core.cell import Cell, mode_settings, targets_in
from effbench.core.errors import ConfigError, suggest
from effbench.core.message import ProbeRequest
from effbench.core.settings import LOSSES
from effbench.models.catalog import LIBRARIES
from effbench.run.client import ForkServer

PROBE_TIMEOUT_S = 300.0
OWN_MODELS = "effbench.models."
NETWORK = "effbench.models.libraries.network"
OWN_MODES = "effbench.modes."
#: Parameters of a cell, as the configuration has them.
Params = dict[str, Any]


def probe(server: ForkServer, parts: Sequence[Params], baseline_mode: str) -> dict[str, Any]:
    """Import all targets in a child, adapt the modes' settings, and return the environment, its
    details and GPUs. Raises ConfigError if a target cannot be imported or a mode does not have a
    setting.
    """
    modes = {str(part["mode"]): part["mode"] for part in parts}
    losses = imported_losses(parts)
    request = whole_request(parts, losses)
    request.modes = list(modes.values())
    answer: dict[str, Any] = server.call("probe", request.to_json(), PROBE_TIMEOUT_S)
    for loss in losses:
        answer["errors"] = [
            text.replace(f"_target_={loss}", f"training.loss={loss}") for text in answer["errors"]
        ]
    known = dict(zip(modes, answer["settings"], strict=True))
    errors = list(dict.fromkeys(answer["errors"])) or adapt_modes(parts, known, baseline_mode)
    if errors:
        text = "\n".join(errors[:2])
        if len(errors) > 2:
            text += f" (and {len(errors) - 2} more errors)"
        raise ConfigError(text)
    return answer


def imported_losses(parts: Sequence[Params]) -> list[str]:
    """Return the losses of these cells that are imported. Raises ConfigError for an unknown
    name."""
    losses = dict.fromkeys(
        part["training"]["loss"] for part in parts if part["phase"] == "training"
    )
    imported = [loss for loss in losses if loss not in LOSSES]
    for loss in imported:
        if "." not in loss:  # neither an import path nor a file
            allowed = f"{', '.join(LOSSES)}, or an import path such as my_pkg.loss"
            raise ConfigError(
                f"unknown training.loss {loss!r}{suggest(loss, LOSSES)}; allowed: {allowed}"
            )
    return imported


def whole_request(parts: Sequence[Params], losses: Sequence[str]) -> ProbeRequest:
    """Return a request to import the modules, the losses and all other targets of these cells."""
    request = ProbeRequest(inputs=passed_inputs(parts))
    networks: dict[str, Params] = {}
    others: dict[str, None] = {}
    for part in parts:
        module = part["model"]["module"]
        first, *inner = targets_in(module)
        others |= dict.fromkeys(inner)
        names = request.modules.setdefault(first, [])
        names += [name for name in module if name not in ("_target_", *names)]
        if first == NETWORK:
            arguments = {name: value for name, value in module.items() if name != "_target_"}
            networks[str(module)] = arguments
    request.networks = list(networks.values())
    request.others = list(dict.fromkeys([*others, *losses]))
    return request


def passed_inputs(parts: Sequence[Params]) -> list[Params]:
    """Return the distinct inputs of models, as ProbeRequest has them. Models that describe theirs
    have none here."""
    distinct: list[Params] = []
    for part in parts:
        model = part["model"]
        inputs = model.get("inputs") or {}
        if isinstance(inputs, list):  # of a stored cell
            inputs = {spec["name"]: spec for spec in inputs}
        passed = {str(name): bool(spec.get("keyword")) for name, spec in inputs.items()}
        described = {"target": str(model["module"]["_target_"]), "passed": passed}
        if passed and described not in distinct:
            distinct.append(described)
    return distinct


def adapt_modes(
    parts: Sequence[Params], known: Mapping[str, list[str] | None], baseline_mode: str
) -> list[str]:
    """Remove settings from the baseline that only other modes have, as in `mode=eager,default
    mode.fullgraph=true`. `known`: the settings of each mode. Return errors for all other unknown
    settings."""
    errors = []
    elsewhere = set(chain(*filter(None, known.values())))
    for part in parts:
        mode = part["mode"]
        allowed = known[str(mode)]
        if allowed is None:
            continue
        unknown = [name for name in mode_settings(mode) if name not in allowed]
        if mode["name"] == baseline_mode and elsewhere.issuperset(unknown):
            part["mode"] = {key: value for key, value in mode.items() if key not in unknown}
        else:
            errors += [unknown_setting(mode["name"], name, allowed) for name in unknown]
    return list(dict.fromkeys(errors))


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
            modules.add(OWN_MODELS + LIBRARIES[module["library"]])
        if cell.mode["_target_"].startswith(OWN_MODES):
            modes.add((cell.mode["_target_"], cell.device))
    payload = {"modules": sorted(modules), "modes": sorted(modes)}
    server.call("preload", payload, PROBE_TIMEOUT_S)
