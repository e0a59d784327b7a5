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
    nodes = {"x": {"shape": [64]}, "y": {"shape": [64]}}
    before = torch.get_rng_state()
    first, again, other = (make(seed=seed, **nodes)[0] for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    for a, b, c in zip(first, again, other, strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
    assert not torch.equal(first[0], first[1])


def test_values_are_normal_in_the_cells_dtype():
    (x,), _ = make(bs=1000, x={"shape": [100]})
    assert abs(float(x.mean())) < 0.02
    assert abs(float(x.std()) - 1) < 0.02
    (half,), _ = make(bs=1000, dtype=torch.bfloat16, x={"shape": [100]})
    assert torch.equal(half, x.bfloat16())


def test_values_between_limits_are_uniform():
    (x,), _ = make(bs=1000, x={"shape": [100], "low": -2, "high": 6})
    assert -2 <= float(x.min()) < -1.9
    assert 5.9 < float(x.max()) <= 6
    assert abs(float(x.mean()) - 2) < 0.1


def test_batch_dim_and_keywords():
    args, kwargs = make(
        mask={"shape": [2], "keyword": True},
        x={"shape": [2, 3], "batch_dim": 1},
        y={"shape": [2, 3], "batch_dim": None},
    )
    assert [x.shape for x in args] == [(2, 4, 3), (2, 3)]
    assert {name: x.shape for name, x in kwargs.items()} == {"mask": (4, 2)}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"shpae": [1]}, "model.inputs.x.shpae is not a setting: did you mean shape?"),
        ({"shape": [-1]}, "model.inputs.x.shape: expected a list of positive integers"),
        ({"dtype": "flaot32"}, "got 'flaot32': did you mean float32?"),
        ({"dtype": "int64"}, "model.inputs.x: int64 requires low and high"),
        ({"low": 5}, "model.inputs.x: auto requires low and high"),
        ({"batch_dim": 2}, "x.batch_dim must be between 0 and 1, or null, got 2"),
        ({"batch_dim": 0.5}, "x.batch_dim: expected an integer or null, got 0.5"),
        ({"low": "0", "high": 5}, "x.low: expected a number or null, got '0'"),
        ({"value": [1]}, "x.value: expected a number, true, false or null, got [1]"),
        ({"shape": [3, True]}, "x.shape: expected a list of positive integers"),
        ({"keyword": "yes"}, "x.keyword: expected true or false, got 'yes'"),
    ],
)
def test_bad_input(values, text):
    with pytest.raises(ConfigError) as caught:
        parse_inputs({"good": {"shape": []}, "x": {"shape": [1]} | values})
    assert text in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_an_input_that_is_no_mapping():
    with pytest.raises(ConfigError, match=r"inputs\.x must be a mapping"):
        parse_inputs({"x": [3]})
