"""The values of example inputs, and what planning refuses of them."""

import pytest
import torch

from effbench.core.errors import ConfigError
from effbench.models.inputs import make_inputs
from effbench.models.spec import parse_inputs


def make(seed=0, bs=4, dtype=torch.float32, **nodes):
    return make_inputs(
        parse_inputs(nodes),
        bs,
        dtype,
        "cpu",
        seed,
    )


def test_a_seed_gives_the_same_values_and_leaves_the_global_generator_alone():
    nodes = {
        "x": {"shape": [64]},
        "y": {"shape": [64]},
        "i": {"shape": [64], "dtype": "int64", "low": 0, "high": 9},
    }
    before = torch.get_rng_state()
    first, again, other = (make(seed=seed, **nodes)[0] for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    for a, b, c in zip(first, again, other, strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
    assert not torch.equal(first[0], first[1])


def test_normal_in_the_cells_dtype_and_uniform():
    x, half, double = (
        make(bs=1000, dtype=dtype, x={"shape": [100]})[0][0]
        for dtype in (torch.float32, torch.bfloat16, torch.float64)
    )
    assert (x.dtype, half.dtype, double.dtype) == (torch.float32, torch.bfloat16, torch.float64)
    assert abs(float(x.mean())) < 0.02 and abs(float(x.std()) - 1) < 0.02
    assert torch.equal(half, x.bfloat16()) and torch.equal(double, x.double())
    (x,), _ = make(bs=1000, x={"shape": [100], "low": -2, "high": 6})
    assert -2 <= float(x.min()) < -1.9 and 5.9 < float(x.max()) <= 6
    assert abs(float(x.mean()) - 2) < 0.1


def test_batch_dim_and_keywords():
    args, kwargs = make(
        mask={"shape": [2], "keyword": True},
        x={"shape": [2, 3], "batch_dim": 1},
        y={"shape": [2, 3], "batch_dim": None},
        z={"shape": []},
    )
    assert [tuple(a.shape) for a in args] == [(2, 4, 3), (2, 3), (4,)]
    assert list(kwargs) == ["mask"]
    assert tuple(kwargs["mask"].shape) == (4, 2)


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"shpae": [1]}, ["model.inputs.x.shpae", "did you mean shape?", "batch_dim"]),
        ({"shape": [-1]}, ["model.inputs.x.shape: expected", "got [-1]", "positive"]),
        (
            {"shape": [1], "dtype": "flaot32"},
            ["the unknown value 'flaot32'", "did you mean float32?", "int64"],
        ),
        (
            {"shape": [1], "dtype": "int64"},
            ["model.inputs.x: int64 requires low and high", "value"],
        ),
        (
            {"shape": [1], "low": 0, "high": float("inf")},
            ["x.high must be a finite number", "got inf"],
        ),
        (
            {"shape": [1], "dtype": "int64", "low": 5, "high": 5},
            ["low must be below high", "low=5 and high=5"],
        ),
        (
            {"shape": [1], "dtype": "uint8", "low": 0, "high": 257},
            ["x.high must be", "from 0 to 256 ", "got 257"],
        ),
        (
            {"shape": [1], "dtype": "bool", "low": 0, "high": 1},
            ["bool does not allow low and high"],
        ),
        ({"shape": [1], "low": 0, "high": 1, "value": 0}, ["value excludes low and high"]),
        ({"shape": [1], "batch_dim": 2}, ["x.batch_dim must be between 0 and 1, or null", "got 2"]),
        ({"shape": [1], "keyword": "yes"}, ["x.keyword must be false (positional)", "got 'yes'"]),
        ([3], ["model.inputs.x must be", "got [3]", "Keys: shape"]),
    ],
)
def test_bad_input(node, words):
    with pytest.raises(ConfigError) as caught:
        parse_inputs({"good": {"shape": []}, "x": node})
    for word in words:
        assert word in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(ConfigError, match=r"model\.inputs must map .*, got \[1\]"):
        parse_inputs([1])
