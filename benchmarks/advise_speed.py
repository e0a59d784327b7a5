"""Compare `effbench advise mode MODEL` with the full matrix in the standard protocol: is the answer the same, and how
long does each take?

    python benchmarks/advise_speed.py tiny mlp bs=8                  # on a GPU if there is one
    python benchmarks/advise_speed.py tiny mode=eager,default device=cpu protocol.host_tolerance=null

    python benchmarks/advise_speed.py timm+model.arch=vit_base_patch16_224 timm+model.arch=mobilenetv3_large_100

Words without an equals sign are models, with overrides of their own after `+`; all others are overrides for every
model. The order of the two sides alternates, and each measures in a database of its own. The answer is the same if the
full matrix's best mode, or one that ties with it, is advised. The times include everything that a user waits for.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from effbench.launcher.adaptive import CANDIDATES


def timed(*words: str) -> tuple[str, float]:
    """Run effbench and return its output and its seconds."""
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "effbench", *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"effbench {' '.join(words)}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout, time.monotonic() - start


def full(model: str, overrides: list[str], folder: Path) -> tuple[dict, float]:
    db = str(folder / f"full-{model}.db")
    modes = [] if any(word.startswith("mode=") for word in overrides) else [f"mode={CANDIDATES}"]
    _, seconds = timed("-m", f"model={model}", *modes, *overrides, f"db={db}", "on_failure=ignore")
    return json.loads(timed("advise", "mode", "--db", db, "--format", "json")[0]), seconds


def short(model: str, overrides: list[str], folder: Path) -> tuple[dict, float]:
    text, seconds = timed(
        "advise", "mode", model, *overrides, "--db", str(folder / f"short-{model}.db"), "--format", "json"
    )
    return json.loads(text), seconds


def main() -> None:
    models = [word for word in sys.argv[1:] if "=" not in word.partition("+")[0]]
    common = [word for word in sys.argv[1:] if word not in models]
    if not models:
        sys.exit(__doc__)
    ratios, same = [], 0
    print("| model | full matrix | best, and ties | advised | slower than best | trials | full s | advice s | ratio |")
    print("|---|---|---|---|---|---|---|---|---|")
    for number, word in enumerate(models):
        model, *own = word.split("+")
        overrides = [*own, *common]
        with tempfile.TemporaryDirectory(prefix="effbench-advise-") as name:
            sides = {}
            for side in (full, short) if number % 2 else (short, full):
                sides[side] = side(model, overrides, Path(name))
        (all_of, full_s), (advice, short_s) = sides[full], sides[short]
        calls = {mode["mode"]: mode["call_ms"] for mode in all_of["modes"]}
        good = [all_of["modes"][0]["mode"], *all_of["too_close_to_call"]]
        is_same = advice["mode"] in good
        loss = calls[advice["mode"]] / min(calls.values()) - 1 if advice["mode"] in calls else math.nan
        trials = [sum(mode["trials"] for mode in answer["modes"]) for answer in (all_of, advice)]
        ratios.append(short_s / full_s)
        same += is_same
        cells = [
            word, "same" if is_same else "different", ", ".join(good), advice["mode"], f"{100 * loss:.1f} %",
            f"{trials[1]} of {trials[0]}", f"{full_s:.0f}", f"{short_s:.0f}", f"{ratios[-1]:.2f}",
        ]  # fmt: skip
        print("|", " | ".join(cells), "|", flush=True)
    mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
    print(f"\nsame answer: {same} of {len(models)} models; time of the advice: {mean:.2f} of the full matrix (mean)")


if __name__ == "__main__":
    main()
