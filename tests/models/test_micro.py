"""The micro-workloads on the CPU, tiny: variants agree, are what their names say, and refuse what
cannot be."""

import pytest
import torch
from shipped import OF_EXPERIMENTS, build, inputs_of, load
from torch.utils._pytree import tree_leaves

from effbench.workloads.base import copies

BS = 3
#: Arguments that make a workload small, and the shape of its output then.
SMALL = {
    "matmul32": ({"size": 4}, (4, 4)),
    "elements": ({"count": 5}, (5, BS)),
    "creation": ({"elements": 16}, (BS, 16)),
    "inplace": ({"elements": 16, "length": 3}, (BS, 16)),
    "nonzero": ({"sizes": [4, 8, 16], "work_us": 100}, ()),
    "gradmode": ({"width": 8, "depth": 3}, (BS, 8)),
    "transfer": ({"shape": [3, 4, 5]}, (BS, 3, 4, 5)),
    "optimizer": ({"layers": 3, "width": 8}, (8, 8)),
    "fusion-layer": ({"width": 16}, (BS, 16)),
    "pointwise51": ({"in_features": 4, "features": 16, "multiplications": 7}, (BS, 16)),
    "pointer-chase": ({"bytes": 512, "hops": 8}, None),  # needs CUDA
    "vector-add": ({"elements": 100}, (BS, 100)),
}
#: Variants that run anywhere; outputs are compared with those of the first.
VARIANTS = {
    "elements": ["whole", "loop"],
    "inplace": ["out-of-place", "in-place"],
    "nonzero": ["mask", "nonzero", "nonzero-static", "nonzero-then-work", "work-then-nonzero"],
    "gradmode": ["inference_mode", "no_grad", "grad"],
    "transfer": ["uint8", "float32"],
    "optimizer": ["loop", "foreach", "fused"],
    "fusion-layer": ["eval", "train"],
}


def run(name, dtype=torch.float32, calls=1, **arguments):
    """The output after so many calls; built outside inference mode and called in it, as in a
    trial."""
    settings, _ = SMALL[name]
    node = load(
        name,
        BS,
        **settings,
        **arguments,
    )
    module = build(node, dtype)
    args, _ = inputs_of(node["inputs"], BS, dtype)
    with torch.inference_mode():
        for _ in range(calls):
            output = module(*args)
        return copies(output)


def test_all_are_tested():
    assert set(OF_EXPERIMENTS) == set(SMALL)


@pytest.mark.parametrize("name", [name for name in SMALL if name != "pointer-chase"])
def test_shapes_and_dtypes(name):
    output, *_ = tree_leaves(run(name, torch.bfloat16))
    assert (output.shape, output.dtype) == (SMALL[name][1], torch.bfloat16)
    assert output.isfinite().all()


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_return_the_same_however_often_they_are_called(name):
    first = run(name, variant=VARIANTS[name][0])
    # sums of the same numbers in another order
    rtol = 1e-5 if name == "nonzero" else 0
    for variant in VARIANTS[name]:
        once, often = (run(name, calls=calls, variant=variant) for calls in (1, 4))
        torch.testing.assert_close(
            once,
            first,
            rtol=rtol,
            atol=0,
        )
        torch.testing.assert_close(
            often,
            once,
            rtol=0,
            atol=0,
        )
