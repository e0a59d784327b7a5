"""What does each way of capturing a model do with its branches and loops?

B batch (rows), D width.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from effbench.claims._processes import in_fresh_process
from effbench.claims._tools import Counting, attempt, close, error_facts, listed
from torch import nn
from torch._dynamo.utils import counters
from torch.fx.experimental.proxy_tensor import make_fx

from effbench.claims import Answer, Claim
from effbench.claims.checks import Facts, check
from effbench.core.printable import first_line

GPU_SECONDS = 40


class Branch(nn.Module):
    """(B, D) -> (B, D); the branch depends on the data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x * 2
        return x - 3


class Where(nn.Module):
    """The same as `Branch` without a branch: compute both sides and select one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.sum() > 0, x * 2, x - 3)


class Loop(nn.Module):
    """(B, D) -> (D); one iteration per row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(x[0])
        for row in range(x.shape[0]):
            total = total * 2 + x[row]
        return total


class BranchAndLoop(nn.Module):
    """(B, D) -> (D)"""

    def __init__(self) -> None:
        super().__init__()
        self.branch = Branch()
        self.loop = Loop()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.loop(self.branch(x))


@check()
def branch(device: torch.device, width: int = 4) -> Facts:
    """Report graphs, graph breaks and the effect of fullgraph=True for a branch on data and for
    torch.where."""
    inputs = (torch.ones(2, width, device=device), -torch.ones(2, width, device=device))
    return {"if": breaks(Branch(), inputs), "where": breaks(Where(), inputs)}


def breaks(module: nn.Module, inputs: Sequence[torch.Tensor]) -> Facts:
    """Return graph breaks of calls with inputs (B, D) from torch._dynamo.explain and from Dynamo's
    counters, which miss a branch on data in the outermost function."""
    torch._dynamo.reset()
    explained = torch._dynamo.explain(module)(inputs[0])
    torch._dynamo.reset()
    backend = Counting()
    compiled = torch.compile(module, backend=backend)
    counted = sum(counters["graph_break"].values())
    right = [close(compiled(x), module(x)) for x in inputs]
    counted = sum(counters["graph_break"].values()) - counted
    torch._dynamo.reset()
    whole = torch.compile(module, backend=Counting(), fullgraph=True)
    tried = attempt(lambda: [whole(x) for x in inputs])
    return {
        "graphs_for_one_input": explained.graph_count,
        "graph_breaks": explained.graph_break_count,
        "graph_breaks_in_the_counters": counted,
        "reasons": [first_line(str(reason.reason)) for reason in explained.break_reasons],
        "graphs_for_both_inputs": len(backend.graphs),
        "outputs_equal_eager": all(right),
        **{f"fullgraph_{key}": value for key, value in tried.facts().items()},
    }


@check()
def methods(device: torch.device, width: int = 2) -> Facts:
    """Capture modules with a branch, a loop and both by jit.trace, jit.script, fx.symbolic_trace,
    make_fx, Dynamo and lazy tensors, with one input, and call the results with this input and
    another."""
    methods = {
        "jit_trace": lambda module, x: torch.jit.trace(module, (x,), check_trace=False),
        "jit_script": lambda module, x: torch.jit.script(module),
        "fx_symbolic_trace": lambda module, x: torch.fx.symbolic_trace(module),
        "make_fx": lambda module, x: make_fx(module)(x),
        "make_fx_symbolic": lambda module, x: make_fx(module, tracing_mode="symbolic")(x),
    }
    facts = {
        name: {case: captured_with(*given, method) for case, given in cases(device, width).items()}
        for name, method in methods.items()
    }
    facts["dynamo"] = {case: through_dynamo(*given) for case, given in cases(device, width).items()}
    # it needs a backend that can be registered only once per process
    facts["lazy_tensors"] = in_fresh_process(lazy_tensors, "cpu", width=width)
    return facts


def cases(device: torch.device, width: int) -> dict[str, tuple[nn.Module, list[torch.Tensor]]]:
    """Return modules, each with two inputs: one for the capture, and one that takes another
    path."""
    two, four = (torch.ones(rows, width, device=device) for rows in (2, 4))
    return {
        "branch": (Branch(), [two, -two]),
        "loop": (Loop(), [two, four]),
        "branch_and_loop": (BranchAndLoop(), [two, -four]),
    }


