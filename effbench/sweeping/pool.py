"""Fork servers of a sweep, per interpreter: probed, preloaded, replaced when they die, and renewed
each round.

All children of a server share its memory layout, and thus a bias that averaging over children does
not remove. A new server per round turns this bias into variation between rounds, which the
intervals include.
"""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from effbench.cell import Cell, Environment, mode_settings, targets_in
from effbench.config import LOSSES
from effbench.errors import ConfigError, WorkerError, suggest
from effbench.folders import plain_path
from effbench.message import CheckRequest, ProbeRequest
from effbench.models.catalog import LIBRARIES
from effbench.sweeping.client import ForkServer, StoppedError
from effbench.sweeping.devices import LOCK_TIMEOUT_S, Gpu, Slot, gpu_slot
from effbench.sweeping.interpreters import HERE, Interpreter
from effbench.sweeping.record import TrialStore

PROBE_TIMEOUT_S = 300.0
CEILINGS_TIMEOUT_S = 120.0
OWN_MODELS = "effbench.models."
NETWORK = "effbench.models.libraries.network"
OWN_MODES = "effbench.modes."
#: Parameters of a cell, as the configuration has them.
Params = dict[str, Any]


class ServerPool:
    """The fork servers of one interpreter. Thread-safe.

    `server`: the first server, which the caller closes; None: start one. `probe` sets
    `environment`, `details`, `gpus` and `notes`, to print. `cells`: their models are preloaded
    before the first trial. `last_round`: up to this one each round has a new server. `stop`: once it
    is set, `server` raises StoppedError instead of waiting for a server.
    """

    environment: Environment
    details: dict[str, Any]
    gpus: list[Gpu]
    notes: list[str]
    cells: Sequence[Cell] = ()
    last_round = 0

    def __init__(
        self,
        interpreter: Interpreter = HERE,
        server: ForkServer | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self.interpreter = interpreter
        self.stop = stop or threading.Event()
        self.borrowed = server
        self.current = server or self.start()
        self.is_loaded = False
        self.round = 0
        self.next: ForkServer | None = None
        self.next_is_ready = threading.Event()
        self.users: Counter[ForkServer] = Counter()
        self.is_closed = False
        self.lock = threading.Lock()
        #: Held while a server loads, which takes seconds; `close` does not need it.
        self.loading = threading.Lock()

    def start(self, preload: bool = True, env: Mapping[str, str] | None = None) -> ForkServer:
        return ForkServer(**self.interpreter.given, preload=preload, env=env)

    def probe(self, parts: Sequence[Params], baseline_mode: str) -> None:
        """Determine the environment, and check these parameters of cells (see the function
        `probe`)."""
        answer = probe(self.current, parts, baseline_mode)
        self.environment = self.interpreter.environment(answer["environment"])
        self.details, self.gpus, self.notes = answer["details"], answer["gpus"], answer["notes"]

    @contextmanager
    def server(
        self,
        round: int,
        alone: bool = False,
        preload: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> Iterator[ForkServer]:
        """Yield a live server for a trial of this round. `alone`: a separate server, with `env`,
        which is closed afterwards.

        Raises WorkerError if a new server does not start, and StoppedError.
        """
        server = self.load(self.start(preload, env), preload) if alone else self.take(round)
        try:
            yield server
        finally:
            if alone:
                server.close()
            else:
                self.give_back(server)

    def take(self, round: int) -> ForkServer:
        """Return the shared server of this round and count its user. The next server loads while
        this round runs.

        Several threads that need a server at the same time wait for the one that loads it.
        """
        with self.loading:
            if not self.is_loaded and not self.current.dead:
                self.current.stop = self.stop
                preload(self.current, self.cells)
            self.is_loaded = True
            with self.lock:
                self.advance(round)
            if self.current.dead:
                self.replace_dead()
            with self.lock:
                self.start_next(round)
                self.users[self.current] += 1
                return self.current

    def advance(self, round: int) -> None:
        """Make the next server the current one if it has loaded and a new round begins, or the
        current one is dead.

        Short rounds do not wait for the next server: the first round that starts after it has
        loaded uses it.
        """
        used, following = self.current, self.next
        if following is None or following.dead or not self.next_is_ready.is_set():
            return
        if used.dead or round > self.round:
            self.current, self.next = following, None
            self.retire(used)

    def replace_dead(self) -> None:
        """Replace the current server, which is dead, by a new one that has loaded."""
        with self.lock:
            self.raise_if_closed()
            used, self.current = self.current, self.start()
            self.retire(used)
        self.load(self.current)

    def start_next(self, round: int) -> None:
        """Start the server of the next round, unless it was started or this is the last round with
        a new server."""
        self.raise_if_closed()
        if self.next is not None and self.next.dead and round > self.round:
            self.next = None  # it did not load: a round later another one may
        self.round = max(round, self.round)
        if self.next is None and self.round < self.last_round:
            self.next, self.next_is_ready = self.start(), threading.Event()
            threading.Thread(
                target=self.load_next, args=(self.next, self.next_is_ready), daemon=True
            ).start()

    def raise_if_closed(self) -> None:
        if self.is_closed:
            raise StoppedError

    def give_back(self, server: ForkServer) -> None:
        with self.lock:
            self.users[server] -= 1
            if server is not self.current:
                self.retire(server)

    def load(self, server: ForkServer, with_models: bool = True) -> ForkServer:
        """Return the server once it is ready; if it does not get ready, close it and raise
        WorkerError, or StoppedError once `stop` is set."""
        try:
            server.stop = self.stop
            server.wait_ready()
            if with_models:
                preload(server, self.cells)
        except BaseException:
            server.close()
            raise
        return server

    def load_next(self, server: ForkServer, is_ready: threading.Event) -> None:
        with suppress(WorkerError, StoppedError):  # the sweep keeps its current server
            self.load(server)
            is_ready.set()

    def retire(self, server: ForkServer) -> None:
        """Close a server, unless it is borrowed, or in use, because its trials would end with
        it."""
        if server is not self.borrowed and not self.users[server]:
            server.close()

    def close(self) -> None:
        """Close all servers except the borrowed one, also one that loads."""
        with self.lock:
            self.is_closed = True
            for server in (self.current, self.next):
                if server is not None and server is not self.borrowed:
                    server.close()
            self.next = None
            if self.borrowed is not None:
                self.borrowed.stop = None


Pools = Mapping[Interpreter, ServerPool]


def gpus_of(pools: Pools) -> list[Gpu]:
    """Return the GPUs of the machine: those of the interpreter that sees most."""
    return max((pool.gpus for pool in pools.values()), key=len)


def probe(
    server: ForkServer,
    parts: Sequence[Params],
    baseline_mode: str,
    modes_only: bool = False,
) -> dict[str, Any]:
    """Import all targets in a child, adapt the modes' settings, and return the environment, its
    details and GPUs.

    `modes_only`: for cells that will not run, whose modules may be missing. Raises ConfigError if a
    target cannot be imported or a mode does not have a setting.
    """
    modes = {str(part["mode"]): part["mode"] for part in parts}
    losses = []
    request = ProbeRequest(device="cpu")
    if not modes_only:
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


def measure_ceilings(
    server: ForkServer,
    store: TrialStore,
    environment_id: str,
    slot: Slot,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
    stop: threading.Event | None = None,
) -> str | None:
    """Measure and store the ceilings of a slot's GPU. Return a reason if that failed; None if they
    are stored, or once `stop` is set."""
    stop = stop or threading.Event()
    try:
        with slot.locked(stop, lock_timeout_s) as is_held:
            if not is_held:
                return None
            answer = server.call("ceilings", {}, CEILINGS_TIMEOUT_S, slot.env, stop)
    except StoppedError:
        return None
    except WorkerError as error:
        return str(error)
    ceilings = answer.get("ceilings")
    if ceilings:
        store.add_calibration(environment_id, slot.uuid, ceilings=ceilings)
    reason: str | None = answer.get("reason")
    return reason


def run_checks(
    requests: Sequence[CheckRequest],
    server: ForkServer,
    gpus: Sequence[Gpu],
    timeout_s: float = 300.0,
) -> list[dict[str, Any]]:
    """Run behaviour checks, each in its own process under its device's lock, so that a crash
    affects no other check.

    Return, in order, each one's `status`, `reason` and `facts` (only if it is `ok`). An error has a
    `traceback`; a process that died or was killed has a `log`, the end of its output.

    `device=auto` selects the first of `gpus` (as listed by `probe`), or the CPU without a GPU. The
    caller closes `server`. Raises WorkerError if a server does not start or a device stays locked
    for LOCK_TIMEOUT_S.
    """
    server.wait_ready()
    with closing(ServerPool(HERE, server)) as pool:  # it replaces a server that a check has killed
        return [run_check(request, pool, gpus, timeout_s) for request in requests]


def run_check(
    request: CheckRequest, pool: ServerPool, gpus: Sequence[Gpu], timeout_s: float
) -> dict[str, Any]:
    """Run one behaviour check; see `run_checks`."""
    slot = Slot("CPU", "cpu")
    if gpus and request.device != "cpu":
        slot = gpu_slot(gpus[0])
    if request.device == "auto":  # without a GPU, a check that needs one reports this itself
        request = replace(request, device=slot.device)
    parent = plain_path(Path(tempfile.gettempdir()), "TMPDIR")
    caches = tempfile.TemporaryDirectory(
        prefix="effbench-check-", dir=parent, ignore_cleanup_errors=True
    )
    with (
        slot.locked(threading.Event()),
        pool.server(0) as server,
        caches as folder,
    ):
        payload = replace(request, cache_dir=folder).to_json()
        done = server.run("check", payload, timeout_s, slot.env)
    if done.result is not None:
        outcome: dict[str, Any] = done.result
        return outcome
    status, reason = done.failure()
    log = done.outcome.get("log")
    return {"status": str(status), "reason": reason, "facts": None, "log": log}
