"""Do the terms of explanations add up to the measured difference, and what do they say?

    python benchmarks/explain.py --db explain.db --minutes 8 [SETTING ...]
    python benchmarks/explain.py --db explain.db --table

The first form measures the networks of `atlas.py` at bs 1 and 64 in eager, `default` and
`cuda-graph`, one trial each, in one sweep per network, until the minutes are over; run again, it
measures the networks that are missing. The second form prints, for each cell and eager, the
measured difference, the part of it that no term explains, and the sentence; and the time of the
kernels in traced calls ÷ GPU busy time, which another profile of back-to-back calls gives.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from atlas import networks, states

import effbench
from effbench.analysis.explain import Explanation, NotTracedError, Part, Term
from effbench.core.cell import Result
from effbench.core.errors import EffbenchError
from effbench.core.table import Column, Record, Table
from effbench.store import Store
from effbench.store.trials import TracedTrial

SETTINGS = (
    "bs=1,64",
    "mode=eager,default,cuda-graph",
    "dtype=bfloat16",
    "protocol=quick",
    "protocol.budget_s=0.4",
    "protocol.load_s=0.2",
    "on_failure=ignore",
)
#: Explained within this part of the longer latency counts as adding up.
CLOSE = 0.02
COLUMNS = [
    Column("cell"),
    Column("eager, ms", numeric=True),
    Column("this, ms", numeric=True),
    Column("not explained", numeric=True),
    Column("of the latency", numeric=True),
    Column("kernels ÷ GPU busy", numeric=True),
    Column("largest term"),
]


@dataclass(frozen=True)
class ExplainedCell:
    """A cell, and its explanation against eager; `busy_ms`: its GPU busy time."""

    name: str
    explanation: Explanation
    busy_ms: float | None

    @property
    def rest_ms(self) -> float:
        """The part of the difference that no term explains."""
        if self.explanation.rest is None:
            return 0.0
        return self.explanation.rest.ms.value

    @property
    def unexplained(self) -> float:
        """The absolute value of what is not explained ÷ the longer latency."""
        first, second = self.explanation.first, self.explanation.second
        return abs(self.rest_ms) / max(first.latency_ms.value, second.latency_ms.value)

    @property
    def of_busy(self) -> str:
        """The time of the kernels ÷ GPU busy time, if that was measured."""
        if not self.busy_ms:
            return ""
        return f"{self.explanation.second.typical.busy_ms / self.busy_ms:.3f}"

    @property
    def largest(self) -> Term:
        terms = [term for term in self.explanation.terms if term.name != Part.REST]
        return max(terms, key=lambda term: abs(term.ms.value))

    def record(self) -> Record:
        first, second = self.explanation.first, self.explanation.second
        return {
            "cell": self.name,
            "eager, ms": f"{first.latency_ms.value:.3f}",
            "this, ms": f"{second.latency_ms.value:.3f}",
            "not explained": f"{self.rest_ms:+.4f}",
            "of the latency": f"{self.unexplained:.1%}",
            "kernels ÷ GPU busy": self.of_busy,
            "largest term": f"{self.largest.name} {self.largest.ms.value:+.3f}",
        }


@dataclass(frozen=True)
class UnexplainedCell:
    """A cell without an explanation, and why."""

    name: str
    reason: str

    def record(self) -> Record:
        return {"cell": self.name, "largest term": self.reason}


def measure(db: str, minutes: float, settings: Sequence[str]) -> None:
    """Measure the networks that are missing, until the minutes are over."""
    until_s = time.monotonic() + 60 * minutes
    for name, model in networks().items():
        if states(db).get(name) == "completed":
            continue
        began_s = time.monotonic()
        if began_s > until_s:
            print(f"{name} and later ones are missing: run the command again", file=sys.stderr)
            return
        effbench.sweep([*model, *SETTINGS, *settings, f"db={db}", f"sweep.name={name}"])
        print(f"{name}: {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)


def cells_in(db: str) -> Iterator[ExplainedCell | UnexplainedCell]:
    with Store.open(db, mode="read") as store:
        for sweep in reversed(store.sweeps()):
            results = store.results(sweep.id)
            eager = {result.bs: result for result in results if result.mode == "eager"}
            for result in sorted(results, key=lambda result: result.bs):
                if result.mode != "eager":
                    name = f"{sweep.name} bs={result.bs} {result.mode}"
                    yield explained(store, name, eager.get(result.bs), result)


def explained(
    store: Store, name: str, eager: Result | None, result: Result
) -> ExplainedCell | UnexplainedCell:
    if eager is None:
        return UnexplainedCell(name, "no eager")
    old, new = traces_of(store, eager), traces_of(store, result)
    try:
        explanation = Explanation.of(old, new, (eager.mode, result.mode))
    except NotTracedError as error:
        return UnexplainedCell(name, f"{eager.status} and {result.status}: {error}")
    return ExplainedCell(name, explanation, result.gpu_busy_ms)


def traces_of(store: Store, result: Result) -> list[TracedTrial]:
    return store.traces(result.sweep_id, result.cell_key, result.environment_id)


def print_cells(db: str) -> None:
    cells = list(cells_in(db))
    print(Table(COLUMNS, [cell.record() for cell in cells]).render("markdown"))
    usable = [cell for cell in cells if isinstance(cell, ExplainedCell)]
    close = sum(cell.unexplained <= CLOSE for cell in usable)
    print(f"The terms add up within {CLOSE:.0%} in {close} of {len(usable)} cells.\n")
    for cell in usable:
        print(f"- {cell.name}: {cell.explanation.sentence}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--db", required=True, help="database")
    parser.add_argument("--minutes", type=float, default=8.0, help="begin no network after this")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("settings", nargs="*", metavar="SETTING")
    args = parser.parse_args()
    try:
        if not args.table:
            measure(args.db, args.minutes, args.settings)
        print_cells(args.db)
    except EffbenchError as error:
        sys.exit(f"explain.py: {error}")


if __name__ == "__main__":
    main()
