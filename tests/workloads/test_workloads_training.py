"""A training step, its state and the way back, and whether wrong steps are seen. Small modules, a
few steps."""

import random
from functools import partial

import pytest
import torch
from own_cells import cpu_cell, own_workload
from torch import nn

from effbench.core.errors import UnsupportedError
from effbench.models.spec import parse_inputs
from effbench.modes import graphs
from effbench.modes.base import Example, Mode, Prepared
from effbench.modes.graphs import CudaGraph
from effbench.workloads import dropout
from effbench.workloads.endings import Ended
from effbench.workloads.training import TrainingSteps

STEPS = 4


class Net(nn.Module):
    """Linear, batch norm, a bias whose gradient cancels (a constant that softmax takes away),
    dropout."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.dropout = nn.Dropout(0.5)
        self.second = nn.Linear(16, 4)
        self.constant = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        x = self.dropout(self.norm(self.first(x)).relu())
        return torch.softmax(self.second(x) + self.constant, -1)


SETTINGS = {
    "optimizer": "adam",
    "implementation": "for-loop",
    "lr": 1e-3,
    "set_to_none": True,
    "loss": "mean-square",
}


def inputs(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return [((torch.randn(6, 8, generator=generator).to(dtype),), {}) for _ in range(3)]


def training(module=None, dtype=torch.float32, loss=None, **changed):
    cell = cpu_cell(
        6,
        dtype=str(dtype).removeprefix("torch."),
        phase="training",
        numerics={"seed": 5},
        training=SETTINGS | changed,
    )
    specs = parse_inputs({"x": {"shape": [8]}})
    steps = partial(TrainingSteps, check_steps=STEPS)
    made = own_workload(steps, cell, module or Net().to(dtype), specs, inputs(dtype))
    if loss:
        made.loss = loss
    return made


def verdict(made, step):
    """Return the reason, None if the steps are right, with the error and whether float64
    decided."""
    made.take_reference()
    made.step = step
    reason = None
    try:
        made.check()
    except Ended as ended:
        reason = ended.reason
    return reason, made.trial.rel_error, made.trial.extra["training"]["judged_by_float64"]


def eager_step(made):
    return made.step_over(made.module)


class Copying(Mode):
    """Has a step of its own, whose inputs it copies."""

    def prepare(self, module, example):
        return Prepared(lambda *args: module(*args), len, facts={"copies": 1}, module=module)


def test_the_step_over_a_modes_forward_is_right_and_copies_no_inputs():
    made = training()
    made.take_reference()
    made.mode = Copying()
    prepared = made.prepare(Example(*made.inputs.checked[0]))
    assert (prepared.copy_inputs, prepared.facts) == (None, {"copies": 1})
    assert made.step is prepared.step
    assert made.step(*made.inputs.checked[0][0]).shape == (), "a loss"
    made.check()


def test_a_graph_captures_the_whole_step(monkeypatch):
    captured = []

    def capture(function, args, kwargs, warmups):
        captured.append((function(*args, **kwargs).shape, warmups))
        return Prepared(function, len, facts={"static_input_bytes": 1})

    monkeypatch.setattr(graphs, "capture", capture)
    made = training(optimizer="sgd")
    made.take_reference()
    made.mode = CudaGraph(warmups=2)
    prepared = made.prepare(Example(*made.inputs.checked[0]))
    assert captured == [((), 2)], "a loss"
    assert (prepared.copy_inputs, prepared.facts) == (len, {"static_input_bytes": 1})
    assert prepared.module is made.module
    made.check()


@pytest.mark.parametrize(
    ("optimizer", "kind"),
    [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)],
)
@pytest.mark.parametrize("how", ["for-loop", "fused"])
def test_every_implementation_takes_the_same_steps_as_torchs_own(optimizer, kind, how):
    made = training(optimizer=optimizer, implementation=how)
    found = made.follow(eager_step(made))
    module = Net().train()
    module.dropout.p = 0.0
    plain = kind(module.parameters(), lr=1e-3)
    for number, expected in enumerate(found.losses):
        (x,), _ = made.inputs_of_step(number)
        plain.zero_grad()
        loss = nn.functional.mse_loss(module(x), made.loss.targets[0])
        loss.backward()
        plain.step()
        assert loss.item() == pytest.approx(expected, rel=1e-5)
    # not of `constant` and `first.bias`: of gradients that cancel Adam makes whole steps
    for name in ("first.weight", "norm.weight", "second.bias"):
        value = module.get_parameter(name).detach()
        torch.testing.assert_close(
            found.parameters[name],
            value,
            rtol=1e-4,
            atol=1e-6,
        )
    assert found.buffers["norm.num_batches_tracked"] == STEPS


def test_it_returns_to_where_it_began_in_place():
    made = training()
    state = made.module.state_dict()
    before = {name: value.clone() for name, value in state.items()}
    once = made.follow(eager_step(made))
    assert not torch.equal(before["first.weight"], made.module.first.weight)
    assert made.follow(eager_step(made)).losses == once.losses, "also the optimizer's state"
    made.restore()
    for name, value in made.module.state_dict().items():
        assert torch.equal(value, before[name]), name
        assert value.data_ptr() == state[name].data_ptr(), "a CUDA graph knows it by its address"


class Does(nn.Module):
    """Two linear layers, of which the second is not trained, and what `forward` does with them,
    other attributes and the input."""

    def __init__(self, forward, **attributes):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.frozen = nn.Linear(8, 8), nn.Linear(8, 8).requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(8))
        self.register_buffer("offset", torch.tensor(0.5).expand(8))
        self.does = forward
        vars(self).update(attributes)

    def forward(self, x):
        return self.does(self, x)


def momentum(self, x):
    with torch.no_grad():
        self.frozen.weight.mul_(0.5).add_(self.layer.weight, alpha=0.5)
    return self.layer(x) * self.frozen(x)


@pytest.mark.parametrize(
    "forward",
    [
        momentum,
        lambda self, x: self.layer(x - self.offset),
        lambda self, x: nn.functional.embedding(
            x.long().clamp(0, 7), self.layer.weight, sparse=True
        ).sum(1),
        lambda self, x: nn.functional.embedding(
            x.long().clamp(0, 7), self.layer.weight, max_norm=0.5
        ).sum(1),
    ],
)
def test_unusual_modules_are_right(forward):
    made = training(Does(forward), optimizer="sgd")
    frozen = made.module.frozen.weight.clone()
    assert verdict(made, eager_step(made)) == (None, 0.0, False)
    assert torch.equal(made.module.frozen.weight, frozen), "restored"
    assert (("parameter", "frozen", "weight") in made.initial) == (forward is momentum), (
        "what stays frozen is not kept"
    )


def test_an_input_that_the_module_writes_to_carries_no_graph():
    def forward(self, x):
        return self.layer(x.mul_(self.scale))

    made = training(Does(forward))
    timed = made.inputs.checked
    assert verdict(made, eager_step(made))[0] is None and made.written == {"input x"}
    step = eager_step(made)
    made.keep_inputs()
    for number in range(3):  # a block of the period makes many calls before it restores the inputs
        if number != 1:
            made.kept.restore(timed[0])
        step(*timed[0][0])
        assert timed[0][0][0].grad_fn is None
    made.step = step
    assert made.wrong_after_timing() is None


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_another_right_way_in_bfloat16_is_right(optimizer):
    """float32 inside, rounded at the end: nearer to the truth than eager, and not eager's."""
    made = training(dtype=torch.bfloat16, optimizer=optimizer, lr=1e-2)
    module = made.module

    def wider(x):
        state = {name: value.float() for name, value in made.state().items()}
        out = torch.func.functional_call(module, state, (x.float(),)).bfloat16()
        for name, value in module.named_buffers():
            value.copy_(state[name])
        return out

    reason, error, by_float64 = verdict(made, made.step_over(wider))
    assert (reason, by_float64) == (None, True)
    assert error > 0


