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


def compare(output, eager, tolerance=None, **options):
    return accuracy.compare(accuracy.parts(output), accuracy.parts(eager), tolerance, **options)


def correct(output, eager):
    return compare(output, eager).reason is None


def with_float64(*outputs, **options):
    return accuracy.compare_with_float64(*map(accuracy.parts, outputs), **options)


@pytest.mark.parametrize("names", [("a.b", "a", "b"), (1, "1")])
def test_parts_of_the_same_name_are_all_compared(names):
    first, second, *inner = names
    ones = {key: torch.ones(2) for key in inner} or torch.ones(2)
    parts = accuracy.parts({first: torch.zeros(2), second: ones})
    assert [float(part[0]) for part in parts.values()] == [0.0, 1.0]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_tolerance_in_float64(dtype):
    """So that the dtype's own rounding does not decide."""
    ref = reference(torch.float64)
    limit = accuracy.TOLERANCES[dtype]
    assert compare(ref * (1 + 0.5 * limit), ref, limit).reason is None
    verdict = compare(ref * (1 + 10 * limit), ref, limit)
    assert verdict.only_values
    assert verdict.error == pytest.approx(10 * limit, rel=0.01)
    assert f"relative error {10 * limit:.2g}" in verdict.reason


@pytest.mark.parametrize(("factor", "is_right"), [(0, True), (0.2, True), (20, False)])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_tolerance_by_dtype(dtype, factor, is_right):
    ref = reference(torch.float64)
    out = ref * (1 + factor * accuracy.TOLERANCES[dtype])
    assert correct(out.to(dtype), ref.to(dtype)) is is_right


def test_the_reason_counts_values_if_the_error_of_all_is_within_the_tolerance():
    out, ref = reference(torch.float32), reference(torch.float32)
    out[0, :3] += 0.01
    verdict = compare(out, ref, 1e-3)
    assert verdict.error < 1e-3
    assert verdict.reason.endswith("tolerance 0.001, which 3 of 2,048 values exceed")
    assert "values" not in compare(out * 1.1, ref, 1e-3).reason


@pytest.mark.parametrize(
    ("dtype", "is_right"), [(None, False), (torch.bfloat16, True), (torch.float64, False)]
)
def test_a_wider_output_of_a_half_model_has_its_tolerance(dtype, is_right):
    ref = reference()
    assert (compare(ref * 1.01, ref, dtype=dtype).reason is None) is is_right


@pytest.mark.parametrize(
    ("factor", "dtype", "is_right"),
    [(1.002, None, True), (1.0027, None, False), (1.0027, torch.bfloat16, True)],
)
def test_a_wider_output_of_a_half_model_has_its_tolerance_in_float64(factor, dtype, is_right):
    ref = reference()
    reason = with_float64(ref * factor, ref * 1.001, ref.double(), dtype=dtype)
    assert (reason is None) is is_right


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
    ref, near, far = ((exact * factor).to(dtype) for factor in (1.0, 1.001, 1.5))
    assert near.float().ne(ref.float()).any()
    assert correct(near, ref)
    assert not correct(far, ref)
    assert accuracy.not_finite(accuracy.parts(near)) is None
    assert with_float64(near, ref, exact) is None


def test_large_values_are_no_masks():
    ref = 1e5 * reference(torch.bfloat16)
    right = ref + 500 * reference(torch.bfloat16).flip(0)
    assert correct(right, ref) and not correct(right, ref / 1e5)
    assert accuracy.rms(ref, ref) == accuracy.rms(ref)


def test_large_tensors_are_compared_in_pieces(monkeypatch):
    ref = reference(torch.float64)
    out = ref + torch.linspace(0, 1e-3, ref.numel(), dtype=torch.float64).reshape(ref.shape)
    ref.view(-1)[0] = out.view(-1)[0] = float("inf")

    def figures():
        return [accuracy.relative_error(out, ref), accuracy.rmse(out, ref), accuracy.rms(ref)]

    whole = figures()
    monkeypatch.setattr(accuracy, "PIECE", 7)
    assert figures() == pytest.approx(whole, rel=1e-12)
    assert whole[0] > 0
    finite = ref.view(-1)[1:]
    assert whole[2] == pytest.approx(finite.square().mean().sqrt().item(), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool], ids=str)
def test_integers_must_be_equal(dtype):
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
    verdict = compare(make(reference(), torch.tensor([0, 1, 3])), ref)
    assert "differs from eager in 1 of 3 values" in verdict.reason
    assert not correct(make(reference() + 1, torch.arange(3)), ref)


def test_parts_after_plain_values_and_integers_count():
    ref, numbers = reference(), torch.arange(3)
    eager = (3, numbers, ref, ref)
    verdict = compare((3, numbers, ref * 1.1, ref * 1.01), eager)
    assert verdict.error == pytest.approx(0.1, rel=0.01)
    assert verdict.reason.startswith("output 2 differs")
    verdict = compare((3, numbers + 1, ref, ref * 1.1), eager)
    assert verdict.reason.startswith("output 1 differs")
    assert with_float64((numbers, ref * 1.1), (numbers, ref), (numbers, reference(torch.float64)))


