"""One trial: what its two timers say of each other, what is refused, and what is checked before a sweep begins."""

from types import SimpleNamespace

import pytest
import torch

from effbench.cell import Cell
from effbench.errors import ConfigError
from effbench.measure.counters import Counters
from effbench.measure.telemetry import Gpu
from effbench.measure.timing import Rules, Timing, all_if_none
from effbench.measure.watch import GpuWatch
from effbench.message import DEVICE_PHASE, TrialRequest
from effbench.modes.eager import Eager
from effbench.sweeping import pool
from effbench.worker import probe, trial
from effbench.worker.failures import Ended

RULES = Rules(
    budget_s=1.0, min_time_s=0.1, min_samples=5, target_interval=0.005, max_samples=1000,
    warmup_calls=1, warmup_s=0.0, min_block_ms=1.0,
)  # fmt: skip
CPU = torch.device("cpu")
LINEAR = {"_target_": "torch.nn.Linear"}
EAGER = {"name": "eager", "_target_": "effbench.modes.eager.Eager"}


def trial_of(device="cpu", module=None, inputs=None, phase="inference", numerics=None, host_tolerance=None, **more):
    """A trial of a cell of these parts, on no GPU whatever its `device` is; it has not begun."""
    model = {"name": "m"} | ({"module": module, "inputs": inputs} if module else {})
    cell = Cell(model, 1, EAGER, "float32", phase, device, numerics or {}, **more)
    request = TrialRequest(cell.params(), {**vars(RULES), "host_tolerance": host_tolerance})
    made = trial.RunningTrial(request, lambda phase: None)
    made.gpu, made.watcher, made.mode = Gpu(), GpuWatch(Gpu(), CPU), Eager()
    return made


def test_timers_that_disagree_show_a_busy_host():
    latency_timing, period_timing = ("latency timing", "5.04 ms", "2.52 ms"), ("period timing", "6.31 ms", "5.2 ms")
    for enqueue_ms, period_ms, sizes, busy in (
        (2.6, 2.5, None, ()),  # bound by launching
        (0.1, 2.5, None, ()),  # by the GPU
        (3.7, 2.5, None, ()),
        (5.0437, 2.5228, None, latency_timing),
        (5.0437, 2.5228, [1, 64], ()),  # a stream has calls of many sizes
        (5.0, 6.31, None, period_timing),
        (5.0, 6.31, [1, 64], ()),
        (5.0, 6.1, None, ()),
        (3.0, 6.31, None, ()),  # the GPU is the bottleneck, and slower under load
    ):
        timer = SimpleNamespace(latency=lambda budget_s, enqueue_ms=enqueue_ms: Timing([5.2] * 9, [enqueue_ms] * 9),
                                period=lambda budget_s, period_ms=period_ms: Timing([period_ms] * 9))  # fmt: skip
        stream = sizes and {"name": "s", "samples_per_call": 1.0, "sizes": sizes}
        running = trial_of("cuda", stream=stream, host_tolerance=0.1)
        running.trial.samples = {"warmup_ms": [5.2]}
        timer.host, timer.waits_for_host = None, lambda latency_ms: False
        running.take_timings(timer)
        reason = running.watcher.noisy
        assert (reason is not None) == bool(busy), (enqueue_ms, period_ms)
        assert all(words in reason for words in busy)
        assert (running.trial.latency_ms, running.trial.period_ms) == (5.2, period_ms)


class Tuned(Eager):
    autotunes = compiles = True


@pytest.mark.parametrize(
    ("is_cold", "order"),
    [(True, ["setup", "turn", "build", "check", "prepare"]), (False, ["setup", "build", "check", "prepare"])],
)
def test_autotuning_has_the_device_for_itself_and_its_compile_time_counts(tmp_path, is_cold, order):
    seen, mode = [], {"name": "tuned", "_target_": f"{__name__}.Tuned"}
    inputs = [{"name": "x", "shape": [4]}]
    cell = Cell({"name": "m", "module": LINEAR | {"in_features": 4, "out_features": 4}, "inputs": inputs}, 1, mode,
                "float32", "inference", "cpu")  # fmt: skip
    rules = {**vars(RULES), "budget_s": 0.01, "min_time_s": 0.0}
    request = TrialRequest(cell.params(), rules, turn=str(tmp_path / "turn"), is_ahead=True, is_cold=is_cold)
    ended = SimpleNamespace(**trial.run(request.to_json(), seen.append))
    assert seen[: len(order) + 1] == [DEVICE_PHASE, *order], ended.reason
    assert "turn" in seen[len(order) :] or is_cold
    assert (ended.build_s, ended.check_s) == (None, None)  # on one thread, beside other trials
    assert [value is not None for value in (ended.prepare_s, ended.first_call_s, ended.compile_s)] == [is_cold] * 3


