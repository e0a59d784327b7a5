"""Inputs of a model against the signature of its forward."""

import functools

import pytest
import torch
from shipped import CONF, load
from torch import nn

from effbench.models.build import resolve_target
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


class AnyNumber(nn.Module):
    def forward(self, x, *others):
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
        (Masked, "ids, scale", None),
        (Masked, "ids, scale, mask", None),
        (Masked, "ids, scale, mask=, bias=", None),
        (Masked, "id, scales", None),
        (Masked, "tokens, factor", None),  # names of positional inputs are the user's
        (
            Masked,
            "ids",
            "forward requires scale, but model.inputs has only ids; describe each, for example",
        ),
        (Masked, "ids=", "forward requires scale"),
        (Masked, "ids, mask=", "forward requires scale"),
        (
            Masked,
            "ids, scale, maks=",
            "model.inputs.maks is no argument of forward: did you mean mask?; allowed: ids",
        ),
        (
            Masked,
            "ids, scale, other=",
            "model.inputs.other is no argument of forward; allowed: ids, scale, mask, bias",
        ),
        (
            Masked,
            "a, b, c, d",
            "4 inputs by position (a, b, c, d), but forward takes 3 by position",
        ),
        (Masked, "ids, scale, mask, bias", "set model.inputs.bias.keyword=true"),
        (
            Masked,
            "ids, mask",
            "model.inputs.mask is passed by position, where forward expects scale",
        ),
        (
            Masked,
            "ids, maks",
            "model.inputs.maks is passed by position as scale: did you mean mask?",
        ),
        (
            Masked,
            "a, scale, ids=",
            "forward gets its argument ids twice: by position from model.inputs.a",
        ),
        (Decorated, "ids", "forward requires scale"),
        (Decorated, "ids, scale", None),
        (Injected, "x", None),
        (AnyNames, "x, y=, z=", None),
        (AnyNames, "y=", "forward requires x"),
        (AnyNumber, "x, y, z", None),
        (AnyNumber, "x, y=", "model.inputs.y is no argument of forward"),
        (Static, "x", None),
        (Static, "x, y", "2 inputs by position"),
        (nn.Linear, "x", None),
        (nn.MultiheadAttention, "query", "forward requires key, value"),
    ],
)
def test_inputs_fit_or_are_refused_for_a_class_and_its_module(kind, inputs, words):
    arguments = {nn.Linear: (2, 2), nn.MultiheadAttention: (2, 1)}.get(kind, ())
    for reason in (
        class_mismatch(kind, passed(inputs)),
        module_mismatch(kind(*arguments), passed(inputs)),
    ):
        assert reason == words or words in reason


def test_what_only_an_instance_knows_is_not_refused():
    wrong = {"x": False, "y": False, "z": False, "more": False}
    hooked = Masked()
    hooked.register_forward_pre_hook(lambda module, args: (1, 2))
    replaced = Masked()
    replaced.forward = lambda *inputs: inputs[0]
    assert (
        class_mismatch(nn.Module, wrong) is None and class_mismatch(lambda: Masked(), wrong) is None
    )
    assert class_mismatch(OwnCall, wrong) is None
    for module in (hooked, replaced, OwnCall(), torch.jit.script(nn.Linear(2, 2))):
        assert module_mismatch(module, wrong) is None
    replaced.forward = lambda x: x
    assert "forward takes 1 by position (x)" in module_mismatch(replaced, wrong)


def test_shipped_models_fit():
    names = [
        path.stem
        for path in CONF.glob("*.yaml")
        if path.stem not in ("custom", "torchvision", "timm")
    ]
    checked = 0
    for name in names:
        node = load(name, 2)
        if not node["inputs"] or "torchvision" in node["module"]["_target_"] or "bert" in name:
            continue
        given = {key: bool(spec.get("keyword")) for key, spec in node["inputs"].items()}
        assert class_mismatch(resolve_target(node["module"]["_target_"]), given) is None, name
        checked += 1
    assert checked > 15
