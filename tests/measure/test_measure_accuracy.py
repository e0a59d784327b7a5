"""Which outputs count as right: by dtype, by kind, and by a float64 reference where a dtype is too
coarse."""

import dataclasses

import pytest
import torch

from effbench.measure import accuracy

ZERO = torch.zeros(1)


def reference(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(64, 32, generator=generator).to(dtype)


def compare(output, eager, **options):
    comparison = accuracy.Comparison(**options)
    return comparison.compare(accuracy.parts(output), accuracy.parts(eager))


def correct(output, eager):
    return compare(output, eager).reason is None


def with_float64(*outputs, **options):
    return accuracy.Comparison(**options).compare_with_float64(*map(accuracy.parts, outputs))


@pytest.mark.parametrize(
    ("dtype", "is_right"), [(torch.float32, False), (torch.bfloat16, True), (torch.float64, False)]
)
def test_a_wider_output_of_a_half_model_has_its_tolerance(dtype, is_right):
    ref = reference()
    assert (compare(ref * 1.01, ref, dtype=dtype).reason is None) is is_right


def masked(values, mask):
    values[:, ::2] = mask
    return values


@pytest.mark.parametrize("mask", [-1e4, torch.finfo(torch.float32).min])
def test_masked_values_do_not_hide_wrong_ones(mask):
    ref = masked(reference(), mask)
    exact = masked(reference(torch.float64), torch.finfo(torch.float64).min)
    right = masked(reference() * (1 + 1e-6), mask)
    assert correct(right, ref)
    assert with_float64(right, ref, exact) is None
    # a mask that was added to logits is rounded
    for of_wrong in (mask, mask * (1 - 1e-6)):
        wrong = masked(reference() * 1.1, of_wrong)
        assert not correct(wrong, ref)
        assert with_float64(wrong, ref, exact)


def test_values_that_are_all_masks():
    alone = torch.full((4,), -1e4)
    assert correct(alone, alone)
    assert not correct(alone * 1.01, alone)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool], ids=str)
def test_integers_must_be_equal(dtype):
    ref = torch.tensor([0, 1, 1, 0], dtype=dtype)
    other = torch.tensor([0, 1, 0, 0], dtype=dtype)
    assert compare(ref.clone(), ref) == accuracy.AccuracyVerdict(None, None, True)
    assert "1 of 4 values" in compare(other, ref).reason


@dataclasses.dataclass
class Outputs:
    a: torch.Tensor
    b: torch.Tensor


@pytest.mark.parametrize(
    "make",
    [lambda a, b: {"deep": [{"a": a}, (b, None, "text", 3)]}, Outputs],
    ids=["deep", "dataclass"],
)
def test_every_tensor_of_a_structure_counts(make):
    ref = make(reference(), torch.arange(3))
    assert correct(make(reference(), torch.arange(3)), ref)
    assert not correct(make(reference(), torch.tensor([0, 1, 3])), ref)
    assert not correct(make(reference() + 1, torch.arange(3)), ref)


@pytest.mark.parametrize(
    ("out", "ref", "words"),
    [
        ({"a": ZERO}, {"b": ZERO}, "the structure differs from eager's: output['a'], output['b']"),
        ((ZERO, 3), (ZERO, 4), "output[1] is 3, but eager's is 4"),
        (
            torch.zeros(4, 1),
            torch.zeros(4),
            "(4, 1) torch.float32, but eager's is (4,) torch.float32",
        ),
        (ZERO.double(), ZERO, "torch.float64"),
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
        (torch.tensor(0), 3, False),
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
        (ZERO.to_sparse, "a nested or sparse tensor"),
        (
            lambda: torch.nested.nested_tensor([ZERO, ZERO], layout=torch.jagged),
            "a nested or sparse tensor",
        ),
    ],
    ids=["object", "sparse", "nested"],
)
def test_what_could_hide_tensors_is_refused(make, words):
    with pytest.raises(TypeError, match=f"contains {words}"):
        accuracy.parts((ZERO, make()))


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1.0, torch.inf], "b"), ([1.0, complex(0.0, torch.nan)], "b"), ([1, 2], None)],
)
def test_what_is_not_finite_is_named(values, expected):
    assert accuracy.not_finite({"a": torch.ones(2), "b": torch.tensor(values)}) == expected


def test_values_that_are_not_finite_must_be_at_the_same_places():
    ref = torch.tensor([1.0, torch.nan, torch.inf])
    assert compare(ref.clone(), ref) == accuracy.AccuracyVerdict(0, None, True)
    assert with_float64(ref.clone(), ref, ref.double()) is None
    assert not correct(torch.tensor([1.0, torch.inf, torch.nan]), ref)
    assert not correct(torch.tensor([1.0, 2.0, torch.inf]), ref)


class TestFloat64:
    """The rule of PyTorch's own harness: at most k times eager's error, k = 2, for half types 3."""

    def test_eager_far_off_decides_nothing(self):
        exact = reference(torch.float64)
        eager = (exact * 1.5).float()
        assert "eager itself is 0.5" in with_float64(eager, eager, exact)

    @pytest.mark.parametrize("size", [0.01, 1.0, 100.0])
    @pytest.mark.parametrize(
        ("dtype", "factor"), [(torch.float32, 2), (torch.bfloat16, 3), (torch.float16, 3)], ids=str
    )
    def test_as_near_as_eager(self, dtype, factor, size):
        exact = size * reference(torch.float64)
        # 5 % off: far beyond any tolerance, and exactly known
        eager = (exact * 1.05).to(dtype)
        near = (exact * (1 - 0.05 * (factor - 0.2))).to(dtype)
        far = (exact * (1 - 0.05 * (factor + 0.3))).to(dtype)
        assert not correct(near, eager)
        assert with_float64(near, eager, exact) is None
        assert "against float64, eager's is" in with_float64(far, eager, exact)
        assert with_float64(near, eager, exact, dtype=torch.float32) is None, (
            "a narrow output keeps its rule"
        )