@pytest.mark.parametrize(
    ("quiet", "slow_ms", "enqueue_ms", "discarded", "noisy", "counted"),
    [
        ([5.0], 5.1, 0.2, [], False, 21),
        ([], 5.1, 0.2, [], False, 20),
        ([5.0] * 6, 5.1, 0.2, [], False, 6),  # enough without the disturbed ones
        ([5.0], 5.1, 0.2, ["clocks reduced (hw_slowdown)"], True, 1),  # not by the host
        ([5.0], 5.1, 4.0, [], True, 1),  # enqueueing is the bottleneck
        ([5.0], 5.3, 0.2, [], True, 1),  # a synchronised call waits for the host
    ],
)
def test_a_disturbed_host_does_not_matter_if_the_gpu_is_the_bottleneck(
    quiet, slow_ms, enqueue_ms, discarded, noisy, counted
):
    """The warm-up may not see this: the clocks of its calls are higher until power control lowers them."""

    def latency(budget_s):
        timer.host.seconds[False] = 1.0
        return all_if_none(Timing([*quiet], [enqueue_ms] * len(quiet), [slow_ms] * 20, [enqueue_ms] * 20))

    timer = SimpleNamespace(latency=latency, period=lambda budget_s: Timing([4.9] * 30), waits_for_host=lambda ms: True)
    running = trial_of("cuda", host_tolerance=0.1)
    running.uses_team, running.trial.samples, running.watcher.discarded = False, {"warmup_ms": [5.2]}, discarded
    running.take_timings(timer)
    assert bool(running.watcher.noisy) is noisy
    assert len(running.trial.samples["latency_ms"]) == counted
    is_watched = counted < 20
    assert running.trial.disturbed_fraction == (1.0 if is_watched else None)
    assert ("latency_disturbed_ms" in running.trial.samples) is is_watched


def test_a_server_takes_no_more_requests_than_samples(monkeypatch):
    """A record of millions would be too long for a message."""
    stream = {"name": "arrivals", "samples_per_call": 1.0, "sizes": [1], "rate": 10_000, "seed": 0}
    running, given = trial_of(stream=stream), []
    monkeypatch.setattr(trial, "serve", lambda *args: given.append(args) or Timing([1.0] * 9))
    running.take_timings(SimpleNamespace(host=None))
    ((_, arrivals_s, seconds),) = given
    assert seconds == 0.1 and len(arrivals_s) == pytest.approx(1000, rel=0.1)


