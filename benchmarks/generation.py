"""Compare phase=generate with transformers' own `generate`: whether the tokens are the same, and
tokens per second.

    python benchmarks/generation.py [gpt2 llama-1b ...] [--sides eager,cuda-graph,transformers]
        [--bs 1] [--prompt 128]

Both generate greedily with a static cache, the same random weights and prompt. Each row has a
process of its own, in which transformers in eager mode and the row's side take turns. A side is a
mode, or `transformers`: as it compiles its own step on a GPU. The output has the median of the
rounds' ratios of tokens per second, and the number of tokens before the first difference. With
random weights, near ties are common, which compiled kernels resolve in other ways.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from omegaconf import OmegaConf
from torch import Tensor

from effbench.core.cell import Cell, Status, Trial, mode_settings
from effbench.core.printable import one_line
from effbench.core.settings import shipped
from effbench.core.table import Column, Table
from effbench.models.build import build_module, resolve_target
from effbench.models.spec import parse_inputs
from effbench.modes.base import Example
from effbench.workloads.generation import Generation

COMPILED = "transformers"
Generate = Callable[[Tensor], Tensor]


def sides(
    arch: str, side: str, bs: int, request: dict[str, int], device: str, dtype: str
) -> tuple[Generate, Generate]:
    """Return two functions of a prompt [B, P] that return the new tokens [B, N]: transformers in
    eager mode, and the named side, a mode or COMPILED."""
    settings = {
        "library": "transformers",
        "arch": arch,
        "task": "decode",
        "seq": sum(request.values()),
    }
    # with a tied head an untrained network repeats its last token
    settings |= {"max_batch": bs, "config": {"tie_word_embeddings": False, "eos_token_id": None}}
    target = {"_target_": "effbench.models.libraries.network", **settings}
    module = build_module(target, getattr(torch, dtype), device, seed=0)

    def theirs(prompt: Tensor, compiled: bool = False) -> Tensor:
        options = {"do_sample": False, "cache_implementation": "static", "pad_token_id": 0}
        options |= {"disable_compile": not compiled, "max_new_tokens": request["new_tokens"]}
        return module.model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)[
            :, prompt.shape[1] :
        ]

    if side == COMPILED:
        return theirs, lambda prompt: theirs(prompt, compiled=True)
    given = OmegaConf.to_container(OmegaConf.load(Path(shipped("conf")) / "mode" / f"{side}.yaml"))
    mode = resolve_target(given["_target_"])(**mode_settings(given))
    cell = Cell(
        {"name": arch, "module": {}},
        bs,
        given,
        dtype,
        "generate",
        device,
        numerics={"grad_mode": "inference"},
        generate=request,
    )
    trial = Trial(cell.key, 0, Status.OK)
    workload = Generation(cell, mode, module, trial, parse_inputs(module.inputs))
    with workload.context():
        step = workload.prepare(Example(())).step
    return theirs, lambda prompt: torch.cat(step(prompt), 1)


def compare(arch: str, side: str, bs: int, request: dict[str, int], rounds: int) -> list[str]:
    """Return a row of the table."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = "bfloat16" if device == "cuda" else "float32"
    pair = sides(arch, side, bs, request, device, dtype)
    prompt = torch.randint(0, 1000, (bs, request["prompt"]), device=device)
    seconds, tokens = ([], []), [None, None]
    for number in range(-3, rounds):  # three calls to compile and warm up
        for which, generate in enumerate(pair):
            start = time.perf_counter()
            with torch.inference_mode():
                tokens[which] = generate(prompt).cpu()
            if number >= 0:
                seconds[which].append(time.perf_counter() - start)
    count = bs * request["new_tokens"]
    rates = [count / statistics.median(taken) for taken in seconds]
    ratios = sorted(theirs / ours for theirs, ours in zip(*seconds, strict=True))
    ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})"
    same = int(torch.eq(tokens[0], tokens[1]).int().cumprod(1).sum())
    name = "transformers, compiled" if side == COMPILED else f"effbench, {side}"
    return [arch, name, f"{rates[0]:.0f}", f"{rates[1]:.0f}", ratio, f"{same} of {count}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("archs", nargs="*", default=["gpt2", "llama-1b"])
    parser.add_argument("--sides", default=f"eager,default,reduce-overhead,cuda-graph,{COMPILED}")
    parser.add_argument("--bs", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    request, is_gpu = (
        {"prompt": given.prompt, "new_tokens": given.tokens},
        torch.cuda.device_count() > 0,
    )
    rows = []
    for arch in given.archs:
        for side in given.sides.split(","):
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                row = process.submit(compare, arch, side, given.bs, request, given.rounds)
            failure = row.exception()  # such as a CUDA error, which must not lose the other rows
            rows.append(
                [arch, side, *("—" * 3), f"failed: {one_line(failure, 80)}"]
                if failure
                else row.result()
            )
            print(" · ".join(rows[-1]), file=sys.stderr, flush=True)
    place = torch.cuda.get_device_name() if is_gpu else "CPU"
    print(
        f"{place}, torch {torch.__version__}, bs {given.bs}, prompt {given.prompt},"
        f" {given.rounds} rounds\n"
    )
    headings = [
        "network",
        "side",
        "transformers, eager: tokens/s",
        "side: tokens/s",
        "ratio",
        "same tokens",
    ]
    print(Table.of([*map(Column, headings)], rows).render("markdown"))


if __name__ == "__main__":
    main()
