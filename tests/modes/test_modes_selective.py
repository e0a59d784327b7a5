"""Parts of a module: which are chosen, that the module itself stays as it is, and how often Dynamo
compiles."""

import pytest
import torch
import torch._dynamo.utils
from torch import nn

from effbench.core.errors import ConfigError, UnsupportedError
from effbench.modes.selective import PartSelection, blocks_of, matching

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


def run(selection: PartSelection, module: nn.Module) -> dict:
    """Apply it with Dynamo's backend `eager`, compare with the module, and return the facts."""
    with torch.inference_mode():
        x = torch.randn(3, 8)
        reference = module(x)
        forward = selection.apply(module, backend="eager")
        for _ in range(2):
            torch.testing.assert_close(forward.step(x), reference)
        before = graphs()
        torch.testing.assert_close(module(x), reference)
        assert graphs() == before, "the module itself is not compiled"
    assert not [name for name, part in module.named_modules() if "forward" in vars(part)]
    return forward.facts


LAYERS = ["layers.0", "layers.1", "layers.2", "layers.3"]


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["layers.*"], LAYERS),
        (["layers.[01].mlp", "layers.1", "head"], ["layers.0.mlp", "layers.1", "head"]),
        (["*"], ["embed", *LAYERS, "head"]),
    ],
)
def test_the_outermost_matches(patterns, names):
    assert list(matching(Stack(), patterns)) == names


@pytest.mark.parametrize(
    ("selection", "depth", "facts", "compiled"),
    [
        (PartSelection(), 4, {}, 1),
        (
            PartSelection(only=["layers.1.mlp", "head"]),
            4,
            {"compiled_modules": ["layers.1.mlp", "head"]},
            2,
        ),
        (
            PartSelection(regional=True),
            12,
            {"region": "Block", "compiled_modules": [f"layers.{i}" for i in range(12)]},
            1,
        ),
    ],
    ids=["whole", "only", "equal blocks share one compilation"],
)
def test_parts_are_compiled_as_selected(selection, depth, facts, compiled):
    assert run(selection, Stack(depth)) == facts
    assert graphs() == compiled


def test_blocks_by_name():
    name, parts = blocks_of(Stack(2), "LayerNorm")
    assert (name, list(parts)) == ("LayerNorm", ["layers.0.norm", "layers.1.norm"])
    with pytest.raises(ConfigError, match="no such module; it contains: Block, LayerNorm, Linear"):
        blocks_of(Stack(), "Layer")
    with pytest.raises(UnsupportedError, match="Sequential contains no repeated siblings"):
        blocks_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.ReLU()), True)
