"""Commands that run what a sweep recorded: resuming it, and `--trust-imported`, without which imported sweeps are data
and nothing that they recorded runs."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Iterator

from effbench.cell import Cell, targets_in
from effbench.config import DEFAULT_DB
from effbench.store.sweeps import SweepInfo

FLAG = "--trust-imported"
HELP = "list what imported sweeps recorded (models, modes, interpreters, revisions), then run it"


def resume_command(sweep_id: str, db: str, name: str, is_imported: bool = False) -> str:
    """Return the command that continues the sweep. `db`: as it was given; `name`: for a person, without a password."""
    words = ["effbench", "-m", f"resume={sweep_id}"]
    if db != DEFAULT_DB:
        words.append(f"db={name}" if re.fullmatch(r"[A-Za-z0-9_./:@+-]+", name) else f'db="{name}"')
    return shlex.join([*words, *([FLAG] if is_imported else [])])


def refusal(sweep: SweepInfo) -> str:
    """Return why nothing that this imported sweep recorded runs here, and what to do."""
    return (
        f"sweep {sweep.id} was imported, so what it recorded is not run here; review it "
        f"(effbench export --whole --sweep {sweep.id} --out review.db; sqlite3 review.db .dump), then add {FLAG}"
    )


def announce(sweep: SweepInfo, cells: Iterable[Cell], overrides: Iterable[str] = ()) -> None:
    """Print to stderr what these cells of an imported sweep run, under which interpreters, and its `overrides`."""
    lines = dict.fromkeys([*(f"override {word}" for word in overrides), *_of_cells(cells), *_of_host(sweep)])
    print(f"effbench: {FLAG}: sweep {sweep.id} was imported, and this is run of it:", file=sys.stderr)
    for line in lines:
        # an escape sequence must not hide what follows it
        print(f"  {''.join(sign if sign.isprintable() else '?' for sign in line)}", file=sys.stderr, flush=True)


def _of_cells(cells: Iterable[Cell]) -> Iterator[str]:
    for cell in cells:
        yield from (f"_target_ {target}" for target in (*targets_in(cell.model), *targets_in(cell.mode)))
        if cell.training:
            yield f"loss {cell.training.get('loss')}"
        yield from (f"environment variable {name}={value}" for name, value in cell.env.items())


def _of_host(sweep: SweepInfo) -> Iterator[str]:
    recorded = sweep.host.get("environments")
    for facts in recorded.values() if isinstance(recorded, dict) else ():
        for key, what in (("python", "interpreter"), ("folder", "folder"), ("git_revision", "revision")):
            if isinstance(facts, dict) and facts.get(key):
                yield f"{what} {facts[key]}"
