"""Blocks of a module: which are chosen, that the module itself stays as it is, and how often Dynamo
compiles."""

from functools import partial

import pytest
import torch
import torch._dynamo.utils
from torch import nn

from effbench.core.errors import ConfigError, UnsupportedError
from effbench.modes.compiled import Compiled

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Stack(nn.Module):
    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.layers = nn.ModuleList([Block() for _ in range(depth)])
        self.head = nn.Linear(8, 400)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def run(regional: bool | str, module: nn.Module) -> dict:
    """Compile with Dynamo's backend `eager`, compare with the module, and return the facts."""
    with torch.inference_mode():
        x = torch.randn(3, 8)
        reference = module(x)
        forward = Compiled(regional=regional).compile(module)
        for _ in range(2):
            torch.testing.assert_close(forward.step(x), reference)
        before = graphs()
        torch.testing.assert_close(module(x), reference)
        assert graphs() == before, "the module itself is not compiled"
    assert not [name for name, part in module.named_modules() if "forward" in vars(part)]
    return forward.facts


@pytest.mark.parametrize(
    ("regional", "depth", "facts", "compiled"),
    [
        (False, 4, {}, 1),
        (
            True,
            12,
            {"region": "Block", "compiled_modules": [f"layers.{i}" for i in range(12)]},
            1,
        ),
        (
            "LayerNorm",
            2,
            {"region": "LayerNorm", "compiled_modules": ["layers.0.norm", "layers.1.norm"]},
            1,
        ),
    ],
    ids=["whole", "equal blocks share one compilation", "by name"],
)
def test_parts_are_compiled_as_selected(monkeypatch, regional, depth, facts, compiled):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    assert run(regional, Stack(depth)) == facts
    assert graphs() == compiled


@pytest.mark.parametrize(
    ("regional", "error", "words"),
    [
        ("Layer", ConfigError, "no such module; it contains: Block, LayerNorm, Linear"),
        (True, UnsupportedError, "Sequential contains no repeated siblings"),
    ],
)
def test_a_module_without_such_blocks(regional, error, words):
    module = Stack(1) if regional == "Layer" else nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with pytest.raises(error, match=words):
        Compiled(regional=regional).compile(module)
