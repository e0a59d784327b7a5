"""Modules that two processes share: the same outputs and training steps as on one device.

All cases run in the same two processes, which are forked once; the tests look at what both found.
"""

import importlib
import os
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
from own_cells import cpu_cell, target_of
from torch import distributed, nn
from torch.distributed.tensor.debug import CommDebugMode

from effbench.core.cell import Status, Trial
from effbench.core.errors import UnsupportedError
from effbench.core.parallel import Parallel
from effbench.models.attention import AttentionBlock
from effbench.models.build import build_module
from effbench.models.gpt2 import GPT2Decoder
from effbench.models.llama import LlamaDecoder, LlamaPrefill
from effbench.models.mlp import MLP, LinearStack
from effbench.models.moe import MoEDecoder
from effbench.models.parallel import repeated_blocks, split
from effbench.models.spec import parse_inputs
from effbench.models.swiglu import SwiGLUStack
from effbench.modes.base import Example, Prepared
from effbench.modes.compiled import Compiled
from effbench.modes.eager import Eager
from effbench.modes.exported import AotInductor
from effbench.workloads import state
from effbench.workloads.base import copies
from effbench.workloads.endings import Ended
from effbench.workloads.select import workload_of

RANKS = 2
TP, DDP, FSDP = "tp2", "ddp2", "fsdp2"
SIZES = {"layers": 2, "width": 32, "heads": 4, "vocab": 54}
CACHE = SIZES | {"max_batch": 3, "max_seq": 24, "context": 9}
GROUPED = {"kv_heads": 2, "ffn": 48}
TRAINING = {
    "optimizer": "adam",
    "implementation": "for-loop",
    "lr": 1e-3,
    "set_to_none": True,
    "loss": "mean-square",
}
CONFIGURATIONS = {
    "qwen3": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 54,
        "tie_word_embeddings": True,
    },
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 54},
}
CPU = torch.device("cpu")
ROWS = torch.linspace(-1, 1, 48).view(3, 16)
TOKENS = torch.arange(24).view(3, 8)
DECODE = (TOKENS[:, :1], torch.tensor([9]))


class Planned(nn.Module):
    """Two layers with a plan of their own. `second`: the style of the second one."""

    def __init__(self, second="rowwise"):
        super().__init__()
        self.first = nn.Linear(16, 240)
        self.second = nn.Linear(240, 16)
        self.style = second

    def forward(self, x):
        return self.second(self.first(x).relu())

    def tensor_parallel_plan(self):
        from torch.distributed.tensor.parallel import ColwiseParallel

        return {"first": ColwiseParallel(), "second": self.style}


class Counting(Planned):
    """It changes a buffer that stays whole, and its outputs depend on it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * self.calls


class Wrong(Planned):
    """Its outputs depend on how many features a rank has."""

    def forward(self, x):
        hidden = self.first(x).relu()
        return self.second(hidden * hidden.shape[-1])


class Traced(Eager):
    """Compiled without Inductor, which takes longer."""

    compiles = True

    def prepare(self, module, example):
        return Prepared(torch.compile(module, backend="aot_eager"), module=module)


class Blocks(nn.Module):
    """Blocks, a batch norm, and a parameter that gets no gradient."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.norm = nn.BatchNorm1d(16)
        self.unused = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x).relu()
        return self.norm(x)


@dataclass(frozen=True)
class ModelCase:
    """What makes a module, its settings, and the inputs of a call."""

    make: Callable[..., nn.Module]
    settings: dict[str, Any]
    inputs: tuple[torch.Tensor, ...]

    def build(self):
        torch.manual_seed(0)
        return self.make(**self.settings).eval()

    def call(self, step):
        if self.settings.get("task") == "prefill":
            return step(input_ids=self.inputs[0])
        return step(*self.inputs)


def transformers(arch="qwen3", **settings):
    """A small network of transformers."""
    from effbench.models.libraries.transformers import network

    return network(arch, seq=8, max_batch=3, config=CONFIGURATIONS[arch], **settings)


