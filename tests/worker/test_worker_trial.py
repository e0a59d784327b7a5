"""One trial: what its two timers show together, what is refused, and what is checked before a sweep
begins."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
import torch
from own_cells import EAGER, PhasePipe, cpu_cell, own_model, run_trial
from torch import nn

from effbench.core.cell import Cell
from effbench.core.disturbances import Disturbance, DisturbanceKind
from effbench.core.errors import ConfigError
from effbench.core.message import DEVICE_PHASE, TrialRequest
from effbench.measure import host
from effbench.measure.gpu import Gpu
from effbench.measure.host import CoreTimes, HostWatch
from effbench.measure.rules import Rules
from effbench.measure.samples import Timing
from effbench.measure.watch import GpuWatch
from effbench.modes.compiled import Compiled
from effbench.modes.eager import Eager
from effbench.modes.exported import AotInductor
from effbench.run.client import NEVER
from effbench.run.interpreters import HERE
from effbench.run.probe import probe as probe_cells
from effbench.worker import probe, trial
from effbench.worker.context import TrialContext
from effbench.worker.step_timer import StepTimer
from effbench.workloads.select import workload_of

RULES = Rules(
    budget_s=1.0,
    min_time_s=0.1,
    min_samples=5,
    max_samples=1000,
    warmup_s=0.0,
)
LINEAR = {"_target_": "torch.nn.Linear"}


def trial_of(device="cpu", model=None, phase="inference", host_tolerance=0.1, **more):
    """What a trial of a cell of these parts is made of. It has not begun."""
    cell = Cell(model or {"name": "m"}, 1, EAGER, "float32", phase, device, **more)
    request = TrialRequest(cell.params(), {**vars(RULES), "host_tolerance": host_tolerance})
    return TrialContext(request, PhasePipe())


@dataclass
class MadeUpTimer:
    """Takes these samples, on a host that was busy for a fraction of the time; None if its speed
    does not matter."""

    latencies: Timing
    periods: Timing | None = None
    busy_fraction: float | None = None
    discarded: tuple = ()
    watcher: GpuWatch = field(default_factory=lambda: GpuWatch(Gpu()))
    host: HostWatch | None = None

    def waits_for_host(self):
        return self.busy_fraction is not None

    def latency(self, budget_s):
        if self.host:
            self.host.undisturbed_s = 1.0 - self.busy_fraction
            self.host.disturbed_s = self.busy_fraction
        self.watcher.discarded += self.discarded
        return self.latencies

    def period(self, budget_s):
        return self.periods


def timed(context, *args, **options):
    """Take timings as a made-up timer does, and return the trial."""
    timer = MadeUpTimer(*args, **options)
    cell, record = context.cell, context.trial
    record.samples["warmup_ms"] = [5.2]
    workload = workload_of(cell)(cell, Eager(), nn.Identity(), record, {})
    StepTimer(context, workload, timer, timer.watcher).take().record(record)
    return record


#: enqueue time, period, sizes of a stream, and whether the host was busy during one timer
DISAGREEING = {
    "bound by launching": (2.6, 2.5, None, None),
    "bound by the GPU": (0.1, 2.5, None, None),
    "enqueueing takes twice as long as the period": (5.0437, 2.5228, None, "latency timing"),
    "the same, of a stream with calls of many sizes": (5.0437, 2.5228, [1, 64], None),
    "the period is longer than the latency": (5.0, 6.31, None, "period timing"),
    "the GPU is the bottleneck, and slower under load": (3.0, 6.31, None, None),
}


@pytest.mark.parametrize(
    ("enqueue_ms", "period_ms", "sizes", "words"), DISAGREEING.values(), ids=DISAGREEING
)
def test_timers_that_disagree_show_a_busy_host(enqueue_ms, period_ms, sizes, words):
    stream = sizes and {"name": "s", "samples_per_call": 1.0, "sizes": sizes}
    context = trial_of("cuda", stream=stream)
    record = timed(context, Timing([5.2] * 9, [enqueue_ms] * 9), Timing([period_ms] * 9))
    assert (record.latency_ms, record.period_ms) == (5.2, period_ms)
    assert str(words) in str(record.disturbance)


SLOWED = [Disturbance(DisturbanceKind.CLOCKS, "clocks reduced (hw_slowdown)")]
#: undisturbed samples, time of the disturbed ones, enqueue time, discarded series, whether it is
#: marked, samples
GPU_BOUND = {
    "one undisturbed sample": ([5.0], 5.1, 0.2, [], False, 21),
    "no undisturbed sample": ([], 5.1, 0.2, [], False, 20),
    "enough without the disturbed ones": ([5.0] * 6, 5.1, 0.2, [], False, 6),
    "not disturbed by the host": ([5.0], 5.1, 0.2, SLOWED, True, 21),
    "enqueueing is the bottleneck": ([5.0], 5.1, 4.0, [], True, 21),
    "a synchronised call waits for the host": ([5.0], 5.3, 0.2, [], True, 21),
}


@pytest.mark.parametrize(
    ("quiet", "slow_ms", "enqueue_ms", "discarded", "is_marked", "count"),
    GPU_BOUND.values(),
    ids=GPU_BOUND,
)
def test_a_disturbed_host_does_not_matter_if_the_gpu_is_the_bottleneck(
    quiet, slow_ms, enqueue_ms, discarded, is_marked, count
):
    """The warm-up may not see this: the clocks of its calls are higher until power control lowers
    them."""
    latency = Timing([*quiet], [enqueue_ms] * len(quiet), [slow_ms] * 20, [enqueue_ms] * 20)
    record = timed(
        trial_of("cuda"), latency, Timing([4.9] * 30), busy_fraction=1.0, discarded=discarded
    )
    assert (record.disturbance is not None) is is_marked
    assert len(record.samples["latency_ms"]) == count
    assert ("latency_disturbed_ms" in record.samples) is (is_marked or count == 6)


class TestMarks:
    """Too few undisturbed samples mark a trial: all samples give its times, and its bounds hold
    both states."""

    @pytest.fixture(autouse=True)
    def alone(self, monkeypatch):
        """Other tests run on these cores."""
        monkeypatch.setattr(host, "core_times", lambda cores: CoreTimes(0.0, 0.0))

    @pytest.mark.parametrize(
        ("after", "low_ms", "words"),
        [
            (CoreTimes(1000.0, 0.0), 0.6, "other processes used"),
            (CoreTimes(0.0, 1000.0), 0.6, "other virtual machines took"),
            (CoreTimes(0.0, 0.0), 1.0, "None"),
        ],
    )
    def test_others_on_most_of_the_cores_mark_a_trial(self, monkeypatch, after, low_ms, words):
        readings = iter([CoreTimes(0.0, 0.0), after])
        monkeypatch.setattr(host, "core_times", lambda cores: next(readings))
        record = timed(trial_of(), Timing([0.6] + [1.0] * 50), busy_fraction=0.0)
        assert words in str(record.disturbance)
        assert record.latency_median_low_ms == low_ms

    @pytest.mark.parametrize(
        ("calls", "rounds", "is_marked"),
        [(5, 1, True), (6, 1, False), (5, 2, False)],
        ids=["a single trial", "enough calls", "other trials show the variation"],
    )
    def test_too_few_calls_in_a_single_trial(self, calls, rounds, is_marked):
        context = trial_of()
        context.rules = replace(context.rules, rounds=rounds)
        record = timed(context, Timing([1.0] * (calls - 1) + [1.2]), busy_fraction=0.0)
        assert (record.disturbance == f"only {calls} calls could be timed") is is_marked
        if is_marked:
            assert record.latency_median_high_ms == 1.2

    @pytest.mark.parametrize("host_tolerance", [0.1, None])
    @pytest.mark.parametrize(
        ("quiet", "disturbance"), [(5, None), (4, "host busy for 83 % of the timing")]
    )
    def test_too_few_undisturbed_samples(self, host_tolerance, quiet, disturbance):
        """Without a tolerance all samples count, and the marks stay."""
        latency = Timing([1.0] * quiet, disturbed_ms=[3.0] * 20)
        record = timed(trial_of(host_tolerance=host_tolerance), latency, busy_fraction=0.83)
        figure = (1.0, quiet) if host_tolerance and not disturbance else (3.0, quiet + 20)
        assert record.disturbance == disturbance
        assert record.latency_min_ms == 1.0
        assert (record.latency_ms, record.latency_samples) == figure
        assert record.disturbed_fraction == pytest.approx(0.83)
        assert len(record.samples["latency_disturbed_ms"]) == 20

    def test_the_period_marks_a_trial_and_has_bounds_of_its_own(self):
        latency, period = Timing([5.0] * 9, [4.9] * 9), Timing([4.0] * 4, disturbed_ms=[5.0] * 20)
        record = timed(trial_of("cuda"), latency, period, busy_fraction=0.83)
        assert record.disturbance == "host busy for 83 % of the timing"
        assert record.period_ms == record.period_median_high_ms == 5.0
        assert record.period_median_low_ms == 4.0
        assert len(record.samples["period_disturbed_ms"]) == 20

    def test_the_gpu_is_named_if_it_alone_was_disturbed(self):
        latency = Timing([5.0] * 9, [0.1] * 9, [5.0] * 90, [0.1] * 90)
        period = Timing([], disturbed_ms=[5.0] * 9)
        record = timed(trial_of("cuda"), latency, period, discarded=SLOWED)
        (slowed,) = SLOWED
        assert record.disturbance == slowed.text
        assert record.disturbance_kind == slowed.kind
        assert record.discarded_blocks == 1
        assert record.extra["discarded"] == [slowed.text]


@pytest.mark.parametrize(
    ("device", "host_tolerance", "tolerance", "all_threads"),
    [("cuda", 0.25, 1.25, False), ("cpu", 0.1, 1.1, True), ("cpu", None, 1.1, True)],
)
def test_how_the_host_is_watched(device, host_tolerance, tolerance, all_threads):
    """On the CPU all threads are watched; also without a tolerance."""
    context = trial_of(device, host_tolerance=host_tolerance)
    context.request = replace(context.request, host_ms=0.03, host_high_ms=0.07)
    with context.host_watched(matters=True, moves=False) as watch:
        assert (watch.quiet_ms, watch.usual_high_ms) == (0.03, 0.07)
        assert (watch.tolerance, watch.all_threads) == (tolerance, all_threads)
        assert not watch.waits, "without patience"


def on_missing_gpu(uuid=None):
    """Run a trial whose mode does not exist on a GPU that does not, and return its record."""
    mode = {"name": "e", "_target_": "not.there.Mode"}
    cell = Cell({"name": "m"}, 1, mode, "float32", "inference", "cuda")
    ended = run_trial(cell, vars(RULES), gpu_uuid=uuid)
    assert ended.phase == DEVICE_PHASE
    return ended


def test_the_gpu_is_touched_before_any_user_code(monkeypatch):
    """So that what fails there is known to be the harness's failure."""

    def refuse(*_, **options):
        raise RuntimeError("CUDA driver initialization failed: CUBLAS_STATUS_NOT_INITIALIZED")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", refuse)
    ended = on_missing_gpu()
    assert ended.status == "error"
    assert ended.has_library_status
    assert "CUDA driver initialization failed" in ended.reason


