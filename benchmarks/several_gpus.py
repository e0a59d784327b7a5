"""The same sweep on one GPU and on all: wall time, idle share of each GPU, and whether the results agree.

    python benchmarks/several_gpus.py [--rounds 2] [--quick-only] [overrides]

The default is 24 cells × 2 rounds. Overrides are added to the command and may replace its matrix:
`python benchmarks/several_gpus.py model=tiny bs=1 mode=eager device=cpu` runs anywhere, and without several GPUs both
sweeps run on the same device. Each sweep has a new database, so its time includes the GPU's ceilings. At the end, three
quick cells run twice, the second time with known ceilings.
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

import numpy as np
import pandas as pd

import effbench
from effbench.cell import Trial
from effbench.store import Store

MATRIX = ("model=tiny,mlp,attention", "bs=1,8", "mode=eager,cuda-graph,default,reduce-overhead", "protocol=quick")
THREE = ("model=tiny", "bs=1", "mode=eager,default,cuda-graph", "protocol=quick")


@dataclass
class Measured:
    """A sweep: its wall seconds, the seconds before its first trial, its results and its trials."""

    wall_s: float
    first_s: float
    results: pd.DataFrame
    trials: list[Trial]

    def idle(self) -> dict[str, float]:
        """Return the idle share of each device between the first trial's start and the last one's end."""
        busy_s, ends = defaultdict(float), []
        for trial in self.trials:
            busy_s["CPU" if trial.gpu_index is None else f"GPU {trial.gpu_index}"] += trial.wall_s
            ends.append(datetime.fromisoformat(trial.started_at).timestamp() + trial.wall_s)
        whole_s = max(ends) - min(datetime.fromisoformat(trial.started_at).timestamp() for trial in self.trials)
        return {device: 1 - seconds / whole_s for device, seconds in sorted(busy_s.items())}

    def describe(self, name: str) -> str:
        idle = ", ".join(f"{device} {share:.1%}" for device, share in self.idle().items())
        statuses = self.results["status"].value_counts().to_dict()
        again = sum(trial.attempt > 0 for trial in self.trials)
        trials = f"{len(self.trials)} trials, {again} of them repeated, {np.mean([t.wall_s for t in self.trials]):.2f} s each"
        return f"{name}: {self.wall_s:.1f} s, first trial after {self.first_s:.1f} s, idle: {idle}; {trials}; {statuses}"


def measure(db: Path, words: list[str]) -> Measured:
    """Run a sweep in a process of its own."""
    began, start = datetime.now(UTC), time.perf_counter()
    command = [sys.executable, "-m", "effbench", "-m", *words, f"db={db}", "on_failure=ignore"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall_s, results = time.perf_counter() - start, effbench.results(str(db))
    with Store.open(db, mode="read") as store:
        history = store.history(store.find_sweep("last").id, results["environment_id"].iloc[0])
    trials = [trial for recorded in history.values() for trial in recorded]
    first = min(datetime.fromisoformat(trial.started_at) for trial in trials)
    return Measured(wall_s, (first - began).total_seconds(), results, trials)


def agreement(one: pd.DataFrame, other: pd.DataFrame) -> str:
    """Return in how many cells the latencies of two sweeps differ by less than the 95 % interval of their ratio."""
    low, high = "latency_ci_low_ms", "latency_ci_high_ms"
    joined = one.merge(other, on="cell_key", suffixes=("", "_2"))
    joined = joined[(joined["status"] == "ok") & (joined["status_2"] == "ok")].dropna(subset=[low, f"{low}_2"])
    if joined.empty:
        return "no cell has intervals in both sweeps"
    ratio = np.log(joined["latency_ms_2"] / joined["latency_ms"])
    widths = [np.log(joined[high + end] / joined[low + end]) / 2 for end in ("", "_2")]
    agree = np.abs(ratio) <= np.hypot(*widths)
    return f"latencies agree in {agree.sum()} of {len(joined)} cells (median ratio {np.exp(np.median(ratio)):.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2, help="rounds of the large sweep")
    parser.add_argument("--quick-only", action="store_true", help="run only the three quick cells")
    arguments, overrides = parser.parse_known_args()
    given = {word.partition("=")[0] for word in overrides}
    chosen = [word for word in MATRIX if word.partition("=")[0] not in given]
    words = [*chosen, f"protocol.rounds={arguments.rounds}", f"protocol.compilations={arguments.rounds}", *overrides]
    with tempfile.TemporaryDirectory(prefix="effbench-") as place:
        if not arguments.quick_only:
            has_gpu = bool(subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).stdout) if HAS_SMI else False
            first = ["executor.gpus=[0]"] if has_gpu and "device=cpu" not in overrides else []
            every = measure(Path(place) / "all.db", words)
            print(every.describe("all GPUs"), flush=True)
            single = measure(Path(place) / "one.db", [*words, *first])
            print(single.describe("one GPU"), flush=True)
            print(f"ratio {single.wall_s / every.wall_s:.2f}; {agreement(single.results, every.results)}", flush=True)
        for known in ("new", "known"):
            quick = measure(Path(place) / "quick.db", [*THREE, *(word for word in overrides if "device=" in word)])
            print(quick.describe(f"three quick cells, {known} machine"), flush=True)


if __name__ == "__main__":
    main()