SEQUENCES = torch.linspace(-40, 40, 768).sin().view(3, 8, 32)
LAST = torch.tensor([7])
MODELS = {
    "mlp": ModelCase(MLP, {"width": 16, "depth": 4}, (ROWS,)),
    "mlp of odd depth": ModelCase(LinearStack, {"sizes": (16, 32, 64, 32)}, (ROWS,)),
    "swiglu": ModelCase(SwiGLUStack, {"width": 16, "depth": 2, "ffn": 24}, (ROWS,)),
    "attention": ModelCase(AttentionBlock, {"width": 32, "heads": 4, "mlp_ratio": 4}, (SEQUENCES,)),
    "llama decode": ModelCase(LlamaDecoder, CACHE | GROUPED, DECODE),
    "llama prefill": ModelCase(LlamaPrefill, SIZES | GROUPED | {"seq": 8}, (TOKENS,)),
    "gpt2": ModelCase(GPT2Decoder, CACHE, DECODE),
    "own plan": ModelCase(Planned, {}, (ROWS,)),
    "transformers prefill": ModelCase(transformers, {"task": "prefill"}, (TOKENS,)),
    "transformers decode": ModelCase(transformers, {"task": "decode"}, (TOKENS[:, :1], LAST)),
}
UNSUPPORTED = {
    "no tensor parallel plan: give it a method": ModelCase(Blocks, {}, (ROWS,)),
    "transformers has no tensor parallel plan for gpt2": ModelCase(
        transformers, {"arch": "gpt2", "task": "prefill"}, (TOKENS,)
    ),
    "equally many of 1 heads": ModelCase(LlamaDecoder, CACHE | GROUPED | {"kv_heads": 1}, DECODE),
    "[15, 16] of layers.0 cannot be split into 2": ModelCase(
        LinearStack, {"sizes": (16, 15, 16)}, (ROWS,)
    ),
    "no style for a mixture of experts": ModelCase(MoEDecoder, CACHE | GROUPED, DECODE),
    "the style 'diagonal', which torch lacks": ModelCase(Planned, {"second": "diagonal"}, (ROWS,)),
}


# --- what the ranks do


def bytes_of(module):
    """Bytes of the module's parameters and buffers on this rank."""
    tensors = set(module.parameters()) | set(module.buffers())
    return sum(state.local(tensor).untyped_storage().nbytes() for tensor in tensors)


@dataclass(frozen=True)
class Called:
    """What calls of a split module have shown: the type of the output and its greatest error, the
    fraction of the module that the rank holds, how many collectives of each kind eager mode makes,
    and whether the embedding and the head are the same."""

    kind: type
    rel_error: float
    fraction: float
    collectives: dict[str, int]
    is_tied: bool


def call(case, backend=None):
    """Split a module, and call it without gradients."""
    module = case.build()
    before = bytes_of(module)
    with torch.no_grad():
        whole = case.call(module).clone()
    split(module, Parallel.parse(TP), CPU)
    step = module
    if backend is not None:
        step = torch.compile(module, backend=backend)
    communication = CommDebugMode()
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        case.call(step)
        with communication if backend is None else nullcontext():
            output = case.call(step)
    collectives = {str(name): count for name, count in communication.get_comm_counts().items()}
    error = float((output - whole).abs().max() / whole.abs().max())
    names = [name for name, _ in module.named_parameters()]
    is_tied = "tokens.weight" in names and "head.weight" not in names
    return Called(type(output), error, bytes_of(module) / before, collectives, is_tied)


def workload_with(kind, parallel, mode, **more):
    """The workload of a module, split after its reference was taken, and prepared."""
    phase = "inference"
    if parallel != TP:
        phase = "training"
        more["training"] = TRAINING
    model = {
        "name": "m",
        "module": {"_target_": target_of(kind)},
        "tolerance": more.pop("tolerance", None),
    }
    cell = cpu_cell(3, model, phase=phase, numerics={"seed": 5}, parallel=parallel, **more)
    module = build_module(model["module"], torch.float32, CPU, 5)
    trial = Trial(cell.key, 0, Status.OK)
    specs = parse_inputs({"x": {"shape": [16]}})
    made = workload_of(cell)(cell, mode, module, trial, specs, check_steps=3)
    made.make_inputs(2)
    made.take_reference()
    made.split(Parallel.parse(parallel))
    args, kwargs = copies(made.inputs.checked[0])
    made.prepare(Example(args, kwargs, made.batch()))
    made.step(*args, **kwargs)
    return made


