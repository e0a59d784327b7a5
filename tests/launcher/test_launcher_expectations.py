"""What a setting takes, as errors say it, and the example that they give."""

import shlex

import pytest

from effbench import streams
from effbench.errors import ConfigError
from effbench.launcher.expectations import (
    SETTINGS,
    as_typed,
    check_bounds,
    example,
    expectation,
    wrong_value,
)
from effbench.launcher.validation import validate


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bs", "a whole number of at least 1"),
        ("protocol.rounds", "a whole number from 1 to 10,000"),
        ("protocol.min_time_s", "a number of seconds, at least 0"),
        ("protocol.target_interval", "a number of at least 0"),
        ("model.tolerance", "a number above 0, or null"),
        ("sweep.seed", "a whole number"),
        ("protocol.profile", "true or false"),
        ("on_failure", "one of fail, ignore"),
        ("protocol.eliminate", "one of latency_ms, period_ms, or null"),
        ("artifacts", "a list of trace, code, snapshot, graph"),
        ("shard", "text or null"),
    ],
)
def test_settings_of_every_type_say_what_they_take(name, expected):
    assert expectation(SETTINGS[name]) == expected


#: Settings whose examples are valid only together with others.
TOGETHER = (
    "model.arch",
    "model.task",
    "model.seq",
    "model.image_size",
    "executor.name",
    "shard",
    "stream.",
)


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_the_example_of_every_setting_is_valid(name, compose):
    (word,) = shlex.split(example(SETTINGS[name]))
    assert word.startswith(f"{name}=")
    key = name.removeprefix("stream.")
    kinds = (
        [kind for kind, defaults in streams.KINDS.items() if key in defaults] if key != name else []
    )
    if kinds == ["csv"]:
        return  # there is no such file
    composed = compose([*(f"stream={kind}" for kind in kinds[:1]), word])
    if not name.startswith(TOGETHER):
        validate(composed, set(), [word])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bs", 1),
        ("bs", 2**31 - 1),
        ("protocol.rounds", 1),
        ("protocol.rounds", 10_000),
        ("protocol.budget_s", 0.1),
        ("protocol.budget_s", 1e12),
        ("protocol.min_time_s", 0),
        ("sweep.seed", -5),
        ("model.tolerance", None),
        ("protocol.profile", True),
        ("mode", {}),
        ("mode", 5),
    ],
)
def test_values_within_their_bounds(name, value):
    check_bounds(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bs", 0),
        ("bs", -1),
        ("bs", 2**31),
        ("protocol.rounds", 0),
        ("protocol.rounds", 10_001),
        ("protocol.budget_s", 0),
        ("protocol.budget_s", -1.0),
        ("protocol.min_time_s", -0.1),
        ("sweep.seed", 2**31),
        ("sweep.seed", -(2**31)),
        ("model.tolerance", 0.0),
    ],
)
def test_values_out_of_bounds(name, value):
    with pytest.raises(ConfigError, match=f"{name}: expected a .* got .* Example: {name}="):
        check_bounds(name, value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("one", "'one'"),
        ("", "''"),
        ("1.5", "1.5"),
        ("null", "null"),
        ("[a]", "[a]"),
        ("1e5", "1e5"),
    ],
)
def test_values_as_they_were_typed(value, text):
    assert as_typed(value) == text


def test_no_setting_has_no_error():
    assert wrong_value("nothing", "1") is None
