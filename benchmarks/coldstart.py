"""Does `phase=coldstart` take as long as a script by hand, and do its parts add up?

    python benchmarks/coldstart.py [--networks gpt2,mlp] [--modes eager,default]
        [--caches none,folder,bundle] [--runs 3] [--db coldstart.db] [SETTING ...]

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
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import torch

import effbench
from effbench.core.cell import Result
from effbench.store import Store

ON_CUDA = torch.cuda.is_available()


@dataclass(frozen=True)
class Network:
    """A network of conf/model. `inputs`: shape at batch size 1, and type."""

    target: str
    arguments: dict[str, int]
    inputs: list[tuple[list[int], str]]


TOKEN: list[tuple[list[int], str]] = [([1, 1], "int64"), ([1], "int64")]
LARGE = {
    "mlp": Network("mlp.MLP", {"width": 1024, "depth": 8}, [([1, 1024], "float32")]),
    "gpt2": Network("gpt2.GPT2Decoder", {"max_batch": 1, "layers": 12}, TOKEN),
    "llama-1b-decode": Network(
        "llama.LlamaDecoder",
        {
            "max_batch": 1,
            "layers": 8,
            "width": 2048,
            "heads": 32,
            "kv_heads": 8,
            "ffn": 8192,
            "vocab": 128256,
        },
        TOKEN,
    ),
}
SMALL = {
    "mlp": Network("mlp.MLP", {"width": 256, "depth": 4}, [([1, 256], "float32")]),
    "gpt2": Network(
        "gpt2.GPT2Decoder",
        {"max_batch": 1, "layers": 2, "width": 128, "heads": 4, "vocab": 1024},
        TOKEN,
    ),
    "llama-1b-decode": Network(
        "llama.LlamaDecoder",
        {
            "max_batch": 1,
            "layers": 2,
            "width": 128,
            "heads": 4,
            "kv_heads": 2,
            "ffn": 256,
            "vocab": 1024,
        },
        TOKEN,
    ),
}
NETWORKS = LARGE if ON_CUDA else SMALL
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


@dataclass(frozen=True)
class Scripted:
    """The script by hand for a network and a mode. `folder`: of its caches."""

    network: Network
    mode: str
    folder: Path

    def start(self, cache: str, save: bool = False) -> float:
        """Run the script and return the seconds up to its answer."""
        live = self.folder / "live"
        shutil.rmtree(live, ignore_errors=True)
        if cache == "folder":
            shutil.copytree(self.folder / "made", live)
        bundle = self.folder / "bundle"
        case = {
            "mode": self.mode,
            "bundle": str(bundle) if cache == "bundle" else None,
            "save": str(bundle) if save else None,
            "target": f"effbench.models.{self.network.target}",
            "arguments": self.network.arguments,
            "inputs": self.network.inputs,
        }
        path = self.folder / "case.json"
        path.write_text(json.dumps(case))
        script = self.folder / "script.py"
        script.write_text(SCRIPT)
        variables = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": str(live / "inductor"),
            "TRITON_CACHE_DIR": str(live / "triton"),
        }
        began_s = time.monotonic()
        done = subprocess.run(
            [sys.executable, str(script), str(path)],
            env=variables,
            text=True,
            stdout=subprocess.PIPE,
            check=True,
        )
        answered_s = float(done.stdout.split("answered ")[1].split()[0])
        if save:
            shutil.copytree(live, self.folder / "made")
        return answered_s - began_s


def by_effbench(args: argparse.Namespace, network: str, number: int) -> list[Result]:
    """Measure the cells of a network once and return their results."""
    name = f"coldstart-{network}-{number}"
    words = [f"model={network}", "bs=1", "phase=coldstart", f"mode={args.modes}"]
    words += [f"model.module.{key}={value}" for key, value in NETWORKS[network].arguments.items()]
    words += [f"cache={args.caches}", f"db={args.db}", f"sweep.name={name}", "protocol=quick"]
    effbench.sweep([*words, "on_failure=ignore", *args.settings])
    with Store.open(args.db, mode="read") as store:
        return store.results(store.find_sweep(name).id)


def parts_s(result: Result) -> float:
    """Return the sum of a cold start's parts."""
    names = [name for name in vars(result) if name.startswith("cold_") and name.endswith("_s")]
    return sum(getattr(result, name) or 0.0 for name in names if name != "cold_s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", default="gpt2,mlp")
    parser.add_argument("--modes", default="eager,default")
    parser.add_argument("--caches", default="none,folder,bundle")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--db", default="coldstart.db")
    parser.add_argument("settings", nargs="*")
    args = parser.parse_args()
    worst = 0.0
    print("| network, mode, cache | script, s | effbench, s | ratio | parts ÷ whole - 1 |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for network in args.networks.split(","):
        scripted = defaultdict(list)
        measured = defaultdict(list)
        sums = defaultdict(list)
        with tempfile.TemporaryDirectory() as folder:
            scripts = {}
            for mode in args.modes.split(","):
                place = Path(folder, mode)
                place.mkdir()
                scripts[mode] = Scripted(NETWORKS[network], mode, place)
                scripts[mode].start("none", save=mode != "eager")
            for number in range(args.runs):
                for result in by_effbench(args, network, number):
                    if result.cold_s is None:
                        continue
                    cache = str(result.params["cache"])
                    key = (result.mode, cache)
                    measured[key].append(result.cold_s)
                    sums[key].append(parts_s(result) / result.cold_s - 1)
                    scripted[key].append(scripts[result.mode].start(cache))
        for key, seconds in measured.items():
            by_hand = statistics.median(scripted[key])
            ours = statistics.median(seconds)
            gap = max(sums[key], key=abs)
            worst = max(worst, abs(gap))
            label = f"{network}, {', '.join(key)}"
            print(
                f"| {label} | {by_hand:.2f} | {ours:.2f} | {ours / by_hand:.3f} | {gap:+.3f} |",
                flush=True,
            )
    return int(worst > CLOSE)


if __name__ == "__main__":
    raise SystemExit(main())
