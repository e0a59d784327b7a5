"""Lines about how a row was measured: dropout that is off, gradients, pairs, and the speed of the
host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from effbench.labels import LabelledRow, Rows
from effbench.metrics import METRICS
from effbench.printable import listed, one_line
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo

#: Number of cells that a line names before it counts the rest.
MOST_NAMES = 3


def dropout_off(facts: Mapping[str, Any], row: LabelledRow) -> str | None:
    off = facts.get("dropout_off")
    if not isinstance(off, list):  # older versions recorded a number
        return None
    return f"dropout off in training: {listed([str(one) for one in off], MOST_NAMES)}"


def grad_mode(facts: Mapping[str, Any], row: LabelledRow) -> str | None:
    reason = facts.get("grad_mode_reason")
    if reason:
        return f"all modes run with grad_mode={facts.get('grad_mode')} ({reason})"
    return None


def weights_differ(facts: Mapping[str, Any], row: LabelledRow) -> str | None:
    differ = (facts.get("facts") or {}).get("weights_differ")
    if differ:
        return f"weights differ between processes: {differ}"
    return None


def no_pairs(facts: Mapping[str, Any], row: LabelledRow) -> str | None:
    """Return why a speedup does not come from pairs, unless that holds for all cells of this
    kind."""
    reason = facts.get("no_pairs")
    if reason is None or row.source["phase"] != "inference" or "stream" in row.source["params"]:
        return None
    return f"speedups of separate processes: {reason}"


#: Parts of `extra` that the notes need, and their makers.
NAMES = ("dropout_off", "grad_mode", "grad_mode_reason", "no_pairs", "facts")
MAKERS: tuple[Callable[[Mapping[str, Any], LabelledRow], str | None], ...] = (
    dropout_off,
    grad_mode,
    no_pairs,
    weights_differ,
)


def notes(
    store: Store,
    sweep: SweepInfo,
    rows: Rows,
) -> list[str]:
    """Return a line for each note, with the rows that it is about. The modes of a row share most
    notes, so a line names a row and its modes once."""
    if not rows:
        return []
    facts = store.trial_facts(sweep.id, NAMES)
    groups: dict[str, dict[str, None]] = {}
    for row in rows:
        of_cell = facts.get((row.source["cell_key"], row.source["environment_id"]), {})
        for text in texts_of(of_cell, row):
            groups.setdefault(one_line(text), {})[row.case] = None
    return [f"{listed(list(cases), MOST_NAMES)}: {text}" for text, cases in groups.items()]


def texts_of(facts: Mapping[str, Any], row: LabelledRow) -> Iterable[str]:
    return filter(None, (maker(facts, row) for maker in MAKERS))


def on_a_busy_host(rows: Rows) -> list[str]:
    """Return a line for each latency speedup that was also measured while the host was disturbed.

    It is another one where one side waits for the host and the other does not.
    """
    form = METRICS["speedup"].format
    lines = []
    for row in rows:
        quiet, busy = row.source.get("speedup"), row.source.get("busy_speedup")
        if quiet is not None and busy is not None and row.source["speedup_disturbance"] is None:
            lines.append(
                f"{row.name}: {form(quiet)} on an undisturbed host, {form(busy)} on a busy one"
            )
    return lines