def check(kind, parallel, mode=Eager, **more):
    """Check the calls of a module that is split, and return what the trial recorded."""
    made = workload_with(kind, parallel, mode(), **more)
    with made.context():
        made.check()
    made.trial.extra["graphs"] = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    made.trial.flops = made.count_flops(*made.inputs.checked[0])
    return made.trial


def gradients_in_float64():
    """Eager's gradients of a module that is split, and those in float64 of one that is not."""
    made = workload_with(Blocks, FSDP, Eager())
    start = {name.path: value for name, value in made.initial.items() if name.kind != "attribute"}
    exact = made.unsplit().exact(start, 0).gradients
    return {name: (value, exact[name]) for name, value in made.reference.first.items()}


CHECKED = {
    "tp": partial(check, Counting, TP),
    "ddp": partial(check, Blocks, DDP),
    "fsdp": partial(check, Blocks, FSDP),
}
COMPILED = {"compiled mlp": partial(call, MODELS["mlp"], "aot_eager")}
SLOW = {
    **{name: partial(call, case, "inductor") for name, case in MODELS.items()},
    "traced ddp": partial(check, Blocks, DDP, Traced),
    "compiled fsdp": partial(check, Blocks, FSDP, Compiled),
}
CASES: dict[str, Callable[[], Any]] = {
    **{name: partial(call, case) for name, case in (MODELS | UNSUPPORTED).items()},
    **CHECKED,
    **COMPILED,
    "doubtful": partial(check, Counting, TP, tolerance=1e-12),
    "gradients": gradients_in_float64,
    "wrong": partial(check, Wrong, TP),
}


def attempt(case):
    """Return what a case returns, or the error that it raises."""
    try:
        return case()
    except (UnsupportedError, Ended) as error:
        return str(error)
    except Exception:
        return traceback.format_exc()


def fork_rank(rank, folder, cases):
    """Run the cases in a new process, which writes what it has found to a file of the folder."""
    process = os.fork()
    if process:
        return process
    try:
        torch.set_num_threads(1)
        distributed.init_process_group(
            "gloo",
            store=distributed.FileStore(str(folder / "store"), RANKS),
            rank=rank,
            world_size=RANKS,
            timeout=timedelta(seconds=100),
        )
        results = {}
        for name, case in cases.items():
            results[name] = attempt(case)
            torch._dynamo.reset()
            torch._dynamo.utils.counters.clear()
        torch.save(results, folder / str(rank))
    finally:
        os._exit(0)


def fork_ranks(folder, cases):
    """Run the cases in a new process for each rank."""
    importlib.import_module("effbench.models.libraries.transformers")
    for process in [fork_rank(rank, folder, cases) for rank in range(RANKS)]:
        os.waitpid(process, 0)


