"""Which outputs count as right: by dtype, by kind, and by a float64 reference where a dtype is too coarse."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from effbench.measure import accuracy

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
ZERO = torch.zeros(1)


def reference(dtype=torch.float32, *shape):
    return torch.randn(*(shape or (64, 32)), generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_tolerance_by_dtype(dtype):
    ref = reference(torch.float64)
    limit = accuracy.TOLERANCES[dtype]
    # compared in float64, so that the dtype's own rounding does not decide
    assert accuracy.compare(ref * (1 + 0.5 * limit), ref, limit).correct
    verdict = accuracy.compare(ref * (1 + 10 * limit), ref, limit)
    assert (verdict.correct, verdict.only_values) == (False, True)
    assert verdict.error == pytest.approx(10 * limit, rel=0.01)
    assert f"relative error {10 * limit:.2g}" in verdict.reason
    # and by default with the dtype's own limit
    for factor, correct in ((0, True), (0.2, True), (20, False)):
        assert accuracy.compare((ref * (1 + factor * limit)).to(dtype), ref.to(dtype)).correct is correct


def test_integers_must_be_equal():
    for dtype in (torch.int64, torch.uint8, torch.bool):
        ref = torch.tensor([0, 1, 1, 0]).to(dtype)
        assert accuracy.compare(ref.clone(), ref) == accuracy.Verdict(True, None, None, True)
        verdict = accuracy.compare(torch.tensor([0, 1, 0, 0]).to(dtype), ref)
        assert not verdict.correct and "1 of 4 values" in verdict.reason


def test_complex_outputs():
    ref = torch.complex(reference(), -reference())
    assert accuracy.compare(ref.clone(), ref).correct
    wrong = torch.complex(ref.real, ref.imag * 1.01)
    assert accuracy.compare(wrong, ref).error == pytest.approx(0.01 / 2**0.5, rel=0.01)
    assert not accuracy.compare(wrong, ref).correct
    assert accuracy.compare_with_float64(wrong, ref, ref.to(torch.complex128))


Pair = namedtuple("Pair", "a b")


@dataclasses.dataclass
class Outputs:
    a: torch.Tensor
    b: torch.Tensor


class LikeTransformers:
    """An output class that gives a tuple."""

    def __init__(self, *items):
        self.to_tuple = lambda: items


@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: (a, b),
        lambda a, b: [a, b],
        lambda a, b: {"a": a, "b": b},
        lambda a, b: {"deep": [{"a": a}, (b, None, "text", 3)]},
        Pair,
        LikeTransformers,
        Outputs,
        lambda a, b: SimpleNamespace(a=a, b=[b]),
    ],
    ids=["tuple", "list", "dict", "deep", "named tuple", "to_tuple", "dataclass", "namespace"],
)
def test_every_tensor_of_a_structure_counts(make):
    ref = make(reference(), torch.arange(3))
    assert accuracy.compare(make(reference(), torch.arange(3)), ref).correct
    wrong = accuracy.compare(make(reference(), torch.tensor([0, 1, 3])), ref)
    assert not wrong.correct
    assert "differs from eager in 1 of 3 values" in wrong.reason
    assert not accuracy.compare(make(reference() + 1, torch.arange(3)), ref).correct


@pytest.mark.parametrize(
    ("out", "ref", "said"),
    [
        ({"a": ZERO}, {"b": ZERO}, "the structure differs from eager's: output a, output b"),
        ((ZERO, 3), (ZERO, 4), "output 1 is 3 where eager's is 4"),
        ((ZERO, "x"), (ZERO, None), "output 1 is 'x' where eager's is None"),
        ((ZERO, 3, ZERO), (ZERO, ZERO, 3), "output 1 is a int"),
        (torch.zeros(4, 1), torch.zeros(4), "(4, 1) torch.float32 where eager's is (4,) torch.float32"),
        (ZERO.double(), ZERO, "torch.float64"),
        ((ZERO, ZERO), ZERO, "2 output tensors where eager has 1"),
        (None, ZERO, "0 output tensors where eager has 1"),
        ((ZERO, torch.ones(1, 4)), (ZERO, torch.ones(4)), "(1, 4)"),
    ],
)
def test_another_structure_is_wrong_and_no_case_for_float64(out, ref, said):
    verdict = accuracy.compare(out, ref)
    assert (verdict.correct, verdict.only_values, said in verdict.reason) == (False, False, True), verdict.reason


def test_numbers_may_differ_in_their_last_digits():
    assert accuracy.compare((ZERO, 1.0, float("nan")), (ZERO, 1.001, float("nan"))).correct


def test_what_could_hide_tensors_is_refused():
    class Opaque:
        pass

    with pytest.raises(accuracy.Incomparable, match="holds a Opaque"):
        accuracy.kept((ZERO, Opaque()))


def test_not_finite_names_the_output():
    bad = {"a": torch.ones(2), "b": (torch.tensor([1.0, torch.inf]),)}
    assert accuracy.not_finite(bad) == "eager output b.0 not finite"
    assert accuracy.not_finite(torch.complex(torch.tensor([1.0]), torch.tensor([torch.nan]))) is not None
    assert accuracy.not_finite({"a": torch.ones(2), "n": torch.arange(3)}) is None


def test_where_nan_and_inf_are_allowed_their_places_must_agree():
    ref = torch.tensor([1.0, torch.nan, torch.inf])
    same = accuracy.compare(ref.clone(), ref)
    assert (same.correct, same.error) == (True, 0)
    assert not accuracy.compare(torch.tensor([1.0, torch.inf, torch.nan]), ref).correct
    assert not accuracy.compare(torch.tensor([1.0, 2.0, torch.inf]), ref).correct
    assert accuracy.compare_with_float64(ref.clone(), ref, ref.double()) is None


def test_zeros():
    assert accuracy.relative_error(ZERO, ZERO) == 0
    assert accuracy.relative_error(ZERO + 1, ZERO) == float("inf")
    assert accuracy.compare(ZERO, ZERO).correct and not accuracy.compare(ZERO + 1e-3, ZERO).correct


def test_a_clone_survives_the_next_call():
    buffer = torch.zeros(2)
    kept = accuracy.clone({"a": (buffer,)})
    buffer += 1
    assert kept["a"][0].tolist() == [0, 0]


class TestFloat64:
    """The rule of PyTorch's own harness: at most k times eager's error, k = 2, for half types 3."""

    @pytest.mark.parametrize(
        ("dtype", "factor"), [(torch.float32, 2), (torch.bfloat16, 3), (torch.float16, 3)], ids=str
    )
    def test_as_near_as_eager(self, dtype, factor):
        exact = reference(torch.float64)
        # 5 % off: far beyond any tolerance, and exactly known
        eager = (exact * 1.05).to(dtype)
        near, far = ((exact * (1 - 0.05 * (factor + by))).to(dtype) for by in (-0.2, 0.3))
        assert not accuracy.compare(near, eager).correct
        assert accuracy.compare_with_float64(near, eager, exact) is None
        assert "against float64, eager's is" in accuracy.compare_with_float64(far, eager, exact)

    def test_an_eager_that_is_far_off_proves_nothing(self):
        exact = reference(torch.float64)
        random = [exact.float() + torch.rand(exact.shape) for _ in range(2)]
        assert "eager itself is" in accuracy.compare_with_float64(*random, exact)

    def test_integers_beside_floats(self):
        exact = reference(torch.float64), torch.tensor([1, 2, 3])
        eager = exact[0].float(), torch.tensor([1, 2, 3])
        assert accuracy.compare_with_float64((eager[0], torch.tensor([1, 2, 3])), eager, exact) is None
        assert "output 1: 1 values" in accuracy.compare_with_float64((eager[0], torch.tensor([1, 2, 4])), eager, exact)
        # eager misses one of three itself: another may miss two, no more
        eager = eager[0], torch.tensor([1, 2, 9])
        assert accuracy.compare_with_float64((eager[0], torch.tensor([1, 8, 9])), eager, exact) is None
        assert accuracy.compare_with_float64((eager[0], torch.tensor([7, 8, 9])), eager, exact)

    def test_the_twin_has_the_same_weights_and_leaves_the_module_alone(self):
        module = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).bfloat16()
        x = reference(torch.bfloat16, 4, 8)
        with torch.inference_mode():
            exact = accuracy.in_float64(module)(x)
            weight, bias = module[0].weight.double(), module[0].bias.double()
            torch.testing.assert_close(exact, (x.double() @ weight.T + bias).relu())
        assert {parameter.dtype for parameter in module.parameters()} == {torch.bfloat16}
