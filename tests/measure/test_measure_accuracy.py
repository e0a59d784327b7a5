"""Which outputs count as right: by dtype, by kind, and by a float64 reference where a dtype is too
coarse."""

import dataclasses
import re
from collections import namedtuple

import pytest
import torch

from effbench.measure import accuracy
from effbench.measure.training_accuracy import Comparison, Exact, Trajectory

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
ZERO = torch.zeros(1)


def reference(dtype=torch.float32, *shape):
    return torch.randn(*(shape or (64, 32)), generator=torch.Generator().manual_seed(0)).to(dtype)


def compare(output, eager, tolerance=None):
    return accuracy.compare(accuracy.parts(output), accuracy.parts(eager), tolerance)


def correct(output, eager):
    return compare(output, eager).reason is None


def with_float64(*outputs):
    return accuracy.compare_with_float64(*map(accuracy.parts, outputs))


def test_parts_of_the_same_name_are_all_compared():
    zero, one = torch.zeros(2), torch.ones(2)
    for output in ({"a.b": zero, "a": {"b": one}}, {1: zero, "1": one}):
        assert [float(part[0]) for part in accuracy.parts(output).values()] == [0.0, 1.0]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_tolerance_by_dtype(dtype):
    ref = reference(torch.float64)
    limit = accuracy.TOLERANCES[dtype]
    # compared in float64, so that the dtype's own rounding does not decide
    assert compare(ref * (1 + 0.5 * limit), ref, limit).reason is None
    verdict = compare(ref * (1 + 10 * limit), ref, limit)
    assert verdict.only_values
    assert verdict.error == pytest.approx(10 * limit, rel=0.01)
    assert f"relative error {10 * limit:.2g}" in verdict.reason
    # and by default with the dtype's own limit
    for factor, expected in ((0, True), (0.2, True), (20, False)):
        assert correct((ref * (1 + factor * limit)).to(dtype), ref.to(dtype)) is expected


def test_the_reason_counts_values_if_the_error_of_all_is_within_the_tolerance():
    out, ref = reference(torch.float32), reference(torch.float32)
    out[0, :3] += 0.01
    verdict = compare(out, ref, 1e-3)
    assert verdict.error < 1e-3 and verdict.reason.endswith(
        "tolerance 0.001, which 3 of 2,048 values exceed"
    )
    assert "values" not in compare(out * 1.1, ref, 1e-3).reason


def test_a_wider_output_of_a_half_model_has_its_tolerance():
    ref = reference(torch.float32)
    out, exact = ref * 1.01, ref.double()
    for dtype, is_right in ((None, False), (torch.bfloat16, True), (torch.float64, False)):
        verdict = accuracy.compare(accuracy.parts(out), accuracy.parts(ref), dtype=dtype)
        assert (verdict.reason is None) is is_right
    shifted = (ref * 1.002, ref * 1.001, exact)
    assert with_float64(*shifted) is None
    far = [accuracy.parts(value) for value in (ref * 1.0027, ref * 1.001, exact)]
    assert (
        accuracy.compare_with_float64(*far)
        and accuracy.compare_with_float64(*far, dtype=torch.bfloat16) is None
    )


@pytest.mark.parametrize("mask", [-1e4, -1e9, torch.finfo(torch.float32).min])
def test_masked_values_do_not_hide_wrong_ones(mask):
    ref = reference(torch.float32)
    wrong, right, exact = ref * 1.1, ref * (1 + 1e-6), ref.double()
    for values in (wrong, right, ref, exact):
        values[:, ::2] = mask
    exact[:, ::2] = torch.finfo(torch.float64).min
    assert correct(right, ref) and not correct(wrong, ref)
    assert with_float64(right, ref, exact) is None and with_float64(wrong, ref, exact)
    wrong[:, ::2] *= 1 - 1e-6  # a mask that was added to logits is rounded
    assert not correct(wrong, ref) and with_float64(wrong, ref, exact)
    alone = torch.full((4,), mask)
    assert correct(alone, alone) and not correct(alone * 1.01, alone)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8(dtype):
    exact = reference(torch.float64)
    ref, near, far = (exact * factor for factor in (1.0, 1.001, 1.5))
    assert near.to(dtype).float().ne(ref.to(dtype).float()).any() and correct(
        near.to(dtype), ref.to(dtype)
    )
    assert not correct(far.to(dtype), ref.to(dtype))
    outputs = [accuracy.parts(value.to(dtype)) for value in (near, ref)]
    assert accuracy.not_finite(outputs[0]) is None
    assert accuracy.compare_with_float64(*outputs, accuracy.parts(exact)) is None


def test_large_values_are_no_masks():
    ref = 1e5 * reference(torch.bfloat16)
    right = ref + 500 * reference(torch.bfloat16).flip(0)
    assert correct(right, ref) and not correct(right, ref / 1e5)
    assert accuracy.rms(ref, ref) == accuracy.rms(ref)


