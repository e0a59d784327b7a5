"""Parts of a module: which are chosen, that the module itself stays as it is, and how often Dynamo compiles."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo.utils
from torch import nn

from effbench.errors import ConfigError
from effbench.modes.selective import Selection, blocks_of, matching, shared_weight_copy


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.norm = nn.LayerNorm(width)

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


class Three(nn.Module):
    """Without a loop: Dynamo gives a frame up that breaks inside one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = Block(), Block(), Block()

    def forward(self, x):
        return self.third(self.second(self.first(x)))


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def breaks() -> int:
    return sum(torch._dynamo.utils.counters["graph_break"].values())


def run(selection: Selection, module: nn.Module) -> dict:
    """Apply it with Dynamo's backend `eager`, compare with the module, and return the facts."""
    with torch.inference_mode():
        x = torch.randn(3, 8)
        reference = module(x)
        step, facts = selection.apply(module, backend="eager")
        for _ in range(2):
            torch.testing.assert_close(step(x), reference)
        before = graphs()
        torch.testing.assert_close(module(x), reference)
        assert graphs() == before, "the module itself is not compiled"
    assert not [name for name, part in module.named_modules() if "forward" in vars(part)]
    return facts


def test_a_twin_shares_its_tensors_and_nothing_else():
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval()
    twin = shared_weight_copy(module)
    assert all(a is b for a, b in zip(module.state_dict(keep_vars=True).values(),
                                      twin.state_dict(keep_vars=True).values(), strict=True))  # fmt: skip
    assert twin[0] is not module[0]
    assert not twin.training


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["layers.*"], ["layers.0", "layers.1", "layers.2", "layers.3"]),
        (["layers.*.mlp"], ["layers.0.mlp", "layers.1.mlp", "layers.2.mlp", "layers.3.mlp"]),
        (["layers.[01].mlp", "layers.1", "head"], ["layers.0.mlp", "layers.1", "head"]),
        (["*"], ["embed", "layers.0", "layers.1", "layers.2", "layers.3", "head"]),
    ],
)
def test_the_outermost_matches(patterns, names):
    assert list(matching(Stack(), "only", patterns)) == names


def test_a_pattern_that_matches_nothing_names_the_nearest():
    with pytest.raises(ConfigError, match=r"mode.skip: no module inside Stack matches 'haed'; did you mean head"):
        matching(Stack(), "skip", ["layers.*", "haed"])


def test_only_compiles_each_match_by_itself():
    facts = run(Selection(only=["layers.*.mlp", "head"]), Stack(2))
    assert facts == {"compiled_modules": ["layers.0.mlp", "layers.1.mlp", "head"]}
    assert graphs() == 3


def test_skip_leaves_a_part_to_eager():
    facts = run(Selection(skip="second"), Three())
    assert facts == {"eager_modules": ["second"]}
    assert (graphs(), breaks()) == (2, 1), "before it and after it"


def test_equal_blocks_share_one_compilation():
    facts = run(Selection(regional=True), Stack(12))
    assert facts == {"region": "Block", "compiled_modules": [f"layers.{i}" for i in range(12)]}
    assert graphs() == 1


def test_the_whole_is_one_graph_without_a_selection():
    selection = Selection()
    assert not selection
    assert run(selection, Stack()) == {}
    assert graphs() == 1


def test_blocks_by_name():
    name, parts = blocks_of(Stack(2), "LayerNorm")
    assert (name, list(parts)) == ("LayerNorm", ["layers.0.norm", "layers.1.norm"])
    with pytest.raises(ConfigError, match="no module inside Stack is one; it has: Block, LayerNorm, Linear, ReLU"):
        blocks_of(Stack(), "Layer")


def test_nothing_is_repeated():
    with pytest.raises(ConfigError, match="no class with weights is repeated side by side in Sequential"):
        blocks_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.ReLU()), True)
