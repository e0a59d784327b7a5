"""Which changes of a model's weights need no new capture of its CUDA graph?

B batch, D width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from effbench.claims._tools import close, listed, record
from torch import nn

from effbench.claims import Answer, Claim
from effbench.claims.checks import CUDA, Facts, check

GPU_SECONDS = 10

#: Captures module(x); returns a function that replays and returns a tensor (B, D) that no replay
#: overwrites.
Capture = Callable[[nn.Module, torch.Tensor], Callable[[], torch.Tensor]]


@check(needs=(CUDA,))
def weights(device: torch.device, width: int = 4, batch: int = 2) -> Facts:
    """Compare replays with eager after the weight was updated in place, bound to a new tensor, or
    given another dtype.

    Also free a weight: the replay then reads whatever is stored at its address.
    """
    module = nn.Linear(width, width, device=device).requires_grad_(False)
    x = torch.randn(batch, width, device=device)
    return {**observe(module, x, capture), **freed_weight(device, width)}


def capture(module: nn.Module, x: torch.Tensor) -> Callable[[], torch.Tensor]:
    recorded = record(module, x)
    return lambda: recorded.replay().clone()


def observe(module: nn.Linear, x: torch.Tensor, capture: Capture) -> Facts:
    """x (B, D). The module's weight is (D, D)."""
    facts: Facts = {}
    with torch.no_grad():
        replay = capture(module, x)
        before = module(x)
        facts["replay_equals_eager_at_first"] = close(replay(), before)

        module.weight.copy_(2 * module.weight + 1)
        now = module(x)
        facts["replay_follows_in_place_update"] = close(replay(), now)
        facts["in_place"] = outputs(replay(), now, before)

        kept = module.weight  # kept alive, so that its memory is not reused
        before = now
        module.weight = nn.Parameter(kept * 3 - 1, requires_grad=False)
        now = module(x)
        facts["address_changed_by_rebinding"] = module.weight.data_ptr() != kept.data_ptr()
        facts["replay_follows_rebinding"] = close(replay(), now)
        facts["replay_is_stale_after_rebinding"] = close(replay(), before) and not close(
            now, before
        )
        facts["rebinding"] = outputs(replay(), now, before)
        facts["capturing_again_follows_rebinding"] = close(capture(module, x)(), now)

        replay, before, kept = capture(module, x), now, [module.weight, module.bias]
        module.weight = nn.Parameter(module.weight.bfloat16() * 2, requires_grad=False)
        module.bias = nn.Parameter(module.bias.bfloat16(), requires_grad=False)
        now = module(x.bfloat16())
        replayed = replay()
        facts["eager_dtype_after_dtype_change"] = str(now.dtype)
        facts["replay_dtype_after_dtype_change"] = str(replayed.dtype)
        facts["replay_follows_dtype_change"] = replayed.dtype == now.dtype and close(replayed, now)
        facts["replay_is_stale_after_dtype_change"] = replayed.dtype == before.dtype and close(
            replayed, before
        )
        facts["dtype_change"] = outputs(replayed, now, before)
        facts["capturing_again_follows_dtype_change"] = close(capture(module, x.bfloat16())(), now)
        del kept
    return facts


def outputs(replayed: torch.Tensor, now: torch.Tensor, before: torch.Tensor) -> Facts:
    """Return the first rows, for readers."""
    return {"replay": listed(replayed), "eager_now": listed(now), "eager_before": listed(before)}


def freed_weight(device: torch.device, width: int) -> Facts:
    """Free a captured weight: a graph keeps no weight alive, and its replay reads the address of
    the old one."""
    weight = torch.ones(width, width, device=device)
    x = torch.ones(1, width, device=device)
    holder = [weight]
    recorded = record(lambda: x @ holder[0])
    address = weight.data_ptr()
    del weight
    holder.clear()
    torch.cuda.synchronize()
    takers = []  # until the allocator reuses that address
    while len(takers) < 256 and address not in {taker.data_ptr() for taker in takers}:
        takers.append(torch.full((width, width), 7.0, device=device))
    was_given_away = takers[-1].data_ptr() == address
    replayed = recorded.replay()
    return {
        "freed_address_was_given_away": was_given_away,
        "replay_reads_what_took_the_freed_address": (
            close(replayed, x @ takers[-1]) if was_given_away else None
        ),
        "freed_weight": {
            "replay": listed(replayed),
            "with_the_weight_captured": [float(width)] * width,
        },
    }


@Claim("S1", "Weights updated in place need no recapture; a new address or dtype does.")
def s1(weights):
    holds = (
        weights.replay_follows_in_place_update
        and weights.replay_is_stale_after_rebinding
        and not weights.replay_follows_dtype_change
        and weights.capturing_again_follows_rebinding
        and weights.capturing_again_follows_dtype_change
    )
    also = {
        "stale output after rebinding": weights.rebinding.replay,
        "eager then": weights.rebinding.eager_now,
        "a freed weight's address is read, whoever owns it": (
            weights.replay_reads_what_took_the_freed_address
        ),
    }
    return Answer(holds, also=also)
