"""The micro-workloads on the CPU, tiny: variants agree, are what their names say, and refuse what
cannot be."""

import itertools

import pytest
import shipped
import torch
from shipped import CONF, compiled_whole, load
from torch.profiler import profile

from effbench.errors import UnsupportedError
from effbench.experiments import overheads
from effbench.models.build import build_module

NAMES = sorted(
    path.stem for path in CONF.glob("*.yaml") if "effbench.experiments." in path.read_text()
)
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


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("matmul32", {"size": 0}, "size is 0; allowed: whole numbers from 1"),
        ("elements", {"variant": "all"}, "variant is 'all'; allowed: loop, whole"),
        ("nonzero", {"work_us": -1}, "work_us is -1; allowed: whole numbers from 0"),
        ("fusion-layer", {"p": 1}, "p is 1; allowed: from 0 to below 1"),
        (
            "pointer-chase",
            {"variant": "shared", "bytes": 65536},
            "bytes is 65536; allowed: whole numbers from 512 to",
        ),
        ("vector-add", {"block": 48}, "block is 48; allowed: powers of two from 32 to 16384"),
    ],
)
def test_settings_are_checked(name, settings, words):
    node = small(name, **settings)
    with pytest.raises(ValueError) as caught:
        build_module(node["module"], torch.float32, "cpu", seed=0)
    assert words in str(caught.value)


def test_what_needs_cuda_says_so():
    for name, settings in (
        ("creation", {"variant": "host-pinned"}),
        ("transfer", {"pinned": True}),
        ("optimizer", {"variant": "capturable"}),
        *(("pointer-chase", {"variant": variant}) for variant in ("memory", "shared", "register")),
        *(
            ("vector-add", {"variant": variant})
            for variant in ("triton", "cuda", "cuda-vectorised")
        ),
    ):
        with pytest.raises(
            UnsupportedError, match=r"CUDA.*, but (this cell runs on cpu|torch sees no CUDA)"
        ):
            run(name, **settings)


def test_created_zeros_are_the_same_and_normal_numbers_repeat():
    for variant in ("device", "host"):
        assert torch.equal(run("creation", variant=variant, fill="zeros"), torch.zeros(BS, 16))
    big = run("creation", variant="host", elements=10000)
    assert torch.equal(big, run("creation", variant="host", elements=10000, calls=3))
    assert abs(float(big.mean())) < 0.03
    assert abs(float(big.std()) - 1) < 0.03


def test_the_chain_is_in_place_or_not():
    for variant, same in (("in-place", True), ("out-of-place", False)):
        module, (x,) = make("inplace", variant=variant)
        before = x.clone()
        y = module(x)
        assert (y.data_ptr() == x.data_ptr()) is same and torch.equal(x, before) is not same
        assert torch.equal(y, before.clamp(0, 1))


def test_the_sum_of_the_positive_outputs():
    module, (x,) = make("nonzero")
    y = module.stack(x)
    assert 0 < int((y > 0).sum()) < y.numel(), "some are chosen and some are not"
    torch.testing.assert_close(module(x), y.clamp(min=0).sum())


def test_the_host_works_for_as_long_as_it_should(monkeypatch):
    clock, worked = itertools.count(step=1000), []
    nonzero, spin = torch.Tensor.nonzero, overheads.spin
    monkeypatch.setattr(overheads.time, "perf_counter_ns", lambda: next(clock))
    monkeypatch.setattr(overheads, "spin", lambda us: (spin(us), worked.append("work")))
    monkeypatch.setattr(
        torch.Tensor, "nonzero", lambda self: (worked.append("nonzero"), nonzero(self))[1]
    )
    for variant in ("nonzero-then-work", "work-then-nonzero"):
        worked.clear()
        start = next(clock)
        run("nonzero", variant=variant, work_us=50)
        assert "-then-".join(worked) == variant
        assert 50 * 1000 <= next(clock) - start <= 55 * 1000


@pytest.mark.parametrize("variant", ["grad", "no_grad", "inference_mode"])
@pytest.mark.parametrize("around", [torch.inference_mode, torch.enable_grad])
def test_gradient_modes_are_what_they_say(variant, around):
    module, (x,) = make("gradmode", variant=variant)
    seen = []

    def look(_module, _args, output):
        seen.append(
            (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), output.grad_fn is not None)
        )

    module.mlp.register_forward_hook(look)
    with around():
        y = module(x)
        here = (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
    expected = {
        "grad": (True, False, True),
        "no_grad": (False, False, False),
        "inference_mode": (False, True, False),
    }
    assert seen == [expected[variant]]
    assert y.is_inference() is (variant == "inference_mode")
    assert here == (around is torch.enable_grad, around is torch.inference_mode), "it is put back"
    if variant == "grad":
        with (
            torch.inference_mode(),
            pytest.raises(UnsupportedError, match="created outside inference mode"),
        ):
            module(x.clone())


def test_images_stay_on_the_host_as_they_are():
    for variant, dtype, size in (("uint8", torch.uint8, 1), ("float32", torch.float32, 4)):
        module, (like,) = make("transfer", torch.bfloat16, variant=variant)
        assert (module.images.dtype, module.bytes) == (dtype, BS * 60 * size)
        y = module(like)
        assert 0 <= float(y.min()) < 0.2 and 0.8 < float(y.max()) < 1
    pixels, _ = make("transfer", variant="uint8")
    assert torch.equal(y, (pixels.images / 256).bfloat16())


@pytest.mark.parametrize("variant", ["foreach", "fused"])
def test_optimizers_take_the_same_steps_as_a_loop(variant):
    start = run("optimizer", variant="loop")
    loop = run("optimizer", variant="loop", lr=0.01, calls=3)
    for ours, theirs, before in zip(
        run("optimizer", variant=variant, lr=0.01, calls=3), loop, start, strict=True
    ):
        torch.testing.assert_close(ours, theirs)
        assert not torch.allclose(theirs, before, atol=0.005), "three steps of about 0.01"


def operators(module, args):
    with profile(acc_events=True) as seen, torch.inference_mode():
        module(*args)
    return [event.key for event in seen.key_averages() for _ in range(event.count)]


def test_dropout_is_drawn_in_train_and_only_there():
    for variant in ("eval", "train"):
        for p in (0.0, 1e-9, 0.5):
            drawn = "aten::bernoulli_" in operators(*make("fusion-layer", variant=variant, p=p))
            assert drawn == (variant == "train" and p > 0), (variant, p)


def test_pointwise_is_many_operators():
    module, args = make("pointwise51", multiplications=50)
    names = operators(module, args)
    assert (names.count("aten::mul"), names.count("aten::relu")) == (50, 1)
    with torch.inference_mode():
        assert torch.equal(module(*args), torch.relu(module.linear(*args)))
        odd, _ = make("pointwise51", multiplications=7)
        assert torch.equal(odd(*args), 2 * torch.relu(odd.linear(*args)))


@pytest.mark.parametrize(
    "name", ["matmul32", "fusion-layer", "pointwise51", "elements", "inplace", "vector-add"]
)
def test_is_traced_without_a_break(name):
    module, args = make(name)
    with torch.inference_mode():
        torch.testing.assert_close(
            compiled_whole(module)(*[x.clone() for x in args]), module(*args)
        )
    torch._dynamo.reset()