def run_ranks(folder, cases):
    """Return what each rank has found, by case. `cases`: the name of a dictionary above. Ranks
    begin in a process without threads, which a backward pass or a compilation leaves behind."""
    code = (
        f"import pathlib, {__name__} as test\n"
        f"test.fork_ranks(pathlib.Path({str(folder)!r}), test.{cases})"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    return [torch.load(folder / str(rank), weights_only=False) for rank in range(RANKS)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return run_ranks(tmp_path_factory.mktemp("ranks"), "CASES")


# --- what they have found


@pytest.mark.parametrize("name", [*MODELS, *COMPILED])
def test_outputs_equal_those_of_the_whole_module(ranks, name):
    for outcome in ranks:
        assert isinstance(outcome[name], Called), outcome[name]
        assert outcome[name].rel_error < 1e-6
        assert outcome[name].kind is torch.Tensor


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    return run_ranks(tmp_path_factory.mktemp("compiled"), "SLOW")


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_compiled_outputs_equal_those_of_the_whole_module(compiled, name):
    for outcome in compiled:
        assert isinstance(outcome[name], Called | Trial), outcome[name]
        assert outcome[name].rel_error < 1e-6


@pytest.mark.slow
def test_blocks_are_compiled_without_the_hooks_of_fsdp(compiled):
    # the blocks, and the module around them
    assert compiled[0]["compiled fsdp"].extra["graphs"] >= 2


@pytest.mark.parametrize("name", MODELS)
def test_a_rank_has_its_part_of_the_weights(ranks, name):
    for outcome in ranks:
        assert outcome[name].fraction < 0.6


@pytest.mark.parametrize(
    ("name", "reduced", "gathered"),
    [("mlp", 2, 0), ("mlp of odd depth", 1, 1), ("llama decode", 5, 1), ("gpt2", 4, 0)],
)
def test_a_call_adds_up_once_for_each_pair_of_layers(ranks, name, reduced, gathered):
    counted = {"c10d_functional.all_reduce": reduced}
    if gathered:
        counted["c10d_functional.all_gather_into_tensor"] = gathered
    assert ranks[0][name].collectives == counted


def test_tied_weights_stay_tied(ranks):
    assert ranks[0]["llama decode"].is_tied


@pytest.mark.parametrize("reason", UNSUPPORTED)
def test_a_network_that_cannot_be_split(ranks, reason):
    for outcome in ranks:
        assert reason in outcome[reason]


@pytest.mark.parametrize("name", CHECKED)
def test_a_workload_of_a_split_module(ranks, name):
    for outcome in ranks:
        assert outcome[name].rel_error < 1e-6


def test_float64_judges_by_a_module_that_is_not_split(ranks):
    for outcome in ranks:
        assert 0 < outcome["doubtful"].rel_error < 1e-6
        assert outcome["doubtful"].extra["grad_mode"] == "no_grad"
        for eager, exact in outcome["gradients"].values():
            torch.testing.assert_close(eager.double(), exact, rtol=1e-4, atol=1e-5)


def test_a_wrong_split_is_seen(ranks):
    for outcome in ranks:
        assert outcome["wrong"].startswith("output differs from eager")


def test_a_rank_counts_its_own_flops(ranks):
    whole = 2 * 3 * (16 * 240 + 240 * 16)
    assert ranks[0]["doubtful"].flops == whole / RANKS


# --- without ranks


def test_the_repeated_blocks_are_sharded():
    net = nn.Sequential(Blocks(), Blocks(), nn.ReLU(), nn.ReLU(), nn.Linear(2, 2))
    assert list(repeated_blocks(net)) == [net[0], net[1]]
    assert list(repeated_blocks(net[0])) == list(net[0].blocks)


@pytest.mark.parametrize(
    ("parallel", "more", "reason"),
    [
        (TP, {"phase": "training"}, "parallel=tp2 supports phase=inference, not phase=training"),
        (TP, {"phase": "generate"}, "parallel=tp2 supports phase=inference, not phase=generate"),
        (DDP, {}, "parallel=ddp2 supports phase=training, not phase=inference"),
        (FSDP, {}, "parallel=fsdp2 supports phase=training, not phase=inference"),
        (TP, {"stream": {"sizes": [1, 2]}}, "parallel=tp2 does not support streams"),
        (TP, {"numerics": {"quantize": "float8"}}, "parallel=tp2 does not support numerics"),
        (None, {"phase": "generate"}, None),
        (TP, {}, None),
        (FSDP, {"phase": "training"}, None),
    ],
)
def test_what_can_be_split(parallel, more, reason):
    cell = cpu_cell(parallel=parallel, **more)
    unsupported = workload_of(cell).unsupported(cell, Eager())
    assert unsupported is reason is None or unsupported.startswith(reason)


@pytest.mark.parametrize("mode", [AotInductor(), Compiled(regional=True)])
def test_modes_that_do_not_support_ranks(mode):
    cell = cpu_cell(parallel=TP)
    assert "does not support parallel=tp2" in workload_of(cell).unsupported(cell, mode)
