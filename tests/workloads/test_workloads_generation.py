"""Generated tokens: whether wrong ones are seen and ties are not wrong, and the figures of whole
sweeps on the CPU."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from whole_sweeps import results_of, trials_of

from effbench.cell import Cell, Status, Trial
from effbench.errors import UnsupportedError
from effbench.models.gpt2 import GPT2Decoder
from effbench.models.spec import parse_inputs
from effbench.modes.eager import Eager
from effbench.modes.scripted import JitTrace
from effbench.worker.trial import unsupported
from effbench.workloads.base import InputSets
from effbench.workloads.endings import Ended
from effbench.workloads.generation import Generation, unsuitable

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
    return Cell(model, B, {"name": "eager"}, "float32", "generate", "cpu", generate=settings)


def generation(module):
    made = Generation(cell(), Eager(), module.eval(), Trial("key", 0, Status.OK), SPECS)
    prompts = [((torch.full((B, P), 3 + n),), {}) for n in range(2)]
    made.inputs = InputSets(prompts, prompts)
    return made


def verdict(made, step):
    """Return why the tokens of the step are incorrect, or None."""
    made.step = made.calling(step)
    with made.context():
        made.take_reference()
        return made.wrong()


def test_a_wrong_token_is_named_by_its_position():
    made, wrong = generation(Next()), Next(gap=-1.0)
    assert (verdict(made, made.module), made.trial.rel_error) == (None, 0)
    tokens = made.references[0].tokens
    assert tokens.tolist() == [[(4 + number) % V for number in range(N)]] * B

    def late(token, position):
        return (wrong if int(position) >= P + 2 else made.module)(token, position)

    reason = verdict(made, late)
    assert "token 4 of request 1 is 8, but eager's is 7" in reason and "random" not in reason


def test_a_step_with_a_cache_of_its_own_lacks_the_prompt():
    torch.manual_seed(0)
    made = generation(GPT2Decoder(B, P + N, 1, layers=1, width=16, heads=2, vocab=V))
    assert verdict(made, made.module) is None
    assert "but eager's is" in verdict(made, copy.deepcopy(made.module))


def test_a_random_module_is_called_that():
    made = generation(Next())
    torch.manual_seed(0)
    made.module.forward = lambda token, position: torch.rand(B, 1, V)
    assert "eager generates other tokens, too: the module is random" in verdict(made, made.module)


def test_logits_count_even_if_all_tokens_are_right():
    made = generation(Next())
    reason = verdict(made, lambda token, position: made.module(token, position) * 1.01)
    assert reason.startswith("logits differs from eager: relative error 0.01")


def test_a_tie_may_go_either_way_but_what_follows_is_compared():
    made = generation(Next(gap=1e-5))
    other = Next(gap=-1e-5)
    assert verdict(made, other) is None
    # eager generates the first token in all modes
    assert made.trial.extra["tied_tokens"] == B * (N - 1)

    def late(token, position):
        return (
            other(token, position).roll(5, dims=-1)
            if int(position) == P + 5
            else other(token, position)
        )

    assert "token 7 of request 1 is 5, but eager's is 10" in verdict(made, late)


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (torch.zeros(B, P, V), "logits [2, 1, vocabulary] of the last token, got [2, 5, 11]"),
        ((torch.zeros(B, 1, V),), "got tuple"),
        (torch.full((B, 1, V), torch.nan), "eager logits not finite"),
    ],
)
def test_modules_that_return_something_else(output, text):
    made = generation(nn.Module())
    made.module.forward = lambda token, position: output
    with made.context(), pytest.raises(Ended) as ended:
        made.take_reference()
    assert text in ended.value.reason


def test_infinite_logits_may_be_allowed():
    """Some networks mask the padding of their vocabulary."""

    class Masks(Next):
        def forward(self, token, position):
            return (
                super().forward(token, position).index_fill(-1, torch.tensor([V - 1]), -torch.inf)
            )

    made = generation(Masks())
    made.cell.model["allow_nonfinite"] = True
    assert verdict(made, made.module) is None


def test_two_prompts_at_least_because_one_does_not_show_a_stale_cache():
    made = generation(Next())
    made.make_inputs(1)
    assert made.inputs.timed == made.inputs.checked
    (first,), (second,) = (args for args, _ in made.inputs.checked)
    assert first.shape == (B, P) and not torch.equal(first, second)


def test_what_cannot_generate():
    assert unsuitable(cell(), SPECS) is None
    assert "take 14 slots, but the cache of m has 13" in unsuitable(cell(new_tokens=N + 1), SPECS)
    swapped = dict(reversed(SPECS.items()))
    with pytest.raises(
        UnsupportedError, match="inputs token and position, in this order; m has position, token"
    ):
        Generation(cell(), Eager(), Next(), Trial("key", 0, Status.OK), swapped)
    module = Next()
    module.has_cross = True
    with pytest.raises(UnsupportedError, match="does not run encoders"):
        generation(module)
    frozen = JitTrace(freeze=True)
    reason = unsupported(cell(), frozen, torch.device("cpu"))
    assert "does not support phase=generate" in reason


class TestSweep:
    """The figures of a whole sweep."""

    @pytest.fixture(scope="class")
    @classmethod
    def cli(cls, cli_in, tmp_path_factory):
        cli = cli_in(tmp_path_factory.mktemp("generate"))
        done = cli.sweep(*SMALL, "mode=eager,default", "generate.new_tokens=8", "bs=3")
        assert done.code == 0, done
        return cli

    @pytest.fixture(scope="class")
    @classmethod
    def trials(cls, cli):
        return trials_of(cli.db)

    def test_modes_are_ok_and_compared(self, cli):
        eager, default = results_of(cli.db)
        assert (eager["mode"], default["mode"]) == ("eager", "default")
        assert (eager["reason"], default["reason"]) == (None, None)
        assert max(eager["rel_error"], default["rel_error"]) < 1e-5
        assert default["compile_cold_s"] > 0 and default["speedup"] and not default["recompiles"]

    @pytest.mark.parametrize("number", [0, 1])
    def test_times_of_tokens(self, cli, number):
        row = results_of(cli.db)[number]
        assert row["params"]["generate"] == {"prompt": 6, "new_tokens": 8}
        assert 0 < row["ttft_ms"] < row["latency_ms"] and row["tpot_ms"] <= row["tpot_p99_ms"]
        assert row["tokens_per_s"] == pytest.approx(3 * 8 / row["latency_ms"] * 1000)

    @pytest.mark.parametrize("number", [0, 1])
    def test_facts(self, trials, number):
        trial = trials[number]
        facts = trial["extra"]["facts"]["generation"]
        assert facts["tpot_p50_ms"] == trial["tpot_ms"] <= facts["tpot_p99_ms"]
        assert facts["tpot_p99_ms"] == trial["tpot_p99_ms"]
        assert facts["requests"] == 3 * trial["latency_samples"]

    def test_samples_add_up(self, trials):
        samples = trials[0]["samples"]
        counts = [len(samples[name]) for name in ("latency_ms", "ttft_ms", "tpot_ms")]
        assert counts == [counts[0], counts[0], 7 * counts[0]]
        whole = samples["ttft_ms"] + samples["tpot_ms"].reshape(-1, 7).sum(1)
        assert np.median(samples["latency_ms"] / whole) == pytest.approx(1, abs=0.1)

    def test_the_rate_of_tokens_is_a_metric(self, cli):
        shown = cli.run("show", "--metric", "tokens_per_s", "--format", "csv")
        assert (shown.code, "gpt2" in shown.out) == (0, True), shown
