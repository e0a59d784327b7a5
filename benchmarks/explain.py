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
from collections.abc import Iterator
from dataclasses import dataclass

from atlas import networks, states

import effbench
from effbench.analysis.explain import Explanation, NotTracedError, Part
from effbench.core.cell import Result
from effbench.core.errors import EffbenchError
from effbench.core.labels import grouped
from effbench.store import Store
from effbench.store.trials import TracedTrial

MODES = "eager,default,cuda-graph"
SIZES = "1,64"
SETTINGS = (
    "dtype=bfloat16",
    "protocol=quick",
    "protocol.budget_s=0.4",
    "protocol.load_s=0.2",
    "on_failure=ignore",
)
#: Explained within this part of the longer latency counts as adding up.
CLOSE = 0.02


@dataclass(frozen=True)
class Row:
    """A cell, and its explanation against eager; `busy_ms`: its GPU busy time; `reason`: why there
    is no explanation."""

    name: str
    explanation: Explanation | None
    busy_ms: float | None = None
    reason: str = ""

    @property
    def unexplained(self) -> float:
        """The absolute value of what is not explained ÷ the longer latency."""
        assert self.explanation is not None
        rest = self.explanation.rest
        longer_ms = max(
            self.explanation.first.latency_ms.value, self.explanation.second.latency_ms.value
        )
        return abs(rest.ms.value) / longer_ms if rest else 0.0

    @property
    def of_busy(self) -> str:
        if self.explanation is None or not self.busy_ms:
            return ""
        return f"{self.explanation.second.typical.busy_ms / self.busy_ms:.3f}"


def measure(db: str, minutes: float, settings: list[str]) -> None:
    until = time.monotonic() + 60 * minutes
    for name, model in networks().items():
        if states(db).get(name) == "completed":
            continue
        if time.monotonic() > until:
            print(f"{name} and later ones are missing: run the command again", file=sys.stderr)
            return
        began = time.monotonic()
        words = [*model, f"bs={SIZES}", f"mode={MODES}", *SETTINGS, *settings]
        effbench.sweep([*words, f"db={db}", f"sweep.name={name}"])
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def rows(db: str) -> Iterator[Row]:
    with Store.open(db, mode="read") as store:
        for sweep in reversed(store.sweeps()):
            of_size = grouped(store.results(sweep.id), lambda result: result.bs)
            for bs, results in of_size.items():
                by_mode = {result.mode: result for result in results}
                eager = by_mode.pop("eager", None)
                for mode, result in by_mode.items():
                    name = f"{sweep.name} bs={bs} {mode}"
                    if eager is None:
                        yield Row(name, None, reason="no eager")
                        continue
                    yield explained(store, name, eager, result)


def explained(store: Store, name: str, first: Result, second: Result) -> Row:
    old, new = traces_of(store, first), traces_of(store, second)
    try:
        explanation = Explanation.of(old, new, (first.mode, second.mode))
        return Row(name, explanation, second.gpu_busy_ms)
    except NotTracedError as error:
        return Row(name, None, reason=f"{first.status} and {second.status}: {error}")


def traces_of(store: Store, result: Result) -> list[TracedTrial]:
    return store.traces(result.sweep_id, result.cell_key, result.environment_id)


def print_table(db: str) -> None:
    found = list(rows(db))
    headings = (
        "cell",
        "eager, ms",
        "this, ms",
        "not explained",
        "of the latency",
        "kernels ÷ GPU busy",
        "largest term",
    )
    print(f"| {' | '.join(headings)} |")
    print("| --- |" + " ---: |" * 5 + " --- |")
    usable = []
    for row in found:
        explanation = row.explanation
        if explanation is None:
            print(f"| {row.name} | | | | | | {row.reason} |")
            continue
        usable.append(row)
        rest = explanation.rest
        rest_ms = rest.ms.value if rest else 0.0
        terms = [term for term in explanation.terms if term.name != Part.REST]
        largest = max(terms, key=lambda term: abs(term.ms.value))
        cells = (
            row.name,
            f"{explanation.first.latency_ms.value:.3f}",
            f"{explanation.second.latency_ms.value:.3f}",
            f"{rest_ms:+.4f}",
            f"{row.unexplained:.1%}",
            row.of_busy,
            f"{largest.name} {largest.ms.value:+.3f}",
        )
        print(f"| {' | '.join(cells)} |")
    if usable:
        close = sum(row.unexplained <= CLOSE for row in usable)
        print(f"\nThe terms add up within {CLOSE:.0%} in {close} of {len(usable)} cells.\n")
    for row in usable:
        assert row.explanation is not None
        print(f"- {row.name}: {row.explanation.sentence}")


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
        print_table(args.db)
    except EffbenchError as error:
        sys.exit(f"explain.py: {error}")


if __name__ == "__main__":
    main()
