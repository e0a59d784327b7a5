"""Which views and indexing operations share a tensor's memory, and what do in-place operations do
to gradients?"""

from __future__ import annotations

from collections.abc import Callable

import torch
from effbench.claims._tools import attempt, close, error_facts, listed

from effbench.claims import Answer, Claim
from effbench.claims.checks import Facts, check

GPU_SECONDS = 5

Derive = Callable[[torch.Tensor], torch.Tensor]

#: Operations on a (3, 4) tensor.
DERIVED: dict[str, Derive] = {
    "view": lambda base: base.view(4, 3),
    "reshape": lambda base: base.reshape(4, 3),
    "transpose": lambda base: base.t(),
    "row": lambda base: base[1],
    "element": lambda base: base[1, 2],
    "slice": lambda base: base[1:, ::2],
    "none_and_ellipsis": lambda base: base[None, ..., 0],
    "expand": lambda base: base[0].expand(2, 4),
    "contiguous_of_contiguous": lambda base: base.contiguous(),
    "index_list": lambda base: base[[0, 2]],
    "index_tensor": lambda base: base[torch.tensor([0, 2], device=base.device)],
    "mask": lambda base: base[base > 5],
    "index_select": lambda base: base.index_select(0, torch.tensor([0, 2], device=base.device)),
    "contiguous_of_transpose": lambda base: base.t().contiguous(),
    "reshape_of_transpose": lambda base: base.t().reshape(12),
    "clone": lambda base: base.clone(),
}

Assign = Callable[[torch.Tensor], None]


def assign(index: object) -> Assign:
    def write(base: torch.Tensor) -> None:
        base[index] = -1.0

    return write


ASSIGNED: dict[str, Assign] = {
    "row": assign(1),
    "slice": assign((slice(1, None), slice(None, None, 2))),
    "index_list": assign([0, 2]),
    "chained_after_slice": lambda base: assign([0])(base[1:]),
    "chained_after_index_list": lambda base: assign(0)(base[[0, 2]]),
}


@check()
def storage(device: torch.device) -> Facts:
    """Compare storage and addresses of views, basic and advanced indexing and contiguous() with
    their source, and check whether an assignment through each reaches the source."""
    return {
        "derived": {name: relation(derive, device) for name, derive in DERIVED.items()},
        "assigned": {name: assignment(write, device) for name, write in ASSIGNED.items()},
    }


def relation(derive: Derive, device: torch.device) -> Facts:
    base = torch.arange(12, dtype=torch.float32, device=device).view(3, 4)
    derived = derive(base)
    shares = derived.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
    facts: Facts = {
        "shares_storage": shares,
        "offset_bytes": derived.data_ptr() - base.data_ptr() if shares else None,
        "strides": list(derived.stride()),
    }
    derived.add_(100) if 0 not in derived.stride() else derived[0].add_(100)
    facts["writes_reach_the_source"] = bool((base >= 100).any())
    return facts


def assignment(write: Assign, device: torch.device) -> Facts:
    base = torch.arange(12, dtype=torch.float32, device=device).view(3, 4)
    write(base)
    return {
        "reaches_the_source": bool((base == -1).any()),
        "values_changed": int((base == -1).sum()),
    }


Loss = Callable[[torch.Tensor], torch.Tensor]


def in_place(
    operation: Callable[[torch.Tensor], object], before: Callable[[torch.Tensor], torch.Tensor]
) -> Loss:
    """Return a loss that changes the result of `before` in place."""

    def loss(x: torch.Tensor) -> torch.Tensor:
        y = before(x)
        operation(y)
        return y.sum()

    return loss


#: A loss with an in-place operation, and the same loss without.
CASES: dict[str, tuple[Loss, Loss]] = {
    "multiply_what_sigmoid_saved": (
        in_place(lambda y: y.mul_(2), torch.sigmoid),
        lambda x: (torch.sigmoid(x) * 2).sum(),
    ),
    "add_to_what_exp_saved": (
        in_place(lambda y: y.add_(1), torch.exp),
        lambda x: (torch.exp(x) + 1).sum(),
    ),
    "change_a_leaf": (lambda x: x.mul_(2).sum(), lambda x: (x * 2).sum()),
    "multiply_a_sum": (
        in_place(lambda y: y.mul_(2), lambda x: x + 1),
        lambda x: ((x + 1) * 2).sum(),
    ),
    "relu_of_a_product": (
        in_place(lambda y: y.relu_(), lambda x: x * 3),
        lambda x: (x * 3).relu().sum(),
    ),
}


@check()
def backward(device: torch.device) -> Facts:
    """Run backward after in-place operations: record the error if they overwrite a saved tensor,
    otherwise the gradient next to the one of the out-of-place operation."""
    return {name: gradients(inside, outside, device) for name, (inside, outside) in CASES.items()}


def gradients(inside: Loss, outside: Loss, device: torch.device) -> Facts:
    def gradient(loss: Loss) -> torch.Tensor:
        x = torch.tensor([-1.0, 0.5, 2.0], device=device, requires_grad=True)
        loss(x).backward()
        return x.grad

    expected = gradient(outside)
    tried = attempt(gradient, inside)
    facts: Facts = {
        "backward_works": tried.succeeded,
        **error_facts(tried.raised),
        "gradient_out_of_place": listed(expected),
    }
    if tried.succeeded:
        facts["gradient"] = listed(tried.value)
        facts["gradient_equals_out_of_place"] = close(tried.value, expected)
    return facts


@Claim(
    "O9",
    "Views and basic indexing share storage, advanced indexing and contiguous() copy; assignment"
    " writes through either.",
)
def o9(storage):
    made, assigned = storage.derived, storage.assigned
    shared = [made[name].shares_storage for name in ("view", "transpose", "row", "slice")]
    copied = [
        made[name].shares_storage
        for name in ("index_list", "index_tensor", "mask", "contiguous_of_transpose")
    ]
    written = [assigned[name].reaches_the_source for name in ("row", "slice", "index_list")]
    also = {
        "assignment reaches the source through an index after an index list": (
            assigned.chained_after_index_list.reaches_the_source
        ),
        "contiguous() of a contiguous tensor shares": made.contiguous_of_contiguous.shares_storage,
    }
    return Answer(all(shared) and not any(copied) and all(written), also=also)


@Claim("O10", "An in-place operation may break backward.")
def o10(backward):
    saved = backward.multiply_what_sigmoid_saved
    works = [case.backward_works for case in backward.values()]
    also = {
        "error": saved.error,
        "multiplying a sum in place is fine": backward.multiply_a_sum.gradient_equals_out_of_place,
    }
    return Answer(any(works) and not all(works) and saved.error_type == "RuntimeError", also=also)