@pytest.mark.parametrize(
    "dtype, factor", [(torch.float32, 1.01), (torch.bfloat16, 1.3), (torch.bfloat16, 0.0)]
)
def test_wrong_gradients_are_seen(dtype, factor):
    made = training(dtype=dtype)

    def scaled(x):
        out = made.module(x)
        return out + (factor - 1) * (out - out.detach())  # the same value, another gradient

    reason, error, _ = verdict(made, made.step_over(scaled))
    assert "wrong gradient in the first step: first.weight has an error of" in reason
    assert error >= min(abs(factor - 1), 1) * 0.9


def broken(made, what):
    """A step with something amiss."""
    right, calls = eager_step(made), []

    def step(*args):
        calls.append(args)
        weight = made.module.first.weight
        before = weight.detach().clone()
        if what == "stale input":
            args = calls[0]
        loss = right(*args)
        if what == "half the update":
            weight.data.lerp_(before, 0.5)
        if what == "no gradient":
            made.module.second.bias.grad = None
        if what == "other buffer":
            made.module.norm.running_mean.mul_(1.5)
        if what == "not a number" and len(calls) == 3:
            loss = loss * float("nan")
        return loss

    return step


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "what, text",
    [
        ("half the update", "first.weight differs from its optimizer's with the same gradients"),
        ("stale input", "the loss "),
        ("not a number", "the loss is not finite in step 3"),
        ("no gradient", "the structure differs from eager's: gradient of second.bias in the"),
        ("other buffer", "wrong buffer: norm.running_mean"),
    ],
)
def test_broken_steps_are_seen(what, text, dtype):
    made = training(dtype=dtype, lr=1e-2)
    assert text in verdict(made, broken(made, what))[0]