# the sweep retries the error
@pytest.mark.parametrize(("uuid", "status"), [("GPU-1", "error"), (None, "unsupported")])
def test_a_gpu_that_torch_does_not_see(monkeypatch, uuid, status):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert on_missing_gpu(uuid).status == status


SGD = {
    "optimizer": "sgd",
    "implementation": "foreach",
    "lr": 0.1,
    "loss": "mean-square",
    "set_to_none": True,
}


def convolution(kind, shape, phase):
    """The weight of a convolution that a trial has built in the format channels_last."""
    module = {"_target_": f"torch.nn.{kind}", "out_channels": 2, "kernel_size": 3}
    model = {"name": "m", "module": module, "inputs": [{"name": "x", "shape": shape}]}
    numerics = {"channels_last": True}
    context = trial_of(model=model, phase=phase, numerics=numerics, training=SGD)
    running = trial.RunningTrial(context)
    running.mode = Eager()
    running.build()
    return running.workload.module.weight


@pytest.mark.parametrize("phase", ["inference", "training"])
def test_lazy_weights_are_built(phase):
    weight = convolution("LazyConv2d", [2, 4, 4], phase)
    assert weight.shape == (2, 2, 3, 3)
    assert weight.is_contiguous(memory_format=torch.channels_last)


def test_layers_of_other_dimensions_have_no_channels_last():
    assert convolution("LazyConv3d", [2, 4, 4, 4], "inference").shape == (2, 2, 3, 3, 3)


