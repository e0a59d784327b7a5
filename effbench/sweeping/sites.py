"""The interpreters of a sweep made ready: each with its fork server, asked what it can import and where it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from effbench.cell import Cell, Environment, mode_settings, targets_in
from effbench.config import LOSSES
from effbench.errors import ConfigError, WorkerError
from effbench.message import ProbeRequest
from effbench.sweeping.interpreters import HERE, Interpreter, check
from effbench.sweeping.workers import ForkServer

PROBE_TIMEOUT_S = 300.0
OWN_MODELS = "effbench.models."
OWN_MODES = "effbench.modes."


@dataclass(frozen=True)
class Site:
    """An interpreter that is ready. `gpus` and `details`: as the probe gives them."""

    interpreter: Interpreter
    server: ForkServer
    environment: Environment
    details: dict[str, Any]
    gpus: list[dict[str, Any]]

    def start(self) -> ForkServer:
        """Another server of this interpreter."""
        return ForkServer(**self.interpreter.given)


Sites = Mapping[Interpreter, Site]


@contextmanager
def opened(
    wanted: Mapping[Interpreter, Sequence[dict[str, Any]]], server: ForkServer | None, baseline_mode: str
) -> Iterator[dict[Interpreter, Site]]:
    """Start a fork server for each interpreter and probe it with what it shall run, parameters of cells (`model`,
    `mode`, `phase`, `training`, `device`); the servers are closed at the end.

    `server`: that of effbench's own interpreter in the working directory, its owner's to close; None: one is started
    where it is needed. Modes' settings are fitted in place (`fit_settings`). Raises ConfigError that names the
    interpreter: one that will not do, a target that it cannot import, a setting that a mode does not have.
    """
    for interpreter in wanted:
        check(interpreter)
    servers: dict[Interpreter, ForkServer] = {}
    try:
        for interpreter in wanted:  # all load at once
            borrowed = server if interpreter == HERE else None
            servers[interpreter] = borrowed or ForkServer(**interpreter.given)
        sites = {}
        for interpreter, parts in wanted.items():
            try:
                answer = probe(servers[interpreter], parts, baseline_mode)
            except (ConfigError, WorkerError) as error:
                if interpreter == HERE and len(wanted) == 1:
                    raise
                raise ConfigError(f"{interpreter}: {error}") from error
            environment = interpreter.environment(answer["environment"])
            sites[interpreter] = Site(interpreter, servers[interpreter], environment, answer["details"], answer["gpus"])
        check_devices(sites, wanted)
        yield sites
    finally:
        for one in servers.values():
            if one is not server:
                one.close()


def check_devices(sites: Sites, wanted: Mapping[Interpreter, Sequence[dict[str, Any]]]) -> None:
    """`device=auto` must mean one thing: else the cells of two interpreters would differ. Raises ConfigError."""
    asking = [site for one, site in sites.items() if any(part["device"] == "auto" for part in wanted[one])]
    blind = [site for site in asking if not site.gpus]
    if blind and len(blind) < len(asking):
        torch = blind[0].environment.torch_version
        raise ConfigError(
            f"{blind[0].interpreter} has torch {torch}, which sees no GPU, and another interpreter's does\n"
            "mend: install a build of torch for CUDA there, or say device=cpu"
        )


def probe(server: ForkServer, parts: Sequence[dict[str, Any]], baseline_mode: str) -> dict[str, Any]:
    """Import every target once, in a child; learn the environment; fit the modes' settings.

    Raises ConfigError for what cannot be imported and for a setting that a mode does not have.
    """
    targets = [list(targets_in(part["model"]["module"])) for part in parts]
    named = (part["training"]["loss"] for part in parts if part["phase"] == "training")
    losses = dict.fromkeys(loss for loss in named if loss not in LOSSES)
    modes = {str(part["mode"]): part["mode"] for part in parts}
    request = ProbeRequest(
        modules=list(dict.fromkeys(one for found in targets for one in found[:1])),
        others=list(dict.fromkeys(one for found in targets for one in found[1:]) | losses),
        modes=list(modes.values()),
        device="cpu" if all(part["device"] == "cpu" for part in parts) else "auto",
    )
    answer = server.call("probe", request.to_json(), PROBE_TIMEOUT_S)
    for loss in losses:
        answer["errors"] = [said.replace(f"_target_={loss}", f"training.loss={loss}") for said in answer["errors"]]
    known = dict(zip(modes, answer["settings"], strict=True))
    refuse(answer["errors"] or fit_settings(parts, known, baseline_mode))
    return answer


def refuse(errors: Sequence[str]) -> None:
    if errors:
        more = f" (and {len(errors) - 2} more like these)" if len(errors) > 2 else ""
        raise ConfigError("\n".join(errors[:2]) + more)


def fit_modes(server: ForkServer, parts: Sequence[dict[str, Any]], baseline_mode: str) -> None:
    """Of `probe` only what concerns the modes: for cells that are not to be run, and whose modules may be missing."""
    modes = {str(part["mode"]): part["mode"] for part in parts}
    answer = server.call("probe", ProbeRequest(modes=list(modes.values()), device="cpu").to_json(), PROBE_TIMEOUT_S)
    known = dict(zip(modes, answer["settings"], strict=True))
    refuse(answer["errors"] or fit_settings(parts, known, baseline_mode))


def fit_settings(parts: Sequence[dict[str, Any]], known: dict[str, list[str] | None], baseline_mode: str) -> list[str]:
    """Take from the baseline what only other modes have (`mode=eager,default mode.fullgraph=true`), so that it stands
    beside them. Returns what is wrong with the settings of all others."""
    errors = {}
    elsewhere = {name for names in known.values() for name in names or ()}
    for part in parts:
        mode, names = part["mode"], known[str(part["mode"])]
        unknown = [name for name in mode_settings(mode) if names is not None and name not in names]
        if mode["name"] == baseline_mode and elsewhere.issuperset(unknown):
            part["mode"] = {key: value for key, value in mode.items() if key not in unknown}
            continue
        for name in unknown:
            has = ", ".join(names or ()) or "none"
            errors[f"mode {mode['name']} has no setting {name!r}; it has: {has}"] = None
    return list(errors)


def preload(server: ForkServer, cells: Sequence[Cell]) -> None:
    """Have the server import effbench's own model modules (and so torchvision, transformers), and learn what its own
    modes ask the machine, once for all trials.

    A user's modules are imported in each trial: what they do on import must not touch the server.
    """
    here = [cell for cell in cells if not cell.env]
    targets = {cell.model["module"]["_target_"] for cell in here}
    modules = sorted({target.rpartition(".")[0] for target in targets if target.startswith(OWN_MODELS)})
    modes = sorted({(cell.mode["_target_"], cell.device) for cell in here})
    modes = [(target, device) for target, device in modes if target.startswith(OWN_MODES)]
    if modules or modes:
        server.call("preload", {"modules": modules, "modes": modes}, PROBE_TIMEOUT_S)