@pytest.mark.parametrize(
    ("loss", "changed", "reason"),
    [
        (
            lambda output, given: output.sum() * float("nan"),
            {},
            "in eager, the loss is not finite in step 1;",
        ),
        (lambda output, given: (output.sum() * 0).sqrt(), {}, "gradient of constant is not finite"),
        (None, {"optimizer": "sgd", "lr": 1e30}, "in step 2; if training diverged"),
    ],
)
def test_eagers_own_nan_is_found(loss, changed, reason):
    with pytest.raises(Ended, match=reason):
        training(loss=loss, **changed).take_reference()


@pytest.mark.parametrize(
    ("module", "changed", "text"),
    [
        (nn.ReLU, {}, "nothing to train"),
        (Net, {"implementation": "capturable"}, "capturable needs CUDA"),
    ],
)
def test_what_cannot_be_trained(module, changed, text):
    with pytest.raises(UnsupportedError, match=text):
        training(module(), **changed)


def test_the_flops_of_a_step():
    """Linear without bias: forward 2·B·I·O, weight gradient as much; the input needs none."""
    made = training(nn.Linear(8, 4, bias=False))
    assert made.count_flops((torch.randn(6, 8),), {}) == 2 * 2 * 6 * 8 * 4


@pytest.mark.parametrize("name", ["backdrop", "droplet", "dropout"])
def test_attributes_of_own_modules_keep_their_values(name):
    made = training(Does(lambda self, x: self.layer(x) * getattr(self, name), **{name: 0.5}))
    assert verdict(made, eager_step(made)) == (None, 0.0, False)
    assert getattr(made.module, name) == 0.5
    assert "dropout_off" not in made.trial.extra


def attend(self, x):
    q = self.layer(x).view(1, 2, 6, 4)
    p = self.dropout if self.training else 0.0
    return nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=p)


def with_other_masks(made):
    """A step that draws other random numbers than eager's, as a compiler's does."""
    right = eager_step(made)

    def step(*args):
        torch.manual_seed(17)
        return right(*args)

    return step


def hardly_random(output, given):
    return output.square().mean() + 300


@pytest.mark.parametrize("loss", [None, hardly_random])
@pytest.mark.parametrize("p", [0.02, 0.5])
def test_other_masks_of_an_own_module_are_incorrect_with_a_remedy(p, loss):
    made = training(Does(attend, dropout=p), loss=loss)
    reason, _, by_float64 = verdict(made, with_other_masks(made))
    assert "eager's loss depends on the random seed" in reason
    assert "set its dropout to 0, such as model.module.dropout=0" in reason
    assert not by_float64, "its random numbers are others, too"
    made = training(Does(attend, dropout=0.0), loss=loss)
    assert verdict(made, with_other_masks(made)) == (None, 0.0, False)


def test_a_loss_that_changes_without_the_seed_is_not_random():
    noise = random.Random(1)

    def forward(self, x):  # as kernels that add in another order in each call
        return self.layer(x) * noise.uniform(1, 1.00001)

    made = training(Does(forward))
    made.take_reference()
    assert not made.is_random()


@pytest.mark.parametrize(("changed", "is_random"), [(2, False), (3, False), (6, True), (8, True)])
def test_a_loss_that_changes_in_a_few_calls_is_not_random(changed, is_random):
    factors = []

    def forward(self, x):  # as kernels that rarely add in another order, in bfloat16
        return self.layer(x) * (factors.pop() if factors else 1)

    made = training(Does(forward))
    made.take_reference()
    with_same_seed, with_other_seed = [1] * 8, [1.01] * changed + [1] * (8 - changed)
    for pair in zip(with_other_seed, with_same_seed, strict=True):
        factors += pair
    assert made.is_random() is is_random
    assert not factors


def test_dropout_of_torch_is_known_by_type():
    layer = nn.TransformerEncoderLayer(8, 2, dropout=0.1)
    layer.attention_dropout = 0.1  # torch has no such attribute
    made = training(nn.Sequential(layer, nn.LSTM(8, 8, num_layers=2, dropout=0.25)))
    assert made.module.training
    assert sorted(made.trial.extra["dropout_off"]) == [
        "Dropout.p=0.1 (3 modules)",
        "LSTM.dropout=0.25",
        "MultiheadAttention.dropout=0.1",
    ]
    assert dropout.switch_off(made.module) == []
