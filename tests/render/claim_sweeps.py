"""A database in which something changed, broke and was never measured, with names that try to do
harm."""

from pathlib import Path

from browsing import EVIL
from made_sweeps import Made, a_cell, copied, environment, steps, template

from effbench.core.cell import Cell, Status
from effbench.store import Store

SWEEPS = 9
STEP, BREAK, UPDATE, DEGRADED = 6, 7, 3, 2  # positions of the first sweep after
WHY = f"CUDA error: {EVIL[0]}\n  at model.py:41"
OLD = {"torch_version": "2.12.0", "flags": {EVIL[1]: EVIL[0]}}


def cells() -> list[Cell]:
    """Slower from STEP on is 2, broken from BREAK on are 1 and 4 (for one reason) and 5, odd is 3,
    and 0 is eager."""
    return [
        a_cell(mode, model, 8)
        for model in ("mlp", EVIL[0])
        for mode in ("eager", "default", "cuda-graph")
    ]


def figures(position: int, number: int) -> dict:
    level = (1 + number / 4) * (1.1 if number == 2 and position >= STEP else 1)
    known = {
        "latency_ms": steps(level, 0.001),
        "period_ms": steps(level * 0.9, 0.0005),
        "flops": 1e9,
    }
    known["kernels"] = 1134
    if number == 3:
        known["recompiles"] = 2
    if position == DEGRADED and number == 4:
        known |= {"status": Status.DEGRADED, "reason": "CUDA graphs were skipped"}
    if position >= BREAK and number in (1, 4):
        known |= {"status": Status.ERROR, "reason": WHY}
    if position >= BREAK and number == 5:
        known |= {"status": Status.OOM, "reason": EVIL[1]}
    return known


def fill(folder: Path) -> tuple[Made, list[str]]:
    """The database and the ids of its sweeps, oldest first. The newest was interrupted: cell 3 has
    no trial in it."""
    made = copied(template(), folder / "made.db")
    ids = []
    for position in range(SWEEPS):
        newest = position == SWEEPS - 1
        plan = {cell: figures(position, number) for number, cell in enumerate(cells())}
        if newest:
            plan[cells()[3]] = None
        place = environment(**OLD) if position < UPDATE else environment()
        facts = {"label": f"v{position}"}
        if newest:
            facts = {"label": EVIL[2], "state": "interrupted"}
        ids.append(made.sweep(plan, env=place, **facts))
    with Store.open(made.path, mode="write") as store:
        store.set_baseline("main", ids[4], EVIL[3])
        measured = {"value": 1.5, "low": 1.4, "high": 1.6, "unit": "×", "sweeps": [ids[-1]]}
        judged = {"reason": EVIL[0], "sweep_id": ids[-1], "measured": measured}
        verdicts = [
            {"claim": "P1", "experiment": "small-batches", "verdict": "confirmed", **judged},
            {"claim": EVIL[0], "experiment": EVIL[1], "verdict": "refuted", **judged},
        ]
        store.add_verdicts(environment().id, verdicts)
    return made, ids
