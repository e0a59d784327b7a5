"""The pieces of `piecewise-graph` over captures that simply run again: how a module is split, and
what its calls return. Graphs: tests/gpu."""

import pytest
import torch
from again import PiecesAgain, capture
from torch import nn
from torch.fx import symbolic_trace

from effbench.core.errors import UnsupportedError
from effbench.models.attention import AttentionBlock
from effbench.models.llama import LlamaDecoder
from effbench.modes.base import Example
from effbench.modes.piecewise import Recording

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
TINY = {"layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "ffn": 64, "vocab": 50}


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


class Blocks(nn.Module):
    """A structure as output; an input by name."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([AttentionBlock(8, 32, 2) for _ in range(2)])

    def forward(self, x, *, scale):
        for block in self.blocks:
            x = block(x) * scale
        return {"x": x, "mean": [x.mean()]}


class Operators(nn.Module):
    """A method with several outputs, an operator that writes to a value of an earlier piece, and a
    value that a later piece reads."""

    def forward(self, x):
        first, second = (x + 1).chunk(2, -1)
        total = first * 2
        total.clamp_(max=1)
        return total.softmax(-1) + second + total


class Flexible(nn.Module):
    def forward(self, x):
        from torch.nn.attention.flex_attention import flex_attention

        heads = x.unflatten(-1, (2, 8)).transpose(1, 2).contiguous()
        return flex_attention(heads * 2, heads, heads).sin()


class Counts(nn.Module):
    def forward(self, x):
        return x.sin() * x.dim()


def run(module, *makers, mode=None):
    """Prepare with the first inputs, and compare calls with others; return what was prepared."""
    first, *others = [tuple(make() for make in makers) for _ in range(4)]
    prepared = (mode or PiecesAgain()).prepare(module.eval(), Example(first))
    for args in others:
        torch.testing.assert_close(prepared.step(*args), module(*args))
    return prepared


def numbers():
    return torch.randn(2, 32, 16)


def test_a_network_with_a_cache_is_split_at_attention():
    module = LlamaDecoder(2, 16, 4, **TINY)
    prepared = run(module, lambda: torch.randint(50, (2, 1)), lambda: torch.randint(4, 9, (1,)))
    assert (prepared.degraded, prepared.compile_cache) == (None, "cold")
    assert (prepared.facts["pieces"], prepared.facts["captured_pieces"]) == (5, 3)


def test_outputs_keep_their_structure_and_their_memory():
    module = Blocks().eval()
    example = Example((torch.randn(2, 8, 32),), {"scale": torch.rand(2, 1, 1)})
    step = PiecesAgain().prepare(module, example).step
    outputs = []
    for _ in range(2):
        args, scale = (torch.randn(2, 8, 32),), torch.rand(2, 1, 1)
        outputs.append(step(*args, scale=scale))
        torch.testing.assert_close(outputs[-1], module(*args, scale=scale))
    assert outputs[0]["x"] is outputs[1]["x"]


@pytest.mark.parametrize(
    ("patterns", "pieces"),
    [
        (["softmax"], 3),
        (["chunk"], 3),
        (["clamp_"], 3),
        (["chunk", "clamp_", "softmax"], 6),
        (["add", "mul"], 6),
    ],
)
def test_named_operators_run_between_pieces(patterns, pieces):
    prepared = run(Operators(), numbers, mode=PiecesAgain(split_on=patterns))
    assert prepared.facts["pieces"] == pieces


def test_custom_operators_have_a_namespace_and_may_write_to_their_inputs():
    @torch.library.custom_op("effbench_tests::double", mutates_args=("out",))
    def double(x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(x * 2)

    class Doubles(nn.Module):
        def forward(self, x):
            out = torch.zeros_like(x)
            double(x.sin(), out)
            return out.cos()

    mode = PiecesAgain(split_on=["effbench_tests::double"])
    assert run(Doubles(), numbers, mode=mode).facts["pieces"] == 3


@pytest.mark.parametrize(
    ("patterns", "captured", "reason"),
    [
        (["softmin"], 1, "no operator of the module matches mode.split_on=['softmin']"),
        (["*"], 0, "all operators of the module match mode.split_on=['*']"),
    ],
)
def test_a_module_that_is_not_split_is_degraded(patterns, captured, reason):
    prepared = run(Operators(), numbers, mode=PiecesAgain(split_on=patterns))
    assert prepared.facts["captured_pieces"] == captured
    assert prepared.degraded.startswith(reason)


def test_an_operator_must_return_tensors():
    call = Recording(["dim"], capture).backend(symbolic_trace(Counts()), [])
    with pytest.raises(UnsupportedError, match="dim returns values that are no tensors"):
        call(torch.ones(2))


def test_compiled_pieces_have_the_options_of_their_mode(monkeypatch):
    given = []

    def compile_piece(piece, inputs, options):
        given.append(options)
        return piece

    monkeypatch.setattr(torch._inductor, "compile", compile_piece)
    mode = PiecesAgain(inner="max-autotune-no-cudagraphs", options={"max_autotune": False})
    prepared = run(AttentionBlock(32, 16, 2), numbers, mode=mode)
    expected = {"max_autotune": False, "coordinate_descent_tuning": True}
    assert given == [expected] * 2
    assert prepared.compile_cache is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    ("module", "inner"), [(AttentionBlock(32, 16, 2), "default"), (Flexible(), None)]
)
def test_pieces_compiled_by_inductor(module, inner):
    assert run(module, numbers, mode=PiecesAgain(inner=inner)).facts["pieces"] == 3
