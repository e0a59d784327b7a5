"""Inputs of a model against the signature of its forward."""

import functools

import pytest
import torch
from torch import nn

from effbench.models.signature import class_mismatch, module_mismatch


class Masked(nn.Module):
    def forward(self, ids, scale, mask=None, *, bias=0):
        return ids


class Decorated(Masked):
    @torch.no_grad()
    def forward(self, ids, scale, mask=None):
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
        (Decorated, "ids", "missing a required argument: 'scale'"),
        (Injected, "x", None),
        (AnyNames, "x, y=, z=", None),
        (Static, "x, y", "too many positional arguments"),
    ],
)
def test_inputs_fit_or_are_refused_for_a_class_and_its_module(kind, inputs, words):
    for reason in (class_mismatch(kind, passed(inputs)), module_mismatch(kind(), passed(inputs))):
        assert reason == words or words in reason


def test_what_only_an_instance_knows_is_not_refused():
    wrong = passed("x, y, z, more")
    hooked = Masked()
    hooked.register_forward_pre_hook(lambda module, args: (1, 2))
    assert class_mismatch(lambda: Masked(), wrong) is None
    assert class_mismatch(OwnCall, wrong) is None
    for module in (hooked, OwnCall()):
        assert module_mismatch(module, wrong) is None
