"""Inputs of a model against the signature of its forward."""

import functools

import pytest
from torch import nn

from effbench.models.signature import mismatch


class Masked(nn.Module):
    def forward(self, ids, scale, mask=None, *, bias=0):
        return ids


def with_first(function):
    """A decorator that passes an argument of its own."""

    @functools.wraps(function)
    def wrapper(self, *args, **kwargs):
        return function(self, 1, *args, **kwargs)

    return wrapper


class Injected(nn.Module):
    @with_first
    def forward(self, first, x):
        return x


class AnyNames(nn.Module):
    def forward(self, x, **others):
        return x


class Static(nn.Module):
    @staticmethod
    def forward(x):
        return x


class OwnCall(Masked):
    def __call__(self, *inputs):
        return super().__call__(*inputs, 1)


def passed(text):
    """`ids, mask=` -> ids by position, mask by name."""
    return {name.strip().rstrip("="): name.strip().endswith("=") for name in text.split(",")}


@pytest.mark.parametrize(
    ("kind", "inputs", "words"),
    [
        (Masked, "ids, scale, mask=, bias=", None),
        (Masked, "tokens, factor", None),  # names of positional inputs are the user's
        (
            Masked,
            "ids",
            "missing a required argument: 'scale'; forward takes ids, scale, mask, bias, and"
            " model.inputs has ids",
        ),
        (Masked, "ids, scale, maks=", "got an unexpected keyword argument 'maks'"),
        (Masked, "ids, mask", "model.inputs.mask is passed by position, where forward expects"),
        (Masked, "a, scale, ids=", "multiple values for argument 'ids'"),
        (AnyNames, "x, y=, z=", None),
        # only a call could tell
        (Injected, "x", None),
        (Static, "x, y", None),
        (OwnCall, "x, y, z, more", None),
        (lambda: Masked(), "x, y, z, more", None),
    ],
)
def test_inputs_fit_the_forward_of_a_class_or_are_refused(kind, inputs, words):
    reason = mismatch(kind, passed(inputs))
    assert reason == words or words in reason
