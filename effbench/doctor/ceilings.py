"""The ceilings of the GPUs: measure them (`effbench doctor --calibrate`), and report them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from effbench.core.errors import StoreError
from effbench.core.metrics import significant
from effbench.doctor.finding import ExaminedMachine, Finding, good, note, problem
from effbench.run import pool
from effbench.run.client import ForkServer
from effbench.run.devices import gpu_slot
from effbench.store.store import Store


def measure(server: ForkServer, machine: ExaminedMachine) -> Iterator[Finding]:
    """Measure and store the ceilings of each GPU; yield a problem for each that fails. Raises
    StoreError."""
    probed = machine.probed
    with Store.open(machine.db, mode="write") as store:
        environment_id = store.add_environment(probed.environment, probed.details)
        for gpu in reversed(probed.gpus):  # the newest row counts: that of the first GPU
            reason = pool.measure_ceilings(
                server,
                store,
                environment_id,
                gpu_slot(gpu),
            )
            if reason:
                yield problem(
                    f"GPU {gpu.index}: its ceilings could not be measured: {reason}",
                    "how close cells come to the GPU's ceilings is unknown",
                    area="ceilings",
                )


def stored(machine: ExaminedMachine) -> dict[str, Any] | None:
    """Return the newest ceilings of this environment; None without any or a readable database."""
    if machine.found is None:
        return None
    with suppress(StoreError), Store.open(machine.db, mode="read") as store:
        return store.ceilings(machine.found.environment.id)
    return None  # `checks.database` reports the error


def report(machine: ExaminedMachine) -> Iterator[Finding]:
    """Yield a finding about the ceilings of the GPU."""
    if not machine.probed.gpus:
        return
    known = stored(machine)
    if known is None:
        effect = "the first sweep measures them"
        yield note("ceilings are not measured yet", effect, "effbench doctor --calibrate")
    elif known:
        yield good(f"ceilings: {ceilings_text(known)}")


def ceilings_text(rates: Mapping[str, Any]) -> str:
    """Return the ceilings as text: `copies 4.02 TB/s, bfloat16 745 TFLOP/s, a launch 4.1 µs`."""
    texts = []
    if rates.get("copy_bytes_per_s"):
        texts.append(f"copies {significant(rates['copy_bytes_per_s'] / 1e12, 3)} TB/s")
    for dtype, speed in (rates.get("flops_per_s") or {}).items():
        if speed:
            texts.append(f"{dtype} {significant(speed / 1e12, 3)} TFLOP/s")
    for name, title in (("launch_ms", "a launch"), ("graph_replay_ms", "a graph replay")):
        if rates.get(name):
            texts.append(f"{title} {significant(1000 * rates[name], 2)} µs")
    return ", ".join(texts)