@pytest.mark.parametrize(
    ("threads", "cores", "expected"),
    [(None, 2, 2), (None, 16, 4), (1, 4, 1), (6, 16, 6)],
    ids=["one per core", "no more than torch has", "fewer", "more than torch has"],
)
def test_a_trial_runs_on_its_threads_or_on_one_per_physical_core(
    monkeypatch, threads, cores, expected
):
    taken = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(torch, "set_num_threads", taken.append)
    monkeypatch.setattr(trial, "physical_cores", lambda usable: range(cores))
    running = trial.RunningTrial(trial_of(threads=threads))
    running.take_device()
    assert [running.trial.threads] == taken == [expected]


class Counts(nn.Module):
    """Counts in an attribute how often `Counts.is_on` has become true. Its compiled part depends on
    it."""

    is_on = False

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.was_on = False

    def forward(self, x):
        if Counts.is_on and not self.was_on:
            self.calls += 1
        self.was_on = Counts.is_on
        return self.work(x)

    @torch.compile(backend="eager", dynamic=False)
    def work(self, x):
        return x + 0.0 * self.calls


@pytest.mark.parametrize(
    ("compiling", "status"), [({0}, "ok"), ({0, 1}, "degraded")], ids=["once", "both times"]
)
def test_a_step_that_compiles_while_it_is_timed_is_timed_once_more(
    fresh_dynamo, monkeypatch, compiling, status
):
    """Its figures include compiling. `compiling`: numbers of the timings in which it compiles."""
    phases = []

    def say_phase(phase):
        compiles = phase == "timing" and phases.count("timing") in compiling
        monkeypatch.setattr(Counts, "is_on", compiles)
        phases.append(phase)

    cell = cpu_cell(model=own_model(Counts, 4), threads=1)
    protocol = {**vars(RULES), "budget_s": 0.05, "min_time_s": 0.0, "host_tolerance": None}
    ended = run_trial(cell, protocol, say_phase)
    around = [phase for phase in phases if phase in ("warmup", "timing")]
    assert around == ["warmup", "timing"] * 2
    assert ended.status == status
    assert "self.calls" in ended.extra["timed_again"]
    if status == "degraded":
        assert ended.reason.startswith("a graph was compiled again while it was timed (")
        assert ended.reason.endswith("), twice: the times include compiling")


