"""Time the command line, and check that it does not import torch.

    python benchmarks/cli_speed.py [--results 1000]

The first line is the time of `import torch` on this machine, which the commands would need in addition.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from effbench.cell import Cell, Environment, Status, Trial
from effbench.store import Store

MODES = ("eager", "default", "reduce-overhead", "cuda-graph", "compile+graph")
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from effbench.cli import main; main()"


def fill(db: str, results: int) -> None:
    """Create a database with this number of results, of one trial each."""
    cells = [
        Cell(
            {"name": f"model{i // 50}", "module": {"_target_": "x.Y"}, "inputs": []},
            i // 5 % 10 + 1,
            {"name": MODES[i % 5], "_target_": "x.M"},
            "bfloat16",
            "inference",
            "cuda",
        )
        for i in range(results)
    ]
    with Store.open(db, mode="write") as store:
        environment = store.add_environment(
            Environment("GPU", 1, "1", "13", "2.13", "3.6", "3.12", "CPU", "Linux"), details={}
        )
        sweep = store.begin_sweep(
            name=None,
            label=None,
            command=[],
            overrides=[],
            protocol={"name": "quick", "rounds": 1},
            baseline_mode="eager",
            seed=0,
            git_revision=None,
            host={},
            plan=cells,
            rounds=1,
        )
        for i, cell in enumerate(cells):
            store.record(sweep, environment, Trial(cell.key, 0, Status.OK, latency_ms=1.0 + i % 7, latency_min_ms=1.0))
        store.finish_sweep(sweep, "completed")


def seconds(code: str, *args: str, repeats: int = 5) -> float:
    """Return the median wall time of a fresh interpreter that runs `code`."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code, *args], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=int, default=1000)
    results = parser.parse_args().results
    print(f"import torch: {seconds('import torch'):.2f} s")
    with tempfile.TemporaryDirectory() as folder:
        db = str(Path(folder) / "speed.db")
        fill(db, results)
        for args in (["--help"], ["show", "--db", db], ["ls", "--db", db], ["ls", "--cells", "--db", db]):
            print(
                f"effbench {' '.join(args[:-1] if args[-1] == db else args)} ({results} results, no torch): "
                f"{seconds(WITHOUT_TORCH, *args):.2f} s"
            )


if __name__ == "__main__":
    main()
