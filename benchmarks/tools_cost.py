"""Wall seconds per cell of effbench and of other tools, for the same small model on a CPU.

    python benchmarks/tools_cost.py [--asv PYTHON] [--optimum PYTHON] [--turns 3]

The cells are a two-layer BERT in eager mode and float32 with batch sizes from 8 up: one thread,
random weights, no network. Every tool runs in turns with one cell and with several, with its
default settings. The first cell includes start-up; a further cell is the difference, divided by the
number of further cells. Medians of the turns and ranges.

`--asv` and `--optimum` are interpreters that have these tools, torch and transformers (for
optimum-benchmark 0.6: transformers 4). A tool without an interpreter is skipped.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

from effbench.core.table import Column, Table
from effbench.run.devices import Slot, wait_for_device

#: The network of MODEL as a cell of effbench.
CELL = [
    "model=bert-base",
    "model.module.layers=2",
    "model.module.width=128",
    "model.module.heads=2",
    "model.module.vocab=1000",
    "model.module.seq=16",
    "mode=eager",
    "dtype=float32",
    "device=cpu",
]
MODEL = """import sys, torch
from transformers import BertConfig, BertModel
config = dict(vocab_size=1000, hidden_size=128, num_hidden_layers=2)
config |= dict(num_attention_heads=2, intermediate_size=512)
build = lambda: BertModel(BertConfig(**config)).eval()
inputs = lambda bs: (torch.randint(1000, (bs, 16)), torch.ones(bs, 16, dtype=torch.int64))
"""
TIMER = """from torch.utils.benchmark import Timer
with torch.inference_mode():
    for bs in map(int, sys.argv[1:]):
        timer = Timer("model(*x)", globals={"model": build(), "x": inputs(bs)})
        print(timer.blocked_autorange(min_run_time=0.2))
"""
CLASS = """class Forward:
    params = {sizes}
    def setup(self, bs):
        self.model, self.x = build(), inputs(bs)
    def time_forward(self, bs):
        with torch.inference_mode():
            self.model(*self.x)
"""
INFERENCE = """name: cost
defaults: [benchmark, {launcher: process}, {backend: pytorch}, {scenario: inference}, _self_]
backend: {model: MODEL, task: feature-extraction, device: cpu, torch_dtype: float32}
scenario: {input_shapes: {batch_size: 8, sequence_length: 16}}
"""
ASV_SETTINGS = """{
  "version": 1, "project": "cost", "repo": ".", "environment_type": "existing"
}"""
GIT = ["git", "-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost"]

COLUMNS = [Column("tool"), Column("first cell, s"), Column("further cell, s")]


@dataclass
class Tool:
    """A tool, and its seconds in each turn. `measure`: returns the wall seconds for batch sizes
    with commas between them; `further`: how many cells follow the first one."""

    name: str
    measure: Callable[[str], float]
    further: int = 1
    first_s: list[float] = field(default_factory=list)
    further_s: list[float] = field(default_factory=list)

    def take_turn(self) -> None:
        sizes = [str(8 + number) for number in range(1 + self.further)]
        first_s = self.measure(sizes[0])
        further_s = (self.measure(",".join(sizes)) - first_s) / self.further
        self.first_s.append(first_s)
        self.further_s.append(further_s)
        line = f"{self.name}: {first_s:.1f} s, {further_s:.2f} s per further cell"
        print(line, file=sys.stderr, flush=True)


def effbench(folder: Path, protocol: str, sizes: str) -> float:
    db = new_folder(folder) / "cost.db"
    words = [*CELL, f"protocol={protocol}", f"bs={sizes}", f"db={db}"]
    return run(folder, sys.executable, "-m", "effbench", "-m", *words)


def torch_timer(folder: Path, sizes: str) -> float:
    return run(folder, sys.executable, "-c", MODEL + TIMER, *sizes.split(","))


def asv(folder: Path, python: str, sizes: str) -> float:
    project = new_folder(folder)
    (project / "asv.conf.json").write_text(ASV_SETTINGS)
    package = project / "benchmarks"
    package.mkdir()
    (package / "__init__.py").write_text(MODEL + CLASS.format(sizes=f"[{sizes}]"))
    run(project, *GIT, "init")
    run(project, *GIT, "add", ".")
    run(project, *GIT, "commit", "-m", "cost")
    run(project, python, "-m", "asv", "machine", "--yes")
    return run(project, python, "-m", "asv", "run", "--python=same")


def optimum(folder: Path, python: str, sizes: str) -> float:
    project = new_folder(folder)
    run(project, python, "-c", f"{MODEL}build().save_pretrained('model')")
    (project / "cost.yaml").write_text(INFERENCE.replace("MODEL", str(project / "model")))
    program = "from optimum_benchmark.cli import main; main()"
    words = ["--config-dir", str(project), "--config-name", "cost", "--multirun"]
    words += ["hydra.job.chdir=true", f"scenario.input_shapes.batch_size={sizes}"]
    return run(project, python, "-c", program, *words)


def new_folder(folder: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=folder))


def run(folder: Path, *command: str) -> float:
    """Return the seconds of a command in this folder, which is also its home; raise SystemExit if
    it fails."""
    places = {"HOME": str(folder), "TMPDIR": str(folder)}
    env = os.environ | places | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    # no other sweep runs now; the command has locks of its own, as it has a temporary folder
    with wait_for_device(Slot("CPU", "cpu"), threading.Event()):
        began_s = time.perf_counter()
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, check=False
        )
        seconds = time.perf_counter() - began_s
    if done.returncode:
        output = (done.stdout + done.stderr)[-2000:]
        raise SystemExit(f"{command} ended with {done.returncode}: {output}")
    return seconds


def tools_in(folder: Path, args: argparse.Namespace) -> list[Tool]:
    """Return the tools that can run here, and print which are skipped."""
    tools = [
        Tool("effbench, quick", partial(effbench, folder, "quick"), further=4),
        Tool("effbench, standard", partial(effbench, folder, "standard")),
        Tool("torch.utils.benchmark", partial(torch_timer, folder), further=20),
    ]
    if has_module(args.asv, "asv"):
        tools.append(Tool("asv", partial(asv, folder, args.asv)))
    if has_module(args.optimum, "optimum_benchmark"):
        tools.append(Tool("optimum-benchmark", partial(optimum, folder, args.optimum)))
    return tools


def has_module(python: str | None, module: str) -> bool:
    """Return whether an interpreter has a tool and what it needs; if not, print that it is
    skipped."""
    if python is not None:
        command = [python, "-c", f"import torch, transformers, {module}"]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return True
    print(f"{module}: skipped, it needs an interpreter that has it")
    return False


def with_range(seconds: Sequence[float]) -> str:
    return f"{median(seconds):.1f} ({min(seconds):.1f}–{max(seconds):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--asv", metavar="PYTHON", help="an interpreter that has asv")
    parser.add_argument(
        "--optimum", metavar="PYTHON", help="an interpreter that has optimum-benchmark"
    )
    parser.add_argument("--turns", type=int, default=3, help="default: %(default)s")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tools = tools_in(Path(folder), args)
        for _ in range(args.turns):
            for tool in tools:
                tool.take_turn()
    rows = [[tool.name, with_range(tool.first_s), with_range(tool.further_s)] for tool in tools]
    print(Table.of(COLUMNS, rows).render("markdown"))


if __name__ == "__main__":
    main()
