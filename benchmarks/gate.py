"""Does the gate pass an unchanged sweep, and stop one that is slower, fails, or loses its CUDA
graph?

    python benchmarks/gate.py [--db FILE] [SETTING ...]

In a temporary git repository, a sweep of four models of matrix products becomes the baseline. The
same sweep runs again (nothing may alarm). Then it runs on a second revision: one model does 5 %
more products, one raises, and one writes to its input, so that Inductor runs it without a CUDA
graph. `effbench check --confirm` judges both. Settings apply to every sweep
(`device=cpu`). On the CPU there is no graph to lose.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from effbench.core.table import Column, Table

ROOT = Path(__file__).resolve().parents[1]
NETS = """
import torch

PRODUCTS = {products}
FAIL = {fail}
SKIP = {skip}


class Steady(torch.nn.Module):
    def __init__(self, width=1024, products=40):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(width, width) / width**0.5)
        self.products = products

    def forward(self, x):
        for _ in range(self.products):
            x = x @ self.weight
        return x


class Growing(Steady):
    def __init__(self, width=1024):
        super().__init__(width, PRODUCTS)


class Failing(Steady):
    def forward(self, x):
        if FAIL:
            raise ValueError("no such luck")
        return super().forward(x)


class Skipped(Steady):
    def forward(self, x):
        if SKIP:
            x.clamp_(-1e9, 1e9)  # the same values again
        return super().forward(x)
"""
MODELS = ("Steady", "Growing", "Failing", "Skipped")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--db", help="keep the database in this file")
    parser.add_argument("settings", nargs="*", metavar="SETTING")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        db = Path(args.db or f"{folder}/gate.db").absolute()
        rows = scenario(Path(folder), str(db), args.settings)
    print(Table.of([*map(Column, ("step", "seconds", "exit", "alarms"))], rows).render("markdown"))


def scenario(folder: Path, db: str, settings: list[str]) -> list[list[str]]:
    on_cpu = "device=cpu" in settings
    width, batch = (64, 4) if on_cpu else (2048, 2048)
    modes = "eager,default" if on_cpu else "eager,reduce-overhead"
    targets = ",".join(f"nets.py:{name}" for name in MODELS)
    sweep = [
        "-m",
        "model=custom",
        f"model.module._target_={targets}",
        f"model.module.width={width}",
        f"model.inputs.x.shape=[{width}]",
        f"bs={batch}",
        f"mode={modes}",
        "on_failure=ignore",
        f"db={db}",
        *settings,
    ]
    git(folder, "init", "-q")
    (folder / ".gitignore").write_text("__pycache__\n")
    write(folder, 40, False, False)
    rows = [step(folder, "baseline", sweep, db)]
    run(folder, "baseline", "set", "main", "last", "--db", db)
    rows.append(step(folder, "unchanged", sweep, db, check=True))
    write(folder, 42, True, not on_cpu)
    rows.append(
        step(
            folder,
            "one with 5 % more work, one failing, one without its graph",
            sweep,
            db,
            check=True,
        )
    )
    return rows


def step(folder: Path, title: str, sweep: list[str], db: str, check: bool = False) -> list[str]:
    """Run a sweep and the gate; return title, seconds, exit code and alarms."""
    start = time.monotonic()
    run(folder, *sweep)
    code, alarmed = 0, "–"
    if check:
        out = folder / ".git" / "check.json"
        words = [
            "check",
            "--baseline",
            "main",
            "--confirm",
            "--db",
            db,
            "--format",
            "json",
            "--out",
            str(out),
        ]
        code = run(folder, *words, allowed=(0, 1))
        changes = json.loads(out.read_text())["changes"]
        facts = [
            [row["cell"], row["metric"], row["verdict"], row["reason"] or ""]
            for row in changes
            if row["gates"]
        ]
        unsure = [row for row in changes if "not confirmed" in (row["reason"] or "")]
        alarmed = "; ".join(map(" ".join, facts)) or "none"
        alarmed += f" ({len(unsure)} not confirmed)" if unsure else ""
    return [title, f"{time.monotonic() - start:.0f}", str(code), alarmed]


def run(folder: Path, *words: str, allowed: tuple[int, ...] = (0,)) -> int:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "effbench", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
    )
    if done.returncode not in allowed:
        raise SystemExit(f"effbench {' '.join(words)}: exit code {done.returncode}")
    return done.returncode


def write(folder: Path, products: int, fail: bool, skip: bool) -> None:
    (folder / "nets.py").write_text(NETS.format(products=products, fail=fail, skip=skip))
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", f"{products} products")


def git(folder: Path, *args: str) -> None:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *args], check=True)


if __name__ == "__main__":
    main()
