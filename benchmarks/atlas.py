"""Measure real models at batch sizes 1, 8 and 64 in all modes and bfloat16, in as many runs as that takes.

    python benchmarks/atlas.py --db atlas.db --minutes 25 [overrides]

Each model is a sweep of its own with five rounds and two compilations. The command resumes the sweeps that have begun,
then begins others, in order; after `--minutes` it interrupts the current one. Run it again, on the same kind of GPU,
until it says that all are complete. A compilation with autotuning takes 90 s for a vision transformer, 120 s for
bert-base and minutes for convolutional networks. Thus only language and speech models have `max-autotune`, at batch
size 8 and in sweeps of their own.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time

from effbench.errors import EffbenchError
from effbench.store import Store
from effbench.sweeping.resume import FLAG

COMMON = ["dtype=bfloat16", "protocol=standard", "protocol.budget_s=1", "on_failure=ignore"]
ALWAYS = ["executor.ahead=6"]
MODES = "eager,default,reduce-overhead,cuda-graph"
SIZES = "bs=1,8,64"
CONVOLUTIONS = {
    "torchvision": ["resnet50", "convnext_tiny"],
    "timm": ["mobilenetv3_large_100", "vit_base_patch16_224"],
}
#: Architecture -> tasks.
TRANSFORMERS = {
    "gpt2": ["decode"],
    "bert-base": ["encode"],
    "whisper-tiny": ["logits"],
    "t5-small": ["logits"],
    "llama-1b": ["decode", "prefill"],
    "qwen2-0.5b": ["decode"],
}
MARGIN_S = 30  # the least time that is worth beginning a sweep, and that an interrupted one takes to end


def sweeps() -> dict[str, list[str]]:
    """Return name of a sweep -> its model and modes."""
    found = {
        f"atlas-{arch}": [f"model={library}", f"model.arch={arch}", f"mode={MODES}", SIZES]
        for library, names in CONVOLUTIONS.items()
        for arch in names
    }
    models = [(arch, task) for arch, tasks in TRANSFORMERS.items() for task in tasks]
    for suffix, matrix in (("", [f"mode={MODES}", SIZES]), ("-autotuned", ["mode=eager,max-autotune", "bs=8"])):
        for arch, task in models:
            words = ["model=transformers", f"model.arch={arch}", f"model.task={task}", f"model.name={arch}-{task}"]
            found[f"atlas-{arch}-{task}{suffix}"] = [*words, *matrix]
    return found


def states(db: str) -> dict[str, str]:
    """Return name -> state of the sweeps in the database."""
    try:
        with Store.open(db) as store:
            return {sweep.name: sweep.state for sweep in store.sweeps() if sweep.name}
    except EffbenchError:  # there is no database yet
        return {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--db", required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--only", help="names of sweeps, such as atlas-vit,atlas-resnet50")
    arguments, overrides = parser.parse_known_args()
    until, every, only = time.monotonic() + 60 * arguments.minutes, sweeps(), arguments.only
    wanted = {name: words for name, words in every.items() if not only or name in only.split(",")}
    known = states(arguments.db)
    for name, words in sorted(wanted.items(), key=lambda item: item[0] not in known):
        left = until - time.monotonic() - MARGIN_S
        if known.get(name) == "completed" or left < MARGIN_S:
            continue
        given = {word.partition("=")[0] for word in overrides}
        words = [*(word for word in (*words, *COMMON) if word.partition("=")[0] not in given), *overrides]
        chosen = [f"resume={name}", FLAG] if name in known else [f"sweep.name={name}", *words]
        command = [sys.executable, "-m", "effbench", "-m", *chosen, *ALWAYS, f"db={arguments.db}"]
        with subprocess.Popen(command) as process:
            try:
                process.wait(left)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
    known = states(arguments.db)
    missing = [name for name in wanted if known.get(name) != "completed"]
    print(f"complete: {len(wanted) - len(missing)} of {len(wanted)}; missing: {', '.join(missing) or 'none'}")


if __name__ == "__main__":
    main()
