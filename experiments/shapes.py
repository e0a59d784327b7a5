"""How often does torch.compile recompile when shapes change, and what does its limit do?

B batch, D width.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import torch
from effbench.claims._tools import Counting, attempt, close, error_facts, logged
from torch import nn

from effbench.claims import Answer, Claim
from effbench.claims.checks import Facts, check
from effbench.core.printable import first_line

GPU_SECONDS = 60


class Layer(nn.Module):
    """(B, D) -> (B, D). It has its own forward, because Dynamo counts recompilations by code
    object, which torch's own modules share."""

    def __init__(self, width: int, device: torch.device) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, device=device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


@check()
def sizes(
    device: torch.device, sizes: Sequence[int] = (2, 3, 4, 5, 8, 16), width: int = 4
) -> Facts:
    """Count compilations over a sequence of batch sizes with dynamic None, True and False, and with
    mark_dynamic."""
    variants = {
        "none": compilations(device, sizes, width, dynamic=None),
        "true": compilations(device, sizes, width, dynamic=True),
        "false": compilations(device, sizes, width, dynamic=False),
        "marked": compilations(
            device, sizes, width, mark=lambda x: torch._dynamo.mark_dynamic(x, 0)
        ),
    }
    x = torch.ones(2, width)
    return {
        "sizes": list(sizes),
        "dynamic": variants,
        "mark_dynamic_arguments": list(inspect.signature(torch._dynamo.mark_dynamic).parameters),
        "mark_dynamic_takes_index": attempt(torch._dynamo.mark_dynamic, x, index=0).succeeded,
        "mark_dynamic_takes_dim": attempt(torch._dynamo.mark_dynamic, x, dim=0).succeeded,
    }


def compilations(
    device: torch.device,
    sizes: Sequence[int],
    width: int,
    dynamic: bool | None = None,
    mark: Callable[[torch.Tensor], object] = lambda x: None,
) -> Facts:
    """Count the compiled graphs after each size, with a recompilation limit that is never
    reached."""
    torch._dynamo.reset()
    module = Layer(width, device)
    backend = Counting()
    compiled = torch.compile(module, backend=backend, dynamic=dynamic)
    known = len(torch._dynamo.utils.get_compilation_metrics())
    after, failed, right = [], {}, True
    with torch._dynamo.config.patch(recompile_limit=len(sizes) + 1), torch.no_grad():
        for size in sizes:
            x = torch.randn(size, width, device=device)
            mark(x)
            called = attempt(compiled, x)
            if called.succeeded:
                right = right and close(called.value, module(x))
            else:
                failed[str(size)] = error_facts(called.raised)
            after.append(len(backend.graphs))
    reasons = [
        metric.recompile_reason for metric in torch._dynamo.utils.get_compilation_metrics()[known:]
    ]
    facts: Facts = {
        "compilations": len(backend.graphs),
        "compilations_after_each_size": after,
        "recompile_reasons": [first_line(str(reason)) for reason in reasons if reason],
        "outputs_equal_eager": right,
    }
    if failed:
        facts["failed_sizes"] = failed
    return facts


@check()
def limit(
    device: torch.device, limit: int = 3, sizes: Sequence[int] = (2, 3, 4, 5, 6, 7), width: int = 4
) -> Facts:
    """Call with more shapes than cache_size_limit (recompile_limit) allows: which run compiled,
    which in eager, and whether the first shapes still run compiled afterwards."""
    torch._dynamo.reset()
    module = Layer(width, device)
    backend = Counting()
    compiled = torch.compile(module, backend=backend, dynamic=False)

    def ran_compiled(size: int) -> bool:
        calls = backend.calls
        compiled(torch.randn(size, width, device=device))
        return backend.calls > calls

    with (
        torch._dynamo.config.patch(recompile_limit=limit),
        logged("torch._dynamo.convert_frame") as lines,
        torch.no_grad(),
    ):
        first_pass = {size: ran_compiled(size) for size in sizes}
        graphs = len(backend.graphs)
        second_pass = {size: ran_compiled(size) for size in sizes}
        graphs_later = len(backend.graphs)
        fallen_back = [size for size, was in first_pass.items() if not was]
        torch._dynamo.reset()
        whole = torch.compile(module, backend=Counting(), dynamic=False, fullgraph=True)
        with_fullgraph = attempt(
            lambda: [whole(torch.randn(size, width, device=device)) for size in sizes]
        )
    return {
        "limit": limit,
        "sizes": list(sizes),
        "compiled_sizes": [size for size, was in first_pass.items() if was],
        "eager_sizes": fallen_back,
        "graphs_compiled": graphs,
        "limit_sends_later_shapes_to_eager": bool(fallen_back) and graphs == limit,
        "nothing_is_evicted": second_pass == first_pass and graphs_later == graphs,
        "cache_size_limit_is_the_same_setting": same_setting(),
        "default_limit": torch._dynamo.config.recompile_limit,
        "log": lines[:2],
        **{f"fullgraph_{key}": value for key, value in with_fullgraph.facts().items()},
    }


def same_setting() -> bool | None:
    """Return whether setting cache_size_limit changes recompile_limit; None if only one of them
    exists."""
    config = torch._dynamo.config
    if not (hasattr(config, "cache_size_limit") and hasattr(config, "recompile_limit")):
        return None
    before = config.recompile_limit
    try:
        config.cache_size_limit = before + 1
        return config.recompile_limit == before + 1
    finally:
        config.recompile_limit = before


@Claim("S6", "Changing shapes recompile; mark_dynamic helps.", unit="compilations")
def s6(sizes):
    automatic, marked = (sizes.dynamic[name].compilations for name in ("none", "marked"))
    also = {
        "sizes": sizes.sizes,
        "compilations with dynamic=None": automatic,
        "compilations with dynamic=True": sizes.dynamic["true"].compilations,
        "with dynamic=False, each shape": sizes.dynamic["false"].compilations,
        "marked": marked,
        "mark_dynamic takes index": sizes.mark_dynamic_takes_index,
        "mark_dynamic takes dim": sizes.mark_dynamic_takes_dim,
    }
    return Answer(
        {"a new shape recompiles": automatic > 1, "mark_dynamic helps": marked < automatic},
        automatic,
        also,
    )


@Claim("S12", "cache_size_limit=256 caches up to 256 compilations.")
def s12(limit):
    also = {
        "limit": limit.limit,
        "sizes compiled": limit.compiled_sizes,
        "sizes run in eager": limit.eager_sizes,
        "it is recompile_limit by another name": limit.cache_size_limit_is_the_same_setting,
        "default": limit.default_limit,
    }
    return Answer(not limit.limit_sends_later_shapes_to_eager, also=also)
