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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from effbench.core.table import Column, Table
from effbench.run.devices import Slot, wait_for_device

SHAPE = {"layers": 2, "width": 128, "heads": 2, "vocab": 1000, "seq": 16}
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
GIT = ["git", "-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost"]


def run(folder: str | Path, *command: str) -> float:
    """Return the seconds of a command in this folder, which is also its home; raise SystemExit if
    it fails."""
    own = {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HOME": str(folder),
        "TMPDIR": str(folder),
    }
    # no other sweep runs now, and none is waited for
    with wait_for_device(Slot("CPU", "cpu"), threading.Event()):
        start = time.perf_counter()
        done = subprocess.run(
            command, cwd=folder, env=os.environ | own, capture_output=True, text=True, check=False
        )
        seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(
            f"{command} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}"
        )
    return seconds


def effbench(folder: str, protocol: str, sizes: str) -> float:
    words = [
        "model=bert-base",
        "mode=eager",
        "dtype=float32",
        "device=cpu",
        f"protocol={protocol}",
        f"bs={sizes}",
    ]
    words += [f"model.module.{name}={value}" for name, value in SHAPE.items()]
    return run(
        folder,
        sys.executable,
        "-m",
        "effbench",
        "-m",
        *words,
        f"db={tempfile.mkdtemp(dir=folder)}/cost.db",
    )


def asv(folder: str, python: str, sizes: str) -> float:
    project = Path(tempfile.mkdtemp(dir=folder))
    (project / "asv.conf.json").write_text(
        '{"version": 1, "project": "cost", "repo": ".", "environment_type": "existing"}'
    )
    (project / "benchmarks").mkdir()
    (project / "benchmarks" / "__init__.py").write_text(MODEL + CLASS.format(sizes=f"[{sizes}]"))
    for words in (["init"], ["add", "."], ["commit", "-m", "cost"]):
        run(project, *GIT, *words)
    run(project, python, "-m", "asv", "machine", "--yes")
    return run(project, python, "-m", "asv", "run", "--python=same")


def optimum(folder: str, python: str, sizes: str) -> float:
    project = Path(tempfile.mkdtemp(dir=folder))
    run(project, python, "-c", f"{MODEL}build().save_pretrained('model')")
    (project / "cost.yaml").write_text(INFERENCE.replace("MODEL", str(project / "model")))
    words = [
        "--config-dir",
        str(project),
        "--config-name",
        "cost",
        "--multirun",
        "hydra.job.chdir=true",
    ]
    program = "from optimum_benchmark.cli import main; main()"
    return run(project, python, "-c", program, *words, f"scenario.input_shapes.batch_size={sizes}")


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
        tools: dict[str, tuple[Callable[[str], float], int]] = {
            "effbench, quick": (partial(effbench, folder, "quick"), 4),
            "effbench, standard": (partial(effbench, folder, "standard"), 1),
            "torch.utils.benchmark": (
                lambda s: run(folder, sys.executable, "-c", MODEL + TIMER, *s.split(",")),
                20,
            ),
        }
        for name, python, measure in (
            ("asv", args.asv, asv),
            ("optimum-benchmark", args.optimum, optimum),
        ):
            test = [python, "-c", f"import torch, transformers, {name.replace('-', '_')}"]
            if python and subprocess.run(test, capture_output=True, check=False).returncode == 0:
                tools[name] = (partial(measure, folder, python), 1)
            else:
                print(f"{name}: skipped, it needs an interpreter that has it")
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in tools}
        for _ in range(args.turns):
            for name, (call, further) in tools.items():
                first = call("8")
                rest = (call(",".join(str(8 + i) for i in range(further + 1))) - first) / further
                found[name].append((first, rest))
                print(
                    f"{name}: {first:.1f} s, {rest:.2f} s per further cell",
                    file=sys.stderr,
                    flush=True,
                )
    text = "{:.1f} ({:.1f}–{:.1f})".format
    rows = [
        [name, *(text(median(s), min(s), max(s)) for s in zip(*both, strict=True))]
        for name, both in found.items()
    ]
    headings = ("tool", "first cell, s", "further cell, s")
    print(Table.of([*map(Column, headings)], rows).render("markdown"))


if __name__ == "__main__":
    main()
