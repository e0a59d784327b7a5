"""Does `phase=coldstart` take as long as a script by hand, and do its parts add up?

    python benchmarks/coldstart.py [--runs 3] [SETTING ...]

The script by hand is what users write: it imports torch, builds the network, compiles it and calls
it once; the clock of the process that starts it runs from before its start to its answer. For each
network it runs with no cache, with Inductor's folder and with a bundle, in turn with the same cells
of effbench. Prints the median seconds of both and their ratio, and by how much the sum of the parts
differs from the whole. Exits with 1 if a sum is off by more than 3 %.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

import effbench
from effbench.core.cell import Result
from effbench.core.metrics import COLD_PARTS
from effbench.store import Store


@dataclass(frozen=True)
class Network:
    """A network of conf/model. `inputs`: shape at batch size 1, and type."""

    name: str
    target: str
    arguments: dict[str, int]
    inputs: list[tuple[list[int], str]]


MLP_SIZES = {"width": 256, "depth": 4}
GPT2_SIZES = {"layers": 2, "width": 128, "heads": 4, "vocab": 1024}
if torch.cuda.is_available():
    MLP_SIZES = {"width": 1024, "depth": 8}
    GPT2_SIZES = {"layers": 12}
NETWORKS = (
    Network(
        "gpt2",
        "effbench.models.gpt2.GPT2Decoder",
        {"max_batch": 1, **GPT2_SIZES},
        [([1, 1], "int64"), ([1], "int64")],
    ),
    Network(
        "mlp",
        "effbench.models.mlp.MLP",
        MLP_SIZES,
        [([1, MLP_SIZES["width"]], "float32")],
    ),
)
MODES = ("eager", "default")
SETTINGS = (
    "bs=1",
    "phase=coldstart",
    f"mode={','.join(MODES)}",
    "cache=none,folder,bundle",
    "protocol=quick",
    "on_failure=ignore",
    "db=coldstart.db",
)
#: Largest relative difference between the sum of the parts and the whole.
CLOSE = 0.03

SCRIPT = """
import json, sys, time
import torch
case = json.load(open(sys.argv[1]))
if case["bundle"]:
    torch.compiler.load_cache_artifacts(open(case["bundle"], "rb").read())
from importlib import import_module
where, name = case["target"].rsplit(".", 1)
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = torch.bfloat16 if device == "cuda" else torch.float32
module = getattr(import_module(where), name)(**case["arguments"]).to(device, dtype).eval()
args = []
for shape, kind in case["inputs"]:
    value = torch.zeros(shape, dtype=getattr(torch, kind), device=device)
    args.append(value.to(dtype) if kind == "float32" else value)
step = module
if case["mode"] != "eager":
    step = torch.compile(module, mode=case["mode"])
with torch.inference_mode():
    step(*args)
    if device == "cuda":
        torch.cuda.synchronize()
print("answered", time.monotonic(), flush=True)
if case["save"]:
    data, _ = torch.compiler.save_cache_artifacts()
    open(case["save"], "wb").write(data)
"""


class Script:
    """The script by hand for a network and a mode. `folder`: of its caches."""

    def __init__(self, network: Network, mode: str, folder: Path) -> None:
        self.network = network
        self.mode = mode
        self.live = folder / "live"
        self.made = folder / "made"
        self.bundle = str(folder / "bundle")
        self.case = folder / "case.json"
        self.file = folder / "script.py"
        folder.mkdir()
        self.file.write_text(SCRIPT)

    def prepare(self) -> None:
        """Run once, so that files are in memory, and keep the caches that later starts may use."""
        if self.mode == "eager":
            self._run()
        else:
            self._run(save=self.bundle)
            shutil.copytree(self.live, self.made)

    def start(self, cache: str) -> float:
        """Run the script with a cache and return the seconds up to its answer."""
        shutil.rmtree(self.live, ignore_errors=True)
        if cache == "folder":
            shutil.copytree(self.made, self.live)
        if cache == "bundle":
            return self._run(bundle=self.bundle)
        return self._run()

    def _run(self, bundle: str | None = None, save: str | None = None) -> float:
        case: dict[str, Any] = {
            "mode": self.mode,
            "bundle": bundle,
            "save": save,
            "target": self.network.target,
            "arguments": self.network.arguments,
            "inputs": self.network.inputs,
        }
        self.case.write_text(json.dumps(case))
        caches = {
            "TORCHINDUCTOR_CACHE_DIR": str(self.live / "inductor"),
            "TRITON_CACHE_DIR": str(self.live / "triton"),
        }
        command = [sys.executable, str(self.file), str(self.case)]
        began_s = time.monotonic()
        done = subprocess.run(
            command, env=os.environ | caches, text=True, stdout=subprocess.PIPE, check=True
        )
        answered_s = float(done.stdout.split("answered ")[1].split()[0])
        return answered_s - began_s


@dataclass
class Starts:
    """The starts of a cell: the seconds of the script and of effbench, and by how much the sum of
    effbench's parts differs from the whole."""

    script_s: list[float] = field(default_factory=list)
    effbench_s: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    def add(self, result: Result, script_s: float) -> None:
        parts_s = [getattr(result, name) or 0.0 for name in COLD_PARTS]
        self.script_s.append(script_s)
        self.effbench_s.append(result.cold_s)
        self.gaps.append(sum(parts_s) / result.cold_s - 1)

    @property
    def largest_gap(self) -> float:
        return max(self.gaps, key=abs)


def results_of(network: Network, settings: Sequence[str]) -> list[Result]:
    """Measure the cells of a network once and return the results that have a cold start."""
    words = [f"model={network.name}", *SETTINGS]
    words += [f"model.module.{key}={value}" for key, value in network.arguments.items()]
    sweep = effbench.sweep([*words, *settings])
    with Store.open(sweep.db, mode="read") as store:
        return [result for result in store.results(sweep.id) if result.cold_s is not None]


def compare(network: Network, runs: int, settings: Sequence[str]) -> dict[str, Starts]:
    """Return mode and cache -> the starts of effbench and the script, which take turns."""
    starts: dict[str, Starts] = defaultdict(Starts)
    with tempfile.TemporaryDirectory() as folder:
        scripts = {mode: Script(network, mode, Path(folder, mode)) for mode in MODES}
        for script in scripts.values():
            script.prepare()
        for _ in range(runs):
            for result in results_of(network, settings):
                cache = result.params["cache"]
                script_s = scripts[result.mode].start(cache)
                starts[f"{result.mode}, {cache}"].add(result, script_s)
    return starts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("settings", nargs="*", metavar="SETTING")
    args = parser.parse_args()
    worst = 0.0
    print("| network, mode, cache | script, s | effbench, s | ratio | parts ÷ whole - 1 |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for network in NETWORKS:
        for name, starts in compare(network, args.runs, args.settings).items():
            script_s = median(starts.script_s)
            effbench_s = median(starts.effbench_s)
            gap = starts.largest_gap
            worst = max(worst, abs(gap))
            seconds = f"{script_s:.2f} | {effbench_s:.2f} | {effbench_s / script_s:.3f}"
            print(f"| {network.name}, {name} | {seconds} | {gap:+.3f} |", flush=True)
    return int(worst > CLOSE)


if __name__ == "__main__":
    raise SystemExit(main())