def captured_with(
    module: nn.Module,
    inputs: Sequence[torch.Tensor],
    method: Callable[[nn.Module, torch.Tensor], Any],
) -> Facts:
    """Capture with the first of two inputs (B, D), and call with both. `baked_in`: right only for
    the first."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tried = attempt(method, module, inputs[0])
    warned = [
        first_line(str(w.message)) for w in caught if not issubclass(w.category, DeprecationWarning)
    ]
    facts: Facts = {
        "captured": tried.succeeded,
        **error_facts(tried.raised),
        "warnings": warned[:2],
    }
    if tried.succeeded:
        facts |= called_with(tried.value, module, inputs)
    return facts


def called_with(
    captured: Callable[..., Any], module: nn.Module, inputs: Sequence[torch.Tensor]
) -> Facts:
    right, outputs = [], []
    for x in inputs:
        called = attempt(captured, x)
        right.append(called.succeeded and close(called.value.to(x.device), module(x)))
        outputs.append(listed(called.value) if called.succeeded else error_facts(called.raised))
    return {
        "equals_eager": right,
        "follows_its_input": all(right),
        "baked_in": right == [True, False],
        "outputs": outputs,
        "eager_outputs": [listed(module(x)) for x in inputs],
    }


def through_dynamo(module: nn.Module, inputs: Sequence[torch.Tensor]) -> Facts:
    """Report the graphs compiled for the first input and for both, and the graph breaks of the
    first."""
    torch._dynamo.reset()
    explained = torch._dynamo.explain(module)(inputs[0])
    torch._dynamo.reset()
    backend = Counting()
    compiled = torch.compile(module, backend=backend)
    tried = attempt(compiled, inputs[0])
    facts: Facts = {
        "captured": tried.succeeded,
        **error_facts(tried.raised),
        "graphs_of_the_first": len(backend.graphs),
    }
    if tried.succeeded:
        facts |= called_with(compiled, module, inputs)
    facts["graphs_of_both"] = len(backend.graphs)
    facts["graph_breaks"] = explained.graph_break_count
    return facts


def lazy_tensors(device: torch.device, width: int) -> Facts:
    """Call each module with both inputs, twice: lazy tensors are traced again in every call, and
    the hash of the trace finds its compiled code."""
    import torch._lazy
    import torch._lazy.metrics as metrics
    import torch._lazy.ts_backend

    def count(name: str) -> int:
        return metrics.counter_value(name) if name in metrics.counter_names() else 0

    torch._lazy.ts_backend.init()
    facts: Facts = {}
    for name, (module, inputs) in cases(device, width).items():

        def call(x: torch.Tensor, module: nn.Module = module) -> torch.Tensor:
            return module(x.to("lazy")).cpu()

        compiled, reused = [], []
        for _ in range(2):
            before, hits = count("UncachedCompile"), count("CachedCompile")
            called = called_with(call, module, inputs)
            compiled.append(count("UncachedCompile") - before)
            reused.append(count("CachedCompile") - hits)
        facts[name] = {
            "captured": True,
            **called,
            "traces_compiled_in_each_pass": compiled,
            "traces_reused_in_each_pass": reused,
        }
    return facts


@Claim("S5", "torch.where replaces a data-dependent branch.")
def s5(branch):
    breaking, replaced = branch["if"], branch.where
    holds = (
        breaking.graph_breaks > 0
        and not breaking.fullgraph_succeeded
        and replaced.graph_breaks == 0
        and replaced.fullgraph_succeeded
        and replaced.outputs_equal_eager
    )
    also = {
        "graphs with the branch, with where": [
            breaking.graphs_for_one_input,
            replaced.graphs_for_one_input,
        ],
        "why it breaks": breaking.reasons,
        "fullgraph=True raises": breaking.fullgraph_error_type,
    }
    return Answer(holds, also=also)


@Claim(
    "S7",
    "Capture methods differ: trace bakes branches in, script keeps them, fx and make_fx refuse,"
    " lazy tensors capture again, Dynamo breaks the graph.",
)
def s7(methods):
    trace, script, fx, make = (
        methods.jit_trace,
        methods.jit_script,
        methods.fx_symbolic_trace,
        methods.make_fx,
    )
    lazy, dynamo = methods.lazy_tensors.branch, methods.dynamo
    compiled, reused = lazy.traces_compiled_in_each_pass, lazy.traces_reused_in_each_pass
    holds = {
        "trace bakes in a branch and a loop": trace.branch.baked_in and trace.loop.baked_in,
        "script keeps both": (script.branch.follows_its_input and script.loop.follows_its_input),
        "fx refuses both": not fx.branch.captured and not fx.loop.captured,
        "make_fx refuses a branch": not make.branch.captured,
        "make_fx refuses a loop": not make.loop.captured,
        "lazy tensors follow the branch": lazy.follows_its_input,
        "lazy tensors capture again": compiled[1] + reused[1] > 0,
        "Dynamo breaks the graph at a branch": (
            dynamo.branch.follows_its_input and dynamo.branch.graph_breaks > 0
        ),
        "Dynamo breaks the graph at a loop": dynamo.loop.graph_breaks > 0,
    }
    also = {
        "fx refuses a branch with": fx.branch.error_type,
        "lazy tensors: traces compiled and reused in each pass": [compiled, reused],
    }
    return Answer(holds, also=also)
