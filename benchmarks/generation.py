"""Compare phase=generate with transformers' own `generate`: whether the tokens are the same, and
tokens per second.

    python benchmarks/generation.py [gpt2 llama-1b ...] [--sides eager,cuda-graph,transformers]
        [--tokens 128] [--rounds 5]

Both generate greedily with a static cache, the same random weights and prompt. Each row has a
process of its own, in which transformers in eager mode and the row's side take turns. A side is a
mode, or `transformers`: as it compiles its own step on a GPU. The output has the median of the
rounds' ratios of tokens per second, and the number of tokens before the first difference. With
random weights, near ties are common, which compiled kernels resolve in other ways.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from statistics import median

import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from effbench.core.cell import Cell, Status, Trial, mode_settings
from effbench.core.printable import one_line
from effbench.core.settings import shipped
from effbench.core.table import Column, Record, Table
from effbench.models.build import build_module, resolve_target
from effbench.models.spec import parse_inputs
from effbench.modes.base import Example
from effbench.workloads.generation import Generation

COMPILED = "transformers"
SIDES = f"eager,default,reduce-overhead,cuda-graph,{COMPILED}"
#: Tokens of the prompt.
PROMPT = 128
#: Calls to compile and warm up.
WARM_CALLS = 3
COLUMNS = [
    Column("network"),
    Column("side"),
    Column("transformers, eager: tokens/s"),
    Column("side: tokens/s"),
    Column("ratio"),
    Column("same tokens"),
]

#: A function of a prompt [1, P] that returns the new tokens [1, N].
Generate = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """A row of the table: a network and a side, which is a mode or COMPILED."""

    arch: str
    side: str
    new_tokens: int
    rounds: int
    device: str
    dtype: str

    @property
    def title(self) -> str:
        if self.side == COMPILED:
            return "transformers, compiled"
        return f"effbench, {self.side}"

    def build(self) -> nn.Module:
        target = {
            "_target_": "effbench.models.libraries.network",
            "library": "transformers",
            "arch": self.arch,
            "task": "decode",
            "seq": PROMPT + self.new_tokens,
            "max_batch": 1,
            # with a tied head an untrained network repeats its last token
            "config": {"tie_word_embeddings": False, "eos_token_id": None},
        }
        return build_module(target, getattr(torch, self.dtype), self.device, seed=0)

    def by_transformers(self, module: nn.Module, *, is_compiled: bool) -> Generate:
        def generate(prompt: Tensor) -> Tensor:
            tokens = module.model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=False,
                cache_implementation="static",
                pad_token_id=0,
                disable_compile=not is_compiled,
                max_new_tokens=self.new_tokens,
            )
            return tokens[:, prompt.shape[1] :]

        return generate

    def by_effbench(self, module: nn.Module) -> Generate:
        """Return what generates in the mode that the side names."""
        file = shipped("conf") / "mode" / f"{self.side}.yaml"
        settings = OmegaConf.to_container(OmegaConf.load(file))
        mode = resolve_target(settings["_target_"])(**mode_settings(settings))
        cell = Cell(
            model={"name": self.arch, "module": {}},
            bs=1,
            mode=settings,
            dtype=self.dtype,
            phase="generate",
            device=self.device,
            numerics={"grad_mode": "inference"},
            generate={"prompt": PROMPT, "new_tokens": self.new_tokens},
        )
        trial = Trial(cell.key, 0, Status.OK)
        workload = Generation(cell, mode, module, trial, parse_inputs(module.inputs))
        with workload.context():
            step = workload.prepare(Example(())).step
        return lambda prompt: torch.cat(step(prompt), 1)


@dataclass
class TimedSide:
    """A side, its tokens [1, N], and the seconds of each request."""

    generate: Generate
    tokens: Tensor | None = None
    seconds: list[float] = field(default_factory=list)

    def call(self, prompt: Tensor) -> None:
        began_s = time.perf_counter()
        with torch.inference_mode():
            self.tokens = self.generate(prompt).cpu()
        self.seconds.append(time.perf_counter() - began_s)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens.numel() / median(self.seconds)


def compare(case: Case) -> Record:
    """Return a row of the table."""
    module = case.build()
    reference = TimedSide(case.by_transformers(module, is_compiled=False))
    if case.side == COMPILED:
        side = TimedSide(case.by_transformers(module, is_compiled=True))
    else:
        side = TimedSide(case.by_effbench(module))
    prompt = torch.randint(0, 1000, (1, PROMPT), device=case.device)
    for _ in range(WARM_CALLS + case.rounds):
        reference.call(prompt)
        side.call(prompt)
    del reference.seconds[:WARM_CALLS], side.seconds[:WARM_CALLS]
    pairs = zip(reference.seconds, side.seconds, strict=True)
    ratios = [reference_s / side_s for reference_s, side_s in pairs]
    is_same = torch.eq(reference.tokens, side.tokens).int()
    same = int(is_same.cumprod(1).sum())
    return {
        "network": case.arch,
        "side": case.title,
        "transformers, eager: tokens/s": f"{reference.tokens_per_s:.0f}",
        "side: tokens/s": f"{side.tokens_per_s:.0f}",
        "ratio": f"{median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})",
        "same tokens": f"{same} of {case.new_tokens}",
    }


def compare_in_process(case: Case) -> Record:
    """Compare in a process of its own. A failure, such as a CUDA error, must not lose the other
    rows."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        row = process.submit(compare, case)
    failure = row.exception()
    if failure is None:
        return row.result()
    message = f"failed: {one_line(failure, 80)}"
    return {"network": case.arch, "side": case.title, "same tokens": message}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("archs", nargs="*", default=["gpt2", "llama-1b"])
    parser.add_argument("--sides", default=SIDES)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    device, dtype = "cpu", "float32"
    if torch.cuda.device_count() > 0:
        device, dtype = "cuda", "bfloat16"
    rows = []
    for arch in args.archs:
        for side in args.sides.split(","):
            case = Case(arch, side, args.tokens, args.rounds, device, dtype)
            row = compare_in_process(case)
            print(" · ".join(row.values()), file=sys.stderr, flush=True)
            rows.append(row)
    name = "CPU"
    if device == "cuda":
        name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}, prompt {PROMPT}, {args.rounds} rounds\n")
    print(Table(COLUMNS, rows).render("markdown"))


if __name__ == "__main__":
    main()
