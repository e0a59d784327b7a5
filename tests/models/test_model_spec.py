"""What planning refuses, and what it says."""

import pytest

from effbench.errors import ConfigError
from effbench.models.spec import InputSpec, parse_inputs


def test_keys_and_defaults():
    assert parse_inputs({"x": {"shape": [3, 4]}}) == {"x": InputSpec(shape=(3, 4), dtype="auto", batch_dim=0)}
    node = {"shape": [5], "dtype": "int32", "low": -1, "high": 2, "batch_dim": 1, "keyword": True}
    spec = InputSpec(shape=(5,), dtype="int32", low=-1, high=2, batch_dim=1, keyword=True)
    assert parse_inputs({"x": node}) == {"x": spec}


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"shpae": [1]}, ["model.inputs.x.shpae", "Did you mean shape?", "batch_dim"]),
        ({"shape": [1], "zzz": 1}, ["model.inputs.x.zzz is not a setting. Allowed: shape, dtype, low"]),
        ({}, ["model.inputs.x.shape: expected", "got None", "without the batch dimension"]),
        ({"shape": 3}, ["got 3", "model.inputs.x.shape: expected a list of positive integers"]),
        ({"shape": [-1]}, ["model.inputs.x.shape: expected", "got [-1]", "positive"]),
        ({"shape": [1], "dtype": "flaot32"}, ["the unknown value 'flaot32'", "Did you mean float32?", "int64"]),
        ({"shape": [1], "dtype": "int64"}, ["model.inputs.x: int64 requires low and high", "value"]),
        ({"shape": [1], "dtype": "int64", "low": 0}, ["model.inputs.x: int64 requires low and high", "[low, high)"]),
        ({"shape": [1], "dtype": "int64", "low": 0, "high": 1.5}, ["x.high must be an integer", "got 1.5"]),
        ({"shape": [1], "low": 0, "high": float("inf")}, ["x.high must be a finite number", "got inf"]),
        ({"shape": [1], "dtype": "int64", "low": 5, "high": 5}, ["low must be below high", "low=5 and high=5"]),
        ({"shape": [1], "dtype": "uint8", "low": 0, "high": 257}, ["x.high must be an integer", "0 to 255", "got 257"]),
        ({"shape": [1], "dtype": "bool", "low": 0, "high": 1}, ["bool does not allow low and high"]),
        ({"shape": [1], "low": 0, "high": 1, "value": 0}, ["value excludes low and high"]),
        ({"shape": [1], "dtype": "int64", "value": 1.5}, ["x.value must be an integer from", "got 1.5"]),
        ({"shape": [1], "dtype": "bool", "value": 2}, ["x.value must be true or false", "got 2"]),
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