def test_the_gpu_is_touched_before_any_user_code(monkeypatch):
    """So that what fails there is known to be the harness's failure."""

    def refuse(*_, **options):
        raise RuntimeError("CUDA driver initialization failed")

    phases = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", refuse)
    cell = Cell({"name": "m", "module": {"_target_": "not.there"}}, 1, {"name": "e", "_target_": "not.there.Mode"},
                "float32", "inference", "cuda")  # fmt: skip
    ended = trial.run(TrialRequest(cell.params(), {**vars(RULES)}).to_json(), phases.append)
    assert phases == [ended["phase"]] == [DEVICE_PHASE]
    assert ended["status"] == "error" and "CUDA driver initialization failed" in ended["reason"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for uuid, status in (("GPU-1", "error"), (None, "unsupported")):  # the sweep retries the error
        ended = trial.run(TrialRequest(cell.params(), {**vars(RULES)}, gpu_uuid=uuid).to_json(), phases.append)
        assert (ended["phase"], ended["status"]) == (DEVICE_PHASE, status)


@pytest.mark.parametrize("phase", ["inference", "training"])
def test_lazy_weights_and_layers_of_other_dimensions_are_built(phase):
    for name, shape in (("LazyConv3d", [2, 4, 4, 4]), ("Conv2d", [2, 4, 4])):
        module = {"_target_": f"torch.nn.{name}", "out_channels": 2, "kernel_size": 3}
        module |= {} if name.startswith("Lazy") else {"in_channels": 2}
        settings = {"optimizer": "sgd", "implementation": "foreach", "lr": 0.1, "loss": "mean", "set_to_none": True}
        inputs, numerics = [{"name": "x", "shape": shape}], {"channels_last": True}
        running = trial_of("cpu", module, inputs, phase, numerics, training=settings)
        running.build()
        weight = running.workload.module.weight
        assert weight.shape[:2] == (2, 2)
        assert weight.dim() != 4 or weight.is_contiguous(memory_format=torch.channels_last)


def test_a_cache_that_keeps_the_graph_of_a_training_step_is_named():
    sizes = {"max_batch": 1, "max_seq": 4, "context": 1, "layers": 1, "width": 8, "heads": 2, "vocab": 11}
    module = {"_target_": "effbench.models.gpt2.GPT2Decoder", **sizes}
    inputs = [{"name": name, "shape": [1], "dtype": "int64", "value": 1} for name in ("token", "position")]
    inputs[1]["batch_dim"] = None
    settings = {"optimizer": "sgd", "implementation": "foreach", "lr": 0.1, "loss": "mean", "set_to_none": True}
    running = trial_of("cpu", module, inputs, "training", training=settings)
    running.build()
    with pytest.raises(ValueError, match=r"^the buffer blocks\.0\..* keeps values of the step before with their graph"):
        running.workload.reference(running.checked)


def test_the_number_of_threads_that_a_module_sets_is_measured():
    module = {**LINEAR, "in_features": 2, "out_features": 2}
    running = trial_of("cpu", module, [{"name": "x", "shape": [2]}])
    before = torch.get_num_threads()
    try:
        running.take_device()
        running.set_up()
        running.build()
        torch.set_num_threads(before + 2)  # as its constructor may
        running.prepare()
        assert torch.get_num_threads() == before + 2
    finally:
        torch.set_num_threads(before)


def test_what_was_compiled_during_timing_is_named():
    running = trial_of()
    running.before, running.after = Counters(1, 0, 0, 0, 0, 0), Counters(2, 0, 1, 0, 0, 0, {}, "failed guard: n == 1")
    with pytest.raises(Ended, match=r"^a graph was compiled again during timing \(failed guard: n == 1\): the figures"):
        running.judge(None)


def test_what_a_mode_cannot_run():
    mode = Eager()
    mode.static_shape, mode.phases = True, ("inference",)
    for phase, sizes, expected in (
        ("inference", None, None),
        ("inference", [1, 2], "this mode has one static shape"),
        ("training", None, "the mode one does not support phase=training; it supports inference"),
    ):
        stream = sizes and {"name": "s", "samples_per_call": 1.0, "sizes": sizes}
        cell = Cell({"name": "m"}, 2, {"name": "one"}, "float32", phase, "cpu", stream=stream)
        reason = trial.unsupported(cell, mode, CPU)
        assert reason == expected or reason.startswith(expected)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"model": {"module": {"_target_": "os.system"}}}, "_target_=os.system is part of Python"),
        ({"model": {"module": {"_target_": "fractions.Fraction"}}}, "_target_=fractions.Fraction is part of Python"),
        ({"model": {"module": {"_target_": "torch.device"}}}, "torch.device is a class; allowed: a torch.nn.Module"),
        ({"model": {"module": {**LINEAR, "x": [{"_target_": "os.system"}]}}}, "_target_=os.system is part of Python"),
        ({"model": {"module": LINEAR, "inputs": {"x": {}, "y": {}}}}, "torch.nn.Linear: model.inputs has 2 inputs by"),
        ({"model": {"module": LINEAR, "inputs": [{"name": "y", "keyword": True}]}}, "model.inputs.y is no argument"),
        ({"mode": {**EAGER, "_target_": "os.system"}}, "_target_=os.system is part of Python"),
        ({"mode": {**EAGER, "_target_": "effbench.modes.base.Mode"}}, "mode eager: Mode needs a method prepare"),
        ({"mode": {**EAGER, "_target_": "torch.nn.Identity"}}, "mode eager: derive Identity from effbench"),
        ({"mode": {**EAGER, "_target_": "torch.cuda.is_available"}}, "mode eager: derive bool from effbench"),
        ({"phase": "training", "training": {"loss": "os.system"}}, "training.loss=os.system is part of Python"),
        ({"phase": "training", "training": {"loss": "meansquare"}}, "did you mean mean-square.; allowed: mean"),
    ],
)
def test_what_cannot_be_a_target_is_refused_before_the_first_trial(changed, expected):
    part = {"model": {"module": LINEAR}, "mode": EAGER, "phase": "inference", "device": "cpu", **changed}
    here = SimpleNamespace(call=lambda task, payload, timeout_s: probe.run(payload, lambda phase: None))
    with pytest.raises(ConfigError, match=expected):
        pool.probe(here, [part], "eager")
