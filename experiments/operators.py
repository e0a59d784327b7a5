"""How many operators does PyTorch have?"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch._inductor.inductor_prims  # both register operators when they are imported
import torch._prims

from effbench.claims import Answer, Claim
from effbench.claims.checks import Facts, check

GPU_SECONDS = 5


@check()
def registry(device: torch.device) -> Facts:
    """Count the registered operators: prims, ATen by overload and by name, and those tagged as core
    ATen."""
    names = torch._C._dispatch_get_all_op_names()
    aten = count("aten", names)
    prims = [
        value for value in vars(torch._prims).values() if isinstance(value, torch._ops.OpOverload)
    ]
    core = {str(op): op for op in core_overloads("aten", names)}
    return {
        "prims": len({str(op) for op in prims}),
        "prims_with_those_of_inductor": count("prims", names)["names"],
        "aten_names": aten["names"],
        "aten_overloads": aten["overloads"],
        "aten_public_functional_names": aten["public_functional_names"],
        "core_aten_overloads": len(core),
        "core_aten_names": len({name.rsplit(".", 1)[0] for name in core}),
        # unrelated operators with the same prefix: TorchScript's
        "jit_prim_names": len(
            {s.name for s in torch._C._jit_get_all_schemas() if s.name.startswith("prim::")}
        ),
        "torch_version": torch.__version__,
    }


def count(namespace: str, names: Iterable[str]) -> dict[str, int]:
    """Count the operators of a namespace; `names`: such as `aten::add.Tensor`. Public and
    functional names have neither a leading nor a trailing underscore."""
    members = [
        name.removeprefix(f"{namespace}::") for name in names if name.startswith(f"{namespace}::")
    ]
    bases = {name.partition(".")[0] for name in members}
    return {
        "overloads": len(members),
        "names": len(bases),
        "public_functional_names": sum(
            not base.startswith("_") and not base.endswith("_") for base in bases
        ),
    }


def core_overloads(namespace: str, names: Iterable[str]) -> list[torch._ops.OpOverload]:
    operators = []
    for name in names:
        space, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        if space != namespace:
            continue
        packet = getattr(getattr(torch.ops, space), base, None)
        operator = getattr(packet, overload or "default", None)
        if operator is not None and torch.Tag.core in operator.tags:
            operators.append(operator)
    return operators


@Claim("S14", "There are about 250 prim operators and about 750 ATen operators.")
def s14(registry):
    functional = registry.aten_public_functional_names
    also = {
        "prims": registry.prims,
        "ATen names": registry.aten_names,
        "ATen names, functional and public": functional,
        "ATen overloads": registry.aten_overloads,
        "core ATen names": registry.core_aten_names,
    }
    return Answer(200 <= registry.prims <= 300 and 600 <= functional <= 900, also=also)