@pytest.mark.parametrize(
    ("phase", "sizes", "expected"),
    [
        ("inference", None, None),
        ("inference", [1, 2], "this mode has one static shape"),
        ("training", None, "the mode one does not support phase=training; it supports inference"),
    ],
)
def test_what_a_mode_cannot_run(phase, sizes, expected):
    mode = Eager()
    mode.static_shape, mode.phases = True, ("inference",)
    stream = sizes and {"name": "s", "samples_per_call": 1.0, "sizes": sizes}
    cell = Cell({"name": "m"}, 2, {"name": "one"}, "float32", phase, "cpu", stream=stream)
    reason = trial.unsupported(cell, mode, torch.device("cpu"))
    assert str(reason).startswith(str(expected))


@pytest.mark.parametrize(
    ("mode", "cache", "change", "expected"),
    [
        (Eager(), "none", "none", None),
        (Eager(), "folder", "none", "eager compiles nothing, so there is nothing to cache"),
        (Eager(), "package", "none", "cache=package needs mode=aot-inductor, not eager"),
        (Compiled(), "folder", "bs", None),
        (Compiled(), "none", "bs", "coldstart.change=bs needs a cache, and this cell has cache=no"),
        (AotInductor(), "package", "none", None),
        (AotInductor(), "bundle", "none", "what aot-inductor compiles is a package: use cache=pac"),
    ],
)
def test_with_which_cache_a_fresh_process_can_start(mode, cache, change, expected):
    names = {Eager: "eager", Compiled: "default", AotInductor: "aot-inductor"}
    cell = Cell(
        {"name": "m"},
        2,
        {"name": names[type(mode)]},
        "float32",
        "coldstart",
        "cpu",
        coldstart={"change": change, "processes": 1, "sizes": 1},
        cache=cache,
    )
    reason = trial.unsupported(cell, mode, torch.device("cpu"))
    assert str(reason).startswith(str(expected))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {"model": {"module": {"_target_": "torch.Lineer"}}},
            "_target_=torch.Lineer: there is no Lineer",
        ),
        (
            {"model": {"module": LINEAR, "inputs": [{"name": "x"}, {"name": "y"}]}},
            "torch.nn.Linear: model.inputs does not fit forward: too many positional arguments",
        ),
        (
            {"mode": {**EAGER, "_target_": "torch.nn.Identity"}},
            "mode eager: derive Identity from effbench",
        ),
        (
            {"phase": "training", "training": {"loss": "torch.nn.los"}},
            "training.loss=torch.nn.los: there is no los",
        ),
    ],
)
def test_what_cannot_be_a_target_is_refused_before_the_first_trial(changed, expected):
    part = {**trial_of().cell.params(), "model": {"module": LINEAR}, **changed}
    here = SimpleNamespace(
        call=lambda task, payload, timeout_s, stop: probe.run_task(payload, PhasePipe())
    )
    with pytest.raises(ConfigError, match=expected):
        probe_cells(here, [Cell(**part)], "eager", HERE, NEVER)
