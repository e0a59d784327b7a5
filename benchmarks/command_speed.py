"""Measure the time and peak memory of commands, each in a fresh process.

    python benchmarks/command_speed.py [--cells 1000] [--sweeps 200] [--repeat 3] [--only history]

The databases are synthetic: `ls`, `show`, `check` and `history` read a database of `synthetic.py` without raw samples;
`export` and `import` copy whole sweeps whose trials have samples of all timers.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import tables
from synthetic import Plan, cells_of, environments_of, fill

from effbench.cell import Status, Trial
from effbench.store import Store

TIMERS = ("latency_ms", "period_ms", "warmup_ms")
CHECKED = Plan(sweeps=32, with_trials=True)
CARRIED = Plan(cells=50, sweeps=20, trials=5)
SAMPLES = 100
#: ru_maxrss would include the memory of the parent process
MEASURED = """import sys; from effbench import cli; code = cli.run(sys.argv[1:])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")), file=sys.stderr)
sys.exit(code)"""


def run(repeat: int, *args: str, code: int | None = 0) -> list[str]:
    """Return the row of the fastest run. `code`: the expected exit code; None: 0 or 1."""
    fastest, peak_mib = float("inf"), 0.0
    for _ in range(repeat):
        began = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", MEASURED, *args], capture_output=True, text=True, check=False)
        fastest = min(fastest, time.perf_counter() - began)
        if done.returncode not in ((0, 1) if code is None else (code,)):
            raise SystemExit(f"effbench {' '.join(args)} ended with {done.returncode}: {done.stderr}")
        peak_mib = int(done.stderr.split()[-1]) / 1024
    command = " ".join(word for word in args if "/" not in word and word != "--db")
    return [command, f"{fastest:.2f}", f"{peak_mib:.0f}"]


def record(path: Path, plan: Plan) -> None:
    """Fill a database like a sweep, trial by trial, with samples of every timer."""
    cells, noise = cells_of(plan), np.random.default_rng(0)
    with Store.open(path, mode="write") as store:
        environment = store.add_environment(environments_of(plan)[0], details={})
        for number in range(plan.sweeps):
            sweep = store.begin_sweep(
                name="nightly", label=f"v{number}", command=[], overrides=[], baseline_mode="eager", seed=number,
                protocol={"name": "standard", "rounds": plan.trials}, git_revision=None, host={}, plan=cells,
                rounds=plan.trials,
            )  # fmt: skip
            for turn in range(plan.trials):
                for cell in cells:
                    taken = noise.lognormal(0, 0.01, SAMPLES).tolist()
                    figures = {"latency_ms": float(np.median(taken)), "latency_samples": SAMPLES, "period_ms": 1.0}
                    trial = Trial(cell.key, turn, Status.OK, samples=dict.fromkeys(TIMERS, taken), **figures)
                    store.record(sweep, environment, trial)
            store.finish_sweep(sweep, "completed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--sweeps", type=int, default=200, help="number of sweeps in the history")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", choices=["read", "check", "history", "transfer"], action="append")
    args = parser.parse_args()
    wanted = args.only or ["read", "check", "history", "transfer"]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        checked, long, carried, into = (str(Path(folder) / f"{name}.db") for name in ("checked", "long", "from", "to"))
        if {"read", "check"} & set(wanted):
            fill(checked, Plan(args.cells, CHECKED.sweeps, with_trials=True))
        if "read" in wanted:
            for words in (["--help"], ["ls", "--db", checked], ["show", "--db", checked]):
                rows.append(run(args.repeat, *words))
        if "check" in wanted:
            with Store.open(checked, mode="write") as store:
                store.set_baseline("main", store.sweeps()[1].id)
            # the check fails, because synthetic sweeps differ by noise and a change of torch
            words = ["check", "--baseline", "main", "--db", checked]
            rows += [run(args.repeat, *words, code=1), run(args.repeat, *words, "--format", "json", code=1)]
        if "history" in wanted:
            fill(long, Plan(args.cells, args.sweeps))
            rows += [run(args.repeat, "history", "--db", long, *more) for more in ([], ["--metric", "latency_ms"])]
        if "transfer" in wanted:
            record(Path(carried), CARRIED)
            out = str(Path(folder) / "sweeps.db")
            rows.append(run(1, "export", "--whole", "--db", carried, "--out", out))
            rows += [run(1, "import", out, "--db", into) for _ in range(2)]  # the second import adds nothing
    print(tables.render(["command", "seconds", "peak MiB"], rows))


if __name__ == "__main__":
    main()
