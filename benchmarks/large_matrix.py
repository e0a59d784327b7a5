"""Measure the seconds until the first trial of a large matrix, and effbench's peak memory until then.

    python benchmarks/large_matrix.py [--cells 1000,10000] [--repeat 3] [--against CHECKOUT]

A probe module notes the time at which the first trial builds it; then the sweep is interrupted. Its seconds count from
the start of the command. `--against`: another checkout of effbench to measure in turns, such as one of the main branch.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from effbench.table import Column, Table

HERE = Path(__file__).resolve().parents[1]
MODES = "eager,default,reduce-overhead,max-autotune,max-autotune-no-cudagraphs"
PROBE = """
import os, time, torch

class Probe(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        noted = os.environ["LARGE_MATRIX_NOTE"]
        with open(f"{noted}.draft", "w") as file:
            file.write(str(time.time()))
        os.replace(f"{noted}.draft", noted)
        time.sleep(60)
"""
MOST_S = 300.0


def first_trial(checkout: Path, cells: int) -> tuple[float, float, float, float]:
    """Return the seconds until the first line of output and until the first trial, the CPU seconds of the orchestrator
    until then, and its peak memory in MiB."""
    with tempfile.TemporaryDirectory() as folder:
        home, noted = Path(folder), Path(folder) / "noted"
        (home / "probe.py").write_text(PROBE)
        sizes = cells // 50
        command = [
            sys.executable, "-m", "effbench", "-m", f"mode={MODES}", f"bs=range(1,{sizes + 1})", "db=x.db",
            "device=cpu",
            "model=custom", "model.module._target_=probe.Probe", "model.inputs.x.shape=[16]",
            "model.module.width=" + ",".join(map(str, range(10))), "protocol=quick", "protocol.rounds=1",
        ]  # fmt: skip
        env = {**os.environ, "PYTHONPATH": f"{checkout}:{home}", "LARGE_MATRIX_NOTE": str(noted)}
        output = home / "output"
        began, spoke, peak_kib = time.time(), None, 0
        with output.open("w") as stream:
            sweep = subprocess.Popen(command, cwd=home, env=env, stdout=stream, stderr=subprocess.STDOUT)
        try:
            while not noted.exists() and sweep.poll() is None and time.time() - began < MOST_S:
                time.sleep(0.01)
                if spoke is None and output.stat().st_size:
                    spoke = time.time() - began
                status = Path(f"/proc/{sweep.pid}/status").read_text()
                peak_kib = max([peak_kib, *(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line)])
            if not noted.exists():
                raise SystemExit(f"no trial began: {output.read_text()[-500:]}")
            ticks = Path(f"/proc/{sweep.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            first = float(noted.read_text()) - began
            return spoke or first, first, sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), peak_kib / 1024
        finally:
            sweep.send_signal(signal.SIGINT)
            sweep.wait(300)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", default="1000,10000", help="(default: 1000,10000)")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each, of which the median counts (default: 3)")
    parser.add_argument("--against", type=Path, help="another checkout of effbench, measured in turns with this one")
    args = parser.parse_args()
    checkouts = {"this checkout": HERE} | ({str(args.against): args.against.resolve()} if args.against else {})
    rows = []
    for cells in map(int, args.cells.split(",")):
        runs: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in checkouts}
        for _ in range(args.repeat):
            for name, checkout in checkouts.items():
                runs[name].append(first_trial(checkout, cells))
        for name, measured in runs.items():
            spoke, first, cpu, peak = (median(values) for values in zip(*measured, strict=True))
            rows.append([name, f"{cells:,}", f"{spoke:.1f}", f"{first:.1f}", f"{cpu:.1f}", f"{peak:.0f}"])
    heads = ("effbench", "cells", "first output, s", "first trial, s", "CPU, s", "peak memory, MiB")
    print(Table.of([*map(Column, heads)], rows).render("markdown"))


if __name__ == "__main__":
    main()
