"""The same sweep on all GPUs, on half of them and so on to one: wall time, idle share of each GPU, and whether the
results agree.

    python benchmarks/several_gpus.py [--quick-only] [overrides]

The sweep has 24 cells × 2 rounds. Overrides are added to the command and may replace its matrix:
`python benchmarks/several_gpus.py model=tiny bs=1 mode=eager device=cpu` runs anywhere; without several GPUs, there is
one sweep. Before it, three quick cells run twice, the second time with known ceilings of the GPU.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import effbench
from effbench.store import Store

MATRIX = [
    "model=tiny,mlp,attention", "bs=1,8", "mode=eager,cuda-graph,default,reduce-overhead", "protocol=quick",
    "protocol.rounds=2", "protocol.compilations=2",
]  # fmt: skip
THREE = ["model=tiny", "bs=1", "mode=eager,default,cuda-graph", "protocol=quick"]


@dataclass
class Measured:
    """A sweep: its wall seconds, the seconds before its first trial, its results and its trials."""

    wall_s: float
    first_s: float
    results: pd.DataFrame
    trials: list[dict[str, Any]]

    def idle(self) -> dict[str, float]:
        """Return the idle share of each device between the first trial's start and the last one's end."""
        starts = [began(trial) for trial in self.trials]
        whole_s = max(start + trial["wall_s"] for start, trial in zip(starts, self.trials, strict=True)) - min(starts)
        busy_s: dict[str, float] = defaultdict(float)
        for trial in self.trials:
            busy_s["CPU" if trial["gpu_index"] is None else f"GPU {trial['gpu_index']}"] += trial["wall_s"]
        return {device: 1 - seconds / whole_s for device, seconds in sorted(busy_s.items())}

    def describe(self, name: str) -> str:
        idle = ", ".join(f"{device} {share:.1%}" for device, share in self.idle().items())
        again = sum(trial["attempt"] > 0 for trial in self.trials)
        each = np.mean([trial["wall_s"] for trial in self.trials])
        return (
            f"{name}: {self.wall_s:.1f} s, first trial after {self.first_s:.1f} s; idle: {idle}; "
            f"{len(self.trials)} trials of {each:.2f} s on average, {again} of them repeated; "
            f"{self.results['status'].value_counts().to_dict()}"
        )


def began(trial: dict[str, Any]) -> float:
    """Return the trial's start in seconds since 1970."""
    start = pd.Timestamp(trial["started_at"])
    return (start.tz_localize(UTC) if start.tzinfo is None else start).timestamp()


def measure(db: Path, words: list[str]) -> Measured:
    """Run a sweep in a process of its own."""
    start, start_s = datetime.now(UTC).timestamp(), time.perf_counter()
    command = [sys.executable, "-m", "effbench", "-m", *words, f"db={db}", "on_failure=ignore"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall_s = time.perf_counter() - start_s
    with Store.open(str(db)) as store:
        trials = store.trials(store.find_sweep("last").id)
    return Measured(wall_s, min(map(began, trials)) - start, effbench.results(str(db)), trials)


def agreement(one: pd.DataFrame, other: pd.DataFrame) -> str:
    """Return in how many cells the latencies of two sweeps differ by less than the 95 % interval of their ratio."""
    joined = one.merge(other, on="cell_key", suffixes=("", "_2"))
    joined = joined[(joined["status"] == "ok") & (joined["status_2"] == "ok")]
    joined = joined.dropna(subset=["latency_ci_low_ms", "latency_ci_low_ms_2"])
    if joined.empty:
        return "no cell has intervals in both sweeps"
    ratio = np.log(joined["latency_ms_2"] / joined["latency_ms"])
    widths = [np.log(joined[f"latency_ci_high_ms{of}"] / joined[f"latency_ci_low_ms{of}"]) / 2 for of in ("", "_2")]
    agree = np.abs(ratio) <= np.hypot(*widths)
    return f"latencies agree in {agree.sum()} of {len(joined)} cells (median ratio {np.exp(np.median(ratio)):.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick-only", action="store_true", help="run only the three quick cells")
    arguments, overrides = parser.parse_known_args()
    given = {word.partition("=")[0] for word in overrides}
    words = [*(word for word in MATRIX if word.partition("=")[0] not in given), *overrides]
    with tempfile.TemporaryDirectory(prefix="effbench-") as folder:
        db = Path(folder) / "effbench.db"
        device = [word for word in overrides if word.startswith("device=")]
        for ceilings in ("unknown", "known"):
            print(measure(db, [*THREE, *device]).describe(f"three quick cells, ceilings {ceilings}"), flush=True)
        if arguments.quick_only:
            return
        first = measure(db, words)
        sweeps = {len(first.idle()): first}
        while (count := min(sweeps) // 2) > 0:
            sweeps[count] = measure(db, [*words, f"executor.gpus=[{','.join(map(str, range(count)))}]"])
        for count, sweep in sweeps.items():
            print(sweep.describe(f"devices: {count}"))
            ratio, agrees = sweeps[1].wall_s / sweep.wall_s, agreement(sweeps[1].results, sweep.results)
            print(f"against one: {ratio:.2f} times as fast; {agrees}", flush=True)


if __name__ == "__main__":
    main()