@pytest.mark.parametrize(
    ("out", "ref", "words"),
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
def test_another_structure_is_wrong_and_no_case_for_float64(out, ref, words):
    verdict = compare(out, ref)
    assert not verdict.only_values
    assert words in verdict.reason


NAN = float("nan")
SIZES = [torch.tensor(1), torch.tensor(2)]


@pytest.mark.parametrize(
    ("out", "ref", "is_right"),
    [
        # the last digits may differ
        (1.0, 1.001, True),
        (NAN, NAN, True),
        (NAN, 1.0, False),
        # AOTInductor returns numbers as tensors
        (torch.tensor(3), 3, True),
        (torch.tensor(True), True, True),
        (torch.tensor(0.1), 0.1, True),
        (torch.tensor(0), 3, False),
        (torch.tensor(0), True, False),
        (torch.tensor(0), 0.1, False),
        (SIZES, torch.Size([1, 2]), True),
        (SIZES, torch.Size([2, 2]), False),
    ],
)
def test_plain_values(out, ref, is_right):
    assert correct((ZERO, out), (ZERO, ref)) is is_right


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (object, "the type object"),
        (ZERO.to_sparse, "a sparse_coo tensor"),
        (lambda: torch.nested.nested_tensor([ZERO, ZERO], layout=torch.jagged), "a nested"),
    ],
    ids=["object", "sparse", "nested"],
)
def test_what_could_hide_tensors_is_refused(make, words):
    with pytest.raises(accuracy.Incomparable, match=f"contains {words}"):
        accuracy.parts((ZERO, make()))


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
    assert accuracy.relative_error(ZERO, ZERO) == 0
    assert accuracy.relative_error(ZERO + 1, ZERO) == float("inf")
    assert correct(ZERO, ZERO)
    assert not correct(ZERO + 1e-3, ZERO)


def test_copies_survive_the_next_call():
    buffer = torch.zeros(2)
    kept, cloned = accuracy.parts({"a": (buffer,)}), accuracy.clone(((buffer,), {}))
    buffer += 1
    assert kept["output a.0"].tolist() == cloned[0][0].tolist() == [0, 0]


class TestFloat64:
    """The rule of PyTorch's own harness: at most k times eager's error, k = 2, for half types 3."""

    @pytest.mark.parametrize("size", [0.01, 1.0, 100.0])
    @pytest.mark.parametrize(
        ("dtype", "factor"), [(torch.float32, 2), (torch.bfloat16, 3), (torch.float16, 3)], ids=str
    )
    def test_as_near_as_eager(self, dtype, factor, size):
        exact = size * reference(torch.float64)
        # 5 % off: far beyond any tolerance, and exactly known
        eager = (exact * 1.05).to(dtype)
        near, far = ((exact * (1 - 0.05 * (factor + by))).to(dtype) for by in (-0.2, 0.3))
        assert not correct(near, eager)
        assert with_float64(near, eager, exact) is None
        assert "against float64, eager's is" in with_float64(far, eager, exact)
        assert with_float64(near, eager, exact, dtype=torch.float32) is None, (
            "a narrow output keeps its rule"
        )

    def test_an_eager_that_is_far_off_proves_nothing(self):
        exact = reference(torch.float64)
        random = [exact.float() + torch.rand(exact.shape) for _ in range(2)]
        assert re.search("eager itself is .* keeps state in a list", with_float64(*random, exact))

    @pytest.mark.parametrize(
        ("ours", "eagers", "is_right"),
        [
            ([1, 2, 3], 3, True),
            ([1, 2, 4], 3, False),
            # where eager misses one, another mode may miss two
            ([1, 8, 9], 9, True),
            ([7, 8, 9], 9, False),
        ],
    )
    def test_integers_beside_floats(self, ours, eagers, is_right):
        floats, exact = reference(), (reference(torch.float64), torch.tensor([1, 2, 3]))
        eager = (floats, torch.tensor([1, 2, eagers]))
        assert (with_float64((floats, torch.tensor(ours)), eager, exact) is None) is is_right


@pytest.mark.parametrize(("rows", "expected"), [(2**10, "cpu"), (2**10 + 1, "cuda")])
def test_small_outputs_are_compared_on_the_host(rows, expected):
    output = {"output 0": torch.empty(2**10).expand(rows, -1), "output 1": 3}
    assert accuracy.place(output, torch.device("cuda")).type == expected


def test_losses_that_look_the_same_say_how_they_differ():
    ours, eager = (Trajectory([loss], {}, {}, {}, {}, {}, {}) for loss in (1.0000001, 1.0))
    comparison = Comparison(ours, eager, {}, 1e-9)
    assert comparison.wrong() == (
        "the loss is 1 in step 1, but eager's is 1: relative error 1e-07, allowed 1e-08"
    )
    assert comparison.far_from_float64(lambda state, number: Exact(1.0, {}, {})) == (
        "the loss of the first step is 1, but 1 in float64: relative error 1e-07, allowed 1e-09"
    )
    ours.losses = [1.5]
    assert comparison.wrong() == "the loss is 1.5 in step 1, but eager's is 1"
