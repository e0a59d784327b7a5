"""`effbench doctor --calibrate`: measures what this machine can do and how its figures spread, and stores both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from effbench.cell import Environment
from effbench.doctor import noise as noises
from effbench.doctor.finding import Finding, problem, warning
from effbench.doctor.noise import CellNoise
from effbench.errors import WorkerError
from effbench.store.store import Store
from effbench.sweep import pool
from effbench.sweep.client import ForkServer


def measure_ceilings(server: ForkServer, db: str, answer: dict[str, Any]) -> Iterator[Finding]:
    """Measure and store the ceilings of each GPU of the probe's `answer`; a problem for each that could not be.

    Stores the environment as well, also without a GPU. Raises StoreError.
    """
    with Store.open(db, mode="write") as store:
        environment_id = store.add_environment(Environment(**answer["environment"]), answer["details"])
        for gpu in reversed(answer["gpus"]):  # the newest is what a reader gets: the first GPU's
            try:
                why = pool.measure_ceilings(server, store, environment_id, [gpu], again=True)
            except WorkerError as error:
                why = str(error)
            if why:
                yield problem(
                    f"GPU {gpu['index']}: its ceilings could not be measured: {why}",
                    "how near a cell comes to what the GPU can do is unknown",
                )


def measure_noise(db: str, answer: dict[str, Any], quick: bool, quiet: bool) -> tuple[dict[str, Any], list[Finding]]:
    """Run the sweeps of A against A and store what they say; with what went wrong on the way.

    Nothing is stored where no cell could be measured. Raises noise.Interrupted and EffbenchError.
    """
    gpus = answer["gpus"]
    found, cells = noises.measure(db, bool(gpus), quick, quiet)
    if any(found[kind] for kind in noises.KINDS):
        # with several GPUs a sweep runs on all of them: its spread is no single one's
        uuid = gpus[0]["uuid"] if len(gpus) == 1 else None
        with Store.open(db, mode="write") as store:
            store.add_calibration(Environment(**answer["environment"]).id, uuid, noise=found)
    return found, list(failed(cells))


def failed(cells: Sequence[CellNoise]) -> Iterator[Finding]:
    """Cells with trials that are not `ok`: such a trial gives no figure."""
    for cell in cells:
        others = {status: number for status, number in cell.statuses.items() if status != "ok"}
        if not others and cell.is_known:
            continue
        listed = ", ".join(f"{number} {status}" for status, number in others.items()) or "too few trials"
        what = f"calibration cell {cell.cell}: {listed}" + (f" ({cell.reason})" if cell.reason else "")
        mend = f"effbench ls --failures --sweep {cell.sweep_id}"
        if cell.is_known:
            yield warning(what, f"its spread is that of {cell.trials} trials", mend)
        else:
            yield problem(what, "its spread is unknown", mend)