def test_large_tensors_are_compared_in_pieces(monkeypatch):
    ref = reference(torch.float64)
    out = ref + torch.linspace(0, 1e-3, ref.numel(), dtype=torch.float64).reshape(ref.shape)
    ref.view(-1)[0] = out.view(-1)[0] = float("inf")
    whole = [function(out, ref) for function in (accuracy.relative_error, accuracy.rmse)] + [
        accuracy.rms(ref)
    ]
    monkeypatch.setattr(accuracy, "PIECE", 7)
    parts = [function(out, ref) for function in (accuracy.relative_error, accuracy.rmse)] + [
        accuracy.rms(ref)
    ]
    assert parts == pytest.approx(whole, rel=1e-12) and whole[0] > 0
    finite = ref.view(-1)[1:]
    assert whole[2] == pytest.approx(finite.square().mean().sqrt().item(), rel=1e-12)


def test_integers_must_be_equal():
    for dtype in (torch.int64, torch.uint8, torch.bool):
        ref = torch.tensor([0, 1, 1, 0]).to(dtype)
        assert compare(ref.clone(), ref) == accuracy.Verdict(None, None, True)
        assert "1 of 4 values" in compare(torch.tensor([0, 1, 0, 0]).to(dtype), ref).reason


def test_complex_outputs():
    ref = torch.complex(reference(), -reference())
    assert correct(ref.clone(), ref)
    wrong = torch.complex(ref.real, ref.imag * 1.01)
    assert compare(wrong, ref).error == pytest.approx(0.01 / 2**0.5, rel=0.01)
    assert not correct(wrong, ref)
    double = torch.complex(reference(torch.float64), reference(torch.float64))
    assert not correct(double * (1 + 1e-5), double), "as strict as its real part"
    assert with_float64(wrong, ref, ref.to(torch.complex128))


Pair = namedtuple("Pair", "a b")


@dataclasses.dataclass
class Outputs:
    a: torch.Tensor
    b: torch.Tensor


@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: {"deep": [{"a": a}, (b, None, "text", 3)]},
        Pair,
        Outputs,
    ],
    ids=["deep", "named tuple", "dataclass"],
)
def test_every_tensor_of_a_structure_counts(make):
    ref = make(reference(), torch.arange(3))
    assert correct(make(reference(), torch.arange(3)), ref)
    assert (
        "differs from eager in 1 of 3 values"
        in compare(make(reference(), torch.tensor([0, 1, 3])), ref).reason
    )
    assert not correct(make(reference() + 1, torch.arange(3)), ref)


def test_parts_after_plain_values_and_integers_count():
    ref, exact = reference(), reference(torch.float64)
    eager = (3, torch.arange(3), ref, ref)
    verdict = compare((3, torch.arange(3), ref * 1.1, ref * 1.01), eager)
    assert verdict.error == pytest.approx(0.1, rel=0.01) and verdict.reason.startswith(
        "output 2 differs"
    )
    assert compare((3, torch.arange(3) + 1, ref, ref * 1.1), eager).reason.startswith(
        "output 1 differs"
    )
    assert with_float64(
        (torch.arange(3), ref * 1.1), (torch.arange(3), ref), (torch.arange(3), exact)
    )


@pytest.mark.parametrize(
    ("out", "ref", "said"),
    [
        ({"a": ZERO}, {"b": ZERO}, "the structure differs from eager's: output a, output b"),
        ((ZERO, 3), (ZERO, 4), "output 1 is 3, but eager's is 4"),
        ((ZERO, "x"), (ZERO, None), "output 1 is 'x', but eager's is None"),
        ((ZERO, 3, ZERO), (ZERO, ZERO, 3), "output 1 is 3, but eager's is (1,) torch.float32"),
        (
            torch.zeros(4, 1),
            torch.zeros(4),
            "(4, 1) torch.float32, but eager's is (4,) torch.float32",
        ),
        (ZERO.double(), ZERO, "torch.float64"),
        ((ZERO, ZERO), ZERO, "2 output tensors, but eager has 1"),
        (None, ZERO, "0 output tensors, but eager has 1"),
        ((ZERO, torch.ones(1, 4)), (ZERO, torch.ones(4)), "(1, 4)"),
    ],
)
def test_another_structure_is_wrong_and_no_case_for_float64(out, ref, said):
    verdict = compare(out, ref)
    assert (verdict.only_values, said in verdict.reason) == (False, True), verdict.reason


def test_plain_values_and_what_could_hide_tensors():
    assert correct((ZERO, 1.0, float("nan")), (ZERO, 1.001, float("nan"))), (
        "floats: the last digits may differ"
    )
    assert not correct((ZERO, float("nan")), (ZERO, 1.0))
    for number in (3, True, 0.1):
        assert correct((ZERO, torch.tensor(number)), (ZERO, number)), (
            "AOTInductor returns numbers as tensors"
        )
        assert not correct((ZERO, torch.tensor(0)), (ZERO, number))
    sizes = [torch.tensor(1), torch.tensor(2)]
    assert correct((ZERO, sizes), (ZERO, torch.Size([1, 2]))) and not correct(
        (ZERO, sizes), (ZERO, torch.Size([2, 2]))
    )
    nested = torch.nested.nested_tensor([ZERO, ZERO], layout=torch.jagged)
    for other, said in (
        (object(), "the type object"),
        (ZERO.to_sparse(), "a sparse_coo tensor"),
        (nested, "a nested"),
    ):
        with pytest.raises(accuracy.Incomparable, match=f"contains {said}"):
            accuracy.parts((ZERO, other))


