"""Generated tokens: whether wrong logits are seen and ties are not wrong, and the figures of whole
sweeps on the CPU."""

import copy

import pytest
import torch
from own_cells import cpu_cell, own_workload
from torch import nn
from whole_sweeps import results_of, trials_of

from effbench.core.errors import UnsupportedError
from effbench.models.gpt2 import GPT2Decoder
from effbench.models.spec import parse_inputs
from effbench.modes.exported import AotInductor
from effbench.worker.trial import unsupported
from effbench.workloads.endings import Ended
from effbench.workloads.generation import Generation, Generator

B, P, N, V = 2, 5, 8, 11
SPECS = parse_inputs(
    {
        "token": {"shape": [1], "dtype": "int64", "low": 0, "high": V},
        "position": {"shape": [1], "dtype": "int64", "value": 1, "batch_dim": None},
    }
)
SMALL = (
    "model=gpt2",
    "model.module.layers=1",
    "model.module.width=16",
    "model.module.heads=2",
    "model.module.vocab=31",
    "model.module.max_seq=40",
    "model.module.context=1",
    "phase=generate",
    "generate.prompt=6",
)


class Next(nn.Module):
    """The token t is followed by t + 1, or by t + 2, whose logit is smaller by `gap`."""

    def __init__(self, gap=1.0):
        super().__init__()
        self.gap = gap

    def forward(self, token, position):
        last = token[:, -1:]
        one, two = (nn.functional.one_hot((last + n) % V, V).float() for n in (1, 2))
        return 10 * one + (10 - self.gap) * two


def cell(**changed):
    settings = {"prompt": P, "new_tokens": N, **changed}
    model = {"name": "m", "module": {"max_seq": P + N}}
    return cpu_cell(B, model, phase="generate", generate=settings)


def generation(module, specs=SPECS):
    prompts = [((torch.full((B, P), 3 + n),), {}) for n in range(2)]
    return own_workload(Generation, cell(), module.eval(), specs, prompts)


def verdict(made, step):
    """Return why the logits of the step are incorrect, or None."""
    made.step = Generator(made.module, made.cell).with_step(step)
    made.take_reference()
    with made.context():
        return made.wrong()


def test_wrong_logits_are_named_by_their_token():
    made, wrong = generation(Next()), Next(gap=-1.0)
    assert (verdict(made, made.module), made.trial.rel_error) == (None, 0)
    tokens = torch.cat(made.tokens[0], 1)
    assert tokens.tolist() == [[(4 + number) % V for number in range(N)]] * B

    def late(token, position):
        module = wrong if int(position) >= P + 2 else made.module
        return module(token, position)

    assert "logits of token 5 differs from eager" in verdict(made, late)


def test_a_step_with_a_cache_of_its_own_lacks_the_prompt():
    torch.manual_seed(0)
    made = generation(GPT2Decoder(B, P + N, 1, layers=1, width=16, heads=2, vocab=V))
    assert verdict(made, made.module) is None
    assert "logits of token 2 differs from eager" in verdict(made, copy.deepcopy(made.module))


def test_a_tie_may_go_either_way_but_what_follows_is_compared():
    made = generation(Next(gap=1e-5))
    other = Next(gap=-1e-5)
    assert verdict(made, other) is None
    made.step = Generator(made.module, made.cell).with_step(other)
    (prompt,), _ = made.inputs.checked[0]
    assert not torch.equal(torch.cat(made.step(prompt)), torch.cat(made.tokens[0]))

    def late(token, position):
        logits = other(token, position)
        return logits.roll(5, dims=-1) if int(position) == P + N - 2 else logits

    assert "logits of token 8 differs from eager" in verdict(made, late)


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (torch.zeros(B, P, V), "logits [2, 1, vocabulary] of the last token, got [2, 5, 11]"),
        ((torch.zeros(B, 1, V),), "got tuple"),
        (torch.full((B, 1, V), torch.nan), "eager logits of token 2 not finite"),
    ],
)
def test_modules_that_return_something_else(output, text):
    made = generation(nn.Module())
    made.module.forward = lambda token, position: output
    with pytest.raises(Ended) as ended:
        made.take_reference()
    assert text in ended.value.reason


def test_what_cannot_generate():
    swapped = dict(reversed(SPECS.items()))
    with pytest.raises(UnsupportedError, match="take 14 slots, but the cache of m has 13"):
        own_workload(Generation, cell(new_tokens=N + 1), Next(), SPECS, [])
    with pytest.raises(UnsupportedError, match="in this order; m has position, token"):
        generation(Next(), swapped)
    reason = unsupported(cell(), AotInductor(), torch.device("cpu"))
    assert "does not support phase=generate" in reason


def test_a_sweep(workshop):
    words = ("--config-dir=conf", "mode=eager,right", "generate.new_tokens=8", "bs=3")
    done = workshop.sweep(*SMALL, *words, "db=generation.db")
    assert done.code == 0, done
    database = workshop.folder / "generation.db"
    rows = results_of(database)
    assert [row["mode"] for row in rows] == ["eager", "right"]
    for row in rows:
        assert row["reason"] is None
        assert row["speedup"]
        assert row["rel_error"] < 1e-5
        assert 0 < row["ttft_ms"] < row["latency_ms"]
        assert row["tpot_ms"] <= row["tpot_p99_ms"]
        assert row["tokens_per_s"] == pytest.approx(3 * 8 / row["latency_ms"] * 1000)
    samples = trials_of(database)[0]["samples"]
    assert len(samples["ttft_ms"]) == len(samples["latency_ms"])
    assert len(samples["tpot_ms"]) == 7 * len(samples["latency_ms"])
