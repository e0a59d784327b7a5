"""Choose how a built module computes attention: `model.attention`.

B batch, H heads, T sequence, S keys, K width of a head.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from effbench.core.errors import UnsupportedError
from effbench.core.printable import one_line
from effbench.models.cache import KeyValueCache

#: Queries, keys and values [B, H, T or S, K]; a mask [T or 1, S], true where a query sees a key, or
#: None; whether it is causal -> [B, H, T, K].
Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None, bool], Tensor]
#: What transformers and diffusers call each choice.
OF_TRANSFORMERS = {"flash": "flash_attention_2", "flex": "flex_attention"}
OF_DIFFUSERS = {"eager": "_native_math", "sdpa": "native", "flash": "_native_flash"}
#: Masks of causal attentions by length and device.
CAUSAL_BLOCKS: dict[tuple[int, str], BlockMask] = {}


class ChosenAttention(nn.Module):
    """The base of effbench's own attentions. `attend` computes them."""

    def __init__(self) -> None:
        super().__init__()
        self.attend: Attend = sdpa


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)


def eager(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Attend with separate products and a softmax."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])  # [B, H, T, S]
    if causal:
        mask = torch.ones_like(scores[0, 0], dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(-1) @ v


def flash(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Attend by FlashAttention's kernels, or raise RuntimeError."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return sdpa(q, k, v, mask, causal)


def flex(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Attend by FlexAttention, compiled also in eager mode."""
    attend = flex_attention if torch.compiler.is_compiling() else compiled_flex()
    if causal:
        return attend(q, k, v, block_mask=causal_blocks(q.shape[-2], q.device))
    if mask is None:
        return attend(q, k, v)

    mask = mask.expand(q.shape[-2], -1)  # one row may be for all queries

    def seen(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return torch.where(mask[query, key], score, -math.inf)

    return attend(q, k, v, score_mod=seen)


def causal_blocks(length: int, device: torch.device) -> BlockMask:
    """Return the mask of a causal attention, made once: eager's call comes before compiling."""
    key = length, str(device)
    if key not in CAUSAL_BLOCKS:
        CAUSAL_BLOCKS[key] = create_block_mask(is_past, None, None, length, length, device=device)
    return CAUSAL_BLOCKS[key]


def is_past(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


@functools.cache
def compiled_flex() -> Any:
    return torch.compile(flex_attention)


OWN: dict[str, Attend] = {"eager": eager, "sdpa": sdpa, "flash": flash, "flex": flex}


def choose(module: nn.Module, attention: str, dtype: torch.dtype, device: torch.device) -> None:
    """Let all attentions of a built module compute in this way. Raises UnsupportedError if they
    cannot, or if the module has no choice."""
    if attention == "flash":
        refuse_flash(module, dtype, device)
    parts = list(module.modules())
    own = [part for part in parts if isinstance(part, ChosenAttention)]
    for part in own:
        part.attend = OWN[attention]
    if own:
        return
    setters = (choose_in_transformers, choose_in_diffusers, choose_in_timm)
    try:
        if any(choose_in(parts, attention) for choose_in in setters):
            return
    except (ImportError, ValueError, RuntimeError) as error:  # of the library
        reason = one_line(error, 200)
        raise UnsupportedError(f"model.attention={attention}: {reason}") from error
    raise UnsupportedError(
        f"model.attention={attention}: {type(module).__name__} does not have this choice"
    )


def refuse_flash(module: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
    """Raise UnsupportedError if FlashAttention cannot compute the attentions of a module."""
    reason = None
    if device.type != "cuda":
        reason = "FlashAttention needs CUDA"
    elif dtype not in (torch.float16, torch.bfloat16):
        reason = "FlashAttention needs float16 or bfloat16"
    elif any(isinstance(part, KeyValueCache) for part in module.modules()):
        reason = "FlashAttention takes no mask, which a static key-value cache needs"
    if reason is not None:
        raise UnsupportedError(f"model.attention=flash: {reason}")


def choose_in_transformers(parts: list[nn.Module], attention: str) -> bool:
    """Choose the attention of a network of transformers, and return whether it is one with this
    choice."""
    network = first_with(parts, "set_attn_implementation")
    if network is None:
        return False
    name = OF_TRANSFORMERS.get(attention, attention)
    network.set_attn_implementation(name)
    # which only warns if the network's attention is fixed
    chosen: str = network.config._attn_implementation
    return chosen == name


def choose_in_diffusers(parts: list[nn.Module], attention: str) -> bool:
    """Choose the attention of a network of diffusers, and return whether it has this choice."""
    network = first_with(parts, "set_attention_backend")
    processors = [getattr(part, "processor", None) for part in parts]
    # older networks call torch's attention itself
    if network is None or not any(hasattr(part, "_attention_backend") for part in processors):
        return False
    network.set_attention_backend(OF_DIFFUSERS.get(attention, attention))
    return True


def choose_in_timm(parts: list[nn.Module], attention: str) -> bool:
    """Choose the attention of a network of timm, and return whether it has this choice."""
    attentions = [part for part in parts if hasattr(part, "fused_attn")]
    for part in attentions:
        part.fused_attn = attention == "sdpa"
    return bool(attentions) and attention in ("eager", "sdpa")


def use_products(module: nn.Module) -> None:
    """Let attentions whose kernels do not compute in float64, FlashAttention's and FlexAttention's,
    use products and a softmax."""
    parts = list(module.modules())
    for part in parts:
        if isinstance(part, ChosenAttention) and part.attend in (flash, flex):
            part.attend = eager
    network = first_with(parts, "set_attn_implementation")
    if network is not None and network.config._attn_implementation in OF_TRANSFORMERS.values():
        choose_in_transformers(parts, "eager")
    for part in parts:
        processor = getattr(part, "processor", None)
        if getattr(processor, "_attention_backend", None) in (OF_DIFFUSERS["flash"], "flex"):
            choose_in_diffusers(parts, "eager")


def first_with(parts: list[nn.Module], method: str) -> Any:
    """Return the first module that has this method, or None."""
    return next((part for part in parts if hasattr(part, method)), None)
