"""The two files of a cluster's job: what it is asked to run, and what has happened (events).

Both hold messages (see effbench.core.message). An event about a trial has the number of its run in
the request, its round and its attempt:

    {"event": "began", "node", "environments"}
        environments: id -> the environment, its details, and the facts of its interpreter
    {"event": "started", "run", "round", "attempt", "slot"}
    {"event": "record", "run", "round", "attempt", "record"}
    {"event": "ceilings", "environment_id", "gpu_uuid", "ceilings"}
    {"event": "note", "text"}
    {"event": "failed", "reason"} or {"event": "done"}, last
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from effbench.core.cell import Cell
from effbench.core.message import decode, encode
from effbench.run.interpreters import Interpreter
from effbench.run.plan import CellRun

REQUEST, EVENTS = "job.json", "events.jsonl"


@dataclass(frozen=True)
class JobRequest:
    """What a job runs. `runs`: the given settings of the interpreter and the parameters of the cell
    of each run; `history`: environment -> cell key -> recorded trials; `ceilings`: of each known
    environment."""

    sweep_id: str
    first_rounds: list[int]
    settings: dict[str, Any]
    runs: list[tuple[dict[str, str], dict[str, Any]]]
    history: dict[str, dict[str, list[dict[str, Any]]]]
    ceilings: dict[str, dict[str, Any]]

    def write(self, folder: Path) -> None:
        (folder / REQUEST).write_bytes(encode(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Self:
        message = decode((folder / REQUEST).read_bytes())
        return cls(**{name: value for name, value in message.items() if name != "v"})

    def cell_runs(self) -> list[CellRun]:
        return [
            CellRun(Cell.from_params(params), Interpreter(**given)) for given, params in self.runs
        ]
