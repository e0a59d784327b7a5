"""The micro-workloads on the CPU, tiny: variants agree, are what their names say, and refuse what
cannot be."""

import pytest
import shipped
import torch
from shipped import CONF, load

NAMES = sorted(path.stem for path in CONF.glob("*.yaml") if "effbench.claims." in path.read_text())
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
    "pointer-chase": ({"bytes": 512, "hops": 8}, None),
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


def small(name, **arguments):
    return load(name, BS, **{**SMALL[name][0], **arguments})


def make(name, dtype=torch.float32, **arguments):
    """The module with a batch of inputs."""
    module, args, _ = shipped.make(small(name, **arguments), BS, dtype)
    return module, args


def run(name, dtype=torch.float32, calls=1, **arguments):
    """The output after so many calls; built outside inference mode and called in it, as in a
    trial."""
    module, args = make(name, dtype, **arguments)
    with torch.inference_mode():
        for _ in range(calls):
            output = module(*args)
        return [tensor.clone() for tensor in output] if isinstance(output, list) else output.clone()


def test_shapes_and_dtypes():
    assert set(NAMES) == set(SMALL)
    for name, (_, shape) in SMALL.items():
        if shape is not None:
            output = run(name, torch.bfloat16)
            output = output[0] if isinstance(output, list) else output
            assert (tuple(output.shape), output.dtype) == (shape, torch.bfloat16), name
            assert output.isfinite().all(), name


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_return_the_same_however_often_they_are_called(name):
    for dtype in (torch.float32, torch.bfloat16):
        first, *others = (run(name, dtype, variant=variant) for variant in VARIANTS[name])
        # nonzero: sums of the same numbers in another order
        rtol = 0 if name != "nonzero" else 1e-2 if dtype == torch.bfloat16 else 1e-5
        for output in others:
            torch.testing.assert_close(output, first, rtol=rtol, atol=0)
    for variant in VARIANTS[name]:
        once, often = (run(name, calls=calls, variant=variant) for calls in (1, 4))
        torch.testing.assert_close(often, once, rtol=0, atol=0)