def test_what_is_not_finite():
    bad = {"a": torch.ones(2), "b": (torch.tensor([1.0, torch.inf]),)}
    assert accuracy.not_finite(accuracy.parts(bad)) == "output b.0"
    assert (
        accuracy.not_finite({"x": torch.complex(torch.tensor([1.0]), torch.tensor([torch.nan]))})
        == "x"
    )
    assert accuracy.not_finite({"a": torch.ones(2), "n": torch.arange(3)}) is None
    # where it is allowed, the places must agree
    ref = torch.tensor([1.0, torch.nan, torch.inf])
    assert compare(ref.clone(), ref) == accuracy.Verdict(0, None, True)
    assert not correct(torch.tensor([1.0, torch.inf, torch.nan]), ref)
    assert not correct(torch.tensor([1.0, 2.0, torch.inf]), ref)
    assert with_float64(ref.clone(), ref, ref.double()) is None


def test_zeros():
    assert (accuracy.relative_error(ZERO, ZERO), accuracy.relative_error(ZERO + 1, ZERO)) == (
        0,
        float("inf"),
    )
    assert correct(ZERO, ZERO) and not correct(ZERO + 1e-3, ZERO)


def test_copies_survive_the_next_call():
    buffer = torch.zeros(2)
    kept, cloned = accuracy.parts({"a": (buffer,)}), accuracy.clone(((buffer,), {}))
    buffer += 1
    assert kept["output a.0"].tolist() == cloned[0][0].tolist() == [0, 0]


class TestFloat64:
    """The rule of PyTorch's own harness: at most k times eager's error, k = 2, for half types 3."""

    @pytest.mark.parametrize(
        ("dtype", "factor"), [(torch.float32, 2), (torch.bfloat16, 3), (torch.float16, 3)], ids=str
    )
    def test_as_near_as_eager(self, dtype, factor):
        for size in (0.01, 1.0, 100.0):
            exact = size * reference(torch.float64)
            # 5 % off: far beyond any tolerance, and exactly known
            eager = (exact * 1.05).to(dtype)
            near, far = ((exact * (1 - 0.05 * (factor + by))).to(dtype) for by in (-0.2, 0.3))
            assert not correct(near, eager)
            assert with_float64(near, eager, exact) is None
            assert "against float64, eager's is" in with_float64(far, eager, exact)
            outputs = map(accuracy.parts, (near, eager, exact))
            assert accuracy.compare_with_float64(*outputs, dtype=torch.float32) is None, (
                "a narrow output keeps its rule"
            )

    def test_an_eager_that_is_far_off_proves_nothing(self):
        exact = reference(torch.float64)
        random = [exact.float() + torch.rand(exact.shape) for _ in range(2)]
        assert re.search("eager itself is .* keeps state in a list", with_float64(*random, exact))

    def test_integers_beside_floats(self):
        floats, exact = reference(), (reference(torch.float64), torch.tensor([1, 2, 3]))
        # the third output of eager is right, then wrong: another may miss two of three then, no
        # more
        for ours, eagers, right in (
            ([1, 2, 3], 3, True),
            ([1, 2, 4], 3, False),
            ([1, 8, 9], 9, True),
            ([7, 8, 9], 9, False),
        ):
            reason = with_float64(
                (floats, torch.tensor(ours)), (floats, torch.tensor([1, 2, eagers])), exact
            )
            assert (reason is None) == right, ours


def test_small_outputs_are_compared_on_the_host():
    gpu, row = torch.device("cuda"), torch.empty(2**10)
    for rows, expected in ((2**10, "cpu"), (2**10 + 1, "cuda")):
        output = {"output 0": row.expand(rows, -1), "output 1": 3}
        assert accuracy.place(output, gpu).type == expected, rows


def test_losses_that_look_the_same_say_how_they_differ():
    ours, eager = (Trajectory([loss], {}, {}, {}, {}, {}, {}) for loss in (1.0000001, 1.0))
    reason = "the loss is 1 in step 1, but eager's is 1: relative error 1e-07, allowed 1e-08"
    assert Comparison(ours, eager, {}, 1e-9).wrong() == reason
    ours.losses = [1.5]
    assert (
        Comparison(ours, eager, {}, 1e-9).wrong() == "the loss is 1.5 in step 1, but eager's is 1"
    )
    ours.losses = [1.0000001]
    exact = Exact(1.0, {}, {})
    reason = (
        "the loss of the first step is 1, but 1 in float64: relative error 1e-07, allowed 1e-09"
    )
    assert Comparison(ours, eager, {}, 1e-9).far_from_float64(lambda state, number: exact) == reason
