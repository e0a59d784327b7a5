"""One trial: what its two timers say of each other, what is refused, and what is checked before a
sweep begins."""

from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import nn

from effbench.cell import Cell
from effbench.errors import ConfigError
from effbench.measure import host
from effbench.measure.counters import Counters
from effbench.measure.host import CoreTimes, HostWatch
from effbench.measure.timing import Rules, Timing
from effbench.message import DEVICE_PHASE, TrialRequest
from effbench.modes.eager import Eager
from effbench.sweeping.probe import probe as probe_parts
from effbench.worker import context, probe, trial
from effbench.worker.context import TrialProtocol
from effbench.worker.timings import Timings
from effbench.workloads.select import workload_of

RULES = Rules(
    budget_s=1.0,
    min_time_s=0.1,
    min_samples=5,
    target_interval=0.005,
    max_samples=1000,
    warmup_calls=1,
    warmup_s=0.0,
    min_block_ms=1.0,
)
CPU = torch.device("cpu")
LINEAR = {"_target_": "torch.nn.Linear"}
EAGER = {"name": "eager", "_target_": "effbench.modes.eager.Eager"}


def trial_of(
    device="cpu",
    module=None,
    inputs=None,
    phase="inference",
    numerics=None,
    host_tolerance=None,
    **more,
):
    """A trial of a cell of these parts, on no GPU whatever its `device` is; it has not begun."""
    model = {"name": "m"} | ({"module": module, "inputs": inputs} if module else {})
    cell = Cell(model, 1, EAGER, "float32", phase, device, numerics or {}, **more)
    request = TrialRequest(cell.params(), {**vars(RULES), "host_tolerance": host_tolerance})
    made = trial.RunningTrial(request, lambda phase: None)
    made.mode = Eager()
    return made


class MadeUpTimer:
    """Takes these samples, on a host that was busy for a fraction of the time; None if its speed
    does not matter."""

    def __init__(self, latency, period=None, busy_fraction=None, discarded=()):
        self.timings = {"latency": latency, "period": period}
        self.busy_fraction = busy_fraction
        self.discarded = discarded
        self.host = self.watcher = None

    def waits_for_host(self, latency_ms):
        return self.busy_fraction is not None

    def latency(self, budget_s):
        if self.host:
            self.host.seconds = {True: 1.0 - self.busy_fraction, False: self.busy_fraction}
        self.watcher.discarded += self.discarded
        return self.timings["latency"]

    def period(self, budget_s):
        return self.timings["period"]


def timings_of(running, timer):
    cell, trial = running.cell, running.trial
    workload = workload_of(cell)(cell, Eager(), nn.Identity(), trial, {})
    return Timings(running.context, workload, timer)


def timed(running, *args, **options):
    """Take timings as a made-up timer does, and return the trial."""
    timer = MadeUpTimer(*args, **options)
    timer.watcher = running.context.watcher
    running.trial.samples.setdefault("warmup_ms", [5.2])
    timings_of(running, timer).take()
    return running.trial


OF_LATENCY, OF_PERIOD = (
    ("latency timing", "5.04 ms", "2.52 ms"),
    ("period timing", "6.31 ms", "5.2 ms"),
)
#: enqueue time, period, sizes of a stream, and what the reason says
DISAGREEING = {
    "bound by launching": (2.6, 2.5, None, ()),
    "bound by the GPU": (0.1, 2.5, None, ()),
    "enqueueing takes little longer than the period": (3.7, 2.5, None, ()),
    "enqueueing takes twice as long as the period": (5.0437, 2.5228, None, OF_LATENCY),
    "the same, of a stream with calls of many sizes": (5.0437, 2.5228, [1, 64], ()),
    "the period is longer than the latency": (5.0, 6.31, None, OF_PERIOD),
    "the same, of a stream": (5.0, 6.31, [1, 64], ()),
    "the period is little longer": (5.0, 6.1, None, ()),
    "the GPU is the bottleneck, and slower under load": (3.0, 6.31, None, ()),
}


@pytest.mark.parametrize(
    ("enqueue_ms", "period_ms", "sizes", "words"), DISAGREEING.values(), ids=DISAGREEING
)
@pytest.mark.parametrize("host_tolerance", [0.1, None])
def test_timers_that_disagree_show_a_busy_host(enqueue_ms, period_ms, sizes, words, host_tolerance):
    stream = sizes and {"name": "s", "samples_per_call": 1.0, "sizes": sizes}
    running = trial_of("cuda", stream=stream, host_tolerance=host_tolerance)
    record = timed(running, Timing([5.2] * 9, [enqueue_ms] * 9), Timing([period_ms] * 9))
    assert (record.latency_ms, record.period_ms) == (5.2, period_ms)
    assert (record.disturbance is not None) == bool(words)
    assert all(word in record.disturbance for word in words)


SLOWED = ["clocks reduced (hw_slowdown)"]
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
    running = trial_of("cuda", host_tolerance=0.1)
    record = timed(running, latency, Timing([4.9] * 30), busy_fraction=1.0, discarded=discarded)
    assert (record.disturbance is not None) is is_marked
    assert len(record.samples["latency_ms"]) == count
    is_watched = is_marked or count == 6
    assert record.disturbed_fraction == (1.0 if is_watched else None)
    assert ("latency_disturbed_ms" in record.samples) is is_watched


class TestMarks:
    """Too few undisturbed samples mark a trial: all samples give its times, and its bounds hold
    both states."""

    BUSY: ClassVar = {"busy_fraction": 0.83}

    @pytest.fixture(autouse=True)
    def alone(self, monkeypatch):
        """Other tests run on these cores."""
        monkeypatch.setattr(host, "core_times", lambda cores: None)

    @pytest.mark.parametrize(
        ("after", "is_marked"),
        [
            (CoreTimes(1000.0, 0.0), True),
            (CoreTimes(0.0, 1000.0), True),
            (CoreTimes(0.0, 0.0), False),
        ],
        ids=["other processes", "other virtual machines", "nothing"],
    )
    def test_others_on_most_of_the_cores_mark_a_trial(self, monkeypatch, after, is_marked):
        readings = iter([CoreTimes(0.0, 0.0), after])
        monkeypatch.setattr(host, "core_times", lambda cores: next(readings))
        latency = Timing([0.6] + [1.0] * 50)
        record = timed(trial_of(host_tolerance=0.1), latency, busy_fraction=0.0)
        assert ("the cores" in (record.disturbance or "")) is is_marked
        assert record.latency_ms == 1.0
        assert record.latency_median_low_ms == (0.6 if is_marked else 1.0)

    def latency(self, quiet, busy):
        return Timing([1.0] * quiet, disturbed_ms=[3.0] * busy)

    def test_a_trial_with_enough_undisturbed_samples_is_not_marked(self):
        record = timed(trial_of(host_tolerance=0.1), self.latency(5, 20), **self.BUSY)
        assert (record.disturbance, record.latency_ms, record.latency_samples) == (None, 1.0, 5)

    def test_a_marked_trial_has_the_median_of_all_samples(self):
        record = timed(trial_of(host_tolerance=0.1), self.latency(4, 20), **self.BUSY)
        assert record.disturbance == "host busy for 83 % of the timing"
        assert (record.latency_ms, record.latency_samples, record.latency_min_ms) == (3.0, 24, 1.0)

    def test_the_bounds_of_a_marked_trial_hold_both_medians(self):
        record = timed(trial_of(host_tolerance=0.1), self.latency(4, 20), **self.BUSY)
        assert (record.latency_median_low_ms, record.latency_median_high_ms) == (1.0, 3.0)

    def test_disturbed_samples_are_recorded_apart(self):
        record = timed(trial_of(host_tolerance=0.1), self.latency(5, 20), **self.BUSY)
        assert (len(record.samples["latency_ms"]), len(record.samples["latency_disturbed_ms"])) == (
            5,
            20,
        )

    def test_without_a_tolerance_all_samples_count_and_the_disturbed_ones_are_still_known(self):
        record = timed(trial_of(host_tolerance=None), self.latency(5, 20), **self.BUSY)
        assert (record.disturbance, record.latency_ms, record.latency_samples) == (None, 3.0, 25)
        assert len(record.samples["latency_disturbed_ms"]) == 20

    def test_without_a_tolerance_a_disturbed_trial_is_marked_as_well(self):
        record = timed(trial_of(host_tolerance=None), self.latency(4, 20), **self.BUSY)
        assert record.disturbance == "host busy for 83 % of the timing"

    def test_the_period_marks_a_trial_and_has_bounds_of_its_own(self):
        latency, period = Timing([5.0] * 9, [4.9] * 9), Timing([4.0] * 4, disturbed_ms=[5.0] * 20)
        record = timed(trial_of("cuda", host_tolerance=0.1), latency, period, **self.BUSY)
        assert record.disturbance == "host busy for 83 % of the timing"
        assert (record.period_ms, record.period_median_low_ms, record.period_median_high_ms) == (
            5.0,
            4.0,
            5.0,
        )
        assert (record.latency_median_low_ms, record.latency_median_high_ms) == (5.0, 5.0)
        assert len(record.samples["period_disturbed_ms"]) == 20

    def test_the_gpu_is_named_if_it_alone_was_disturbed(self):
        record = timed(
            trial_of("cuda", host_tolerance=0.1),
            Timing([5.0] * 9, [0.1] * 9, [5.0] * 90, [0.1] * 90),
            Timing([], disturbed_ms=[5.0] * 9),
            discarded=SLOWED,
        )
        assert record.disturbance == SLOWED[0]

    def test_what_disturbed_the_gpu_before_the_trial_is_named_first(self):
        running = trial_of("cuda", host_tolerance=0.1)
        running.context.watcher.before_timing = "another process keeps this GPU busy"
        record = timed(running, Timing([5.0] * 9, [0.1] * 9), Timing([5.0] * 9))
        assert record.disturbance == "another process keeps this GPU busy"

    def test_timing_again_forgets_what_the_first_time_found(self):
        running = trial_of("cuda", host_tolerance=0.1)
        disturbed = Timing([5.0], [4.9], [9.0] * 20, [4.9] * 20)
        timed(running, disturbed, Timing([5.0] * 9), discarded=SLOWED, **self.BUSY)
        record = timed(running, Timing([5.0] * 9, [4.9] * 9), Timing([5.0] * 9))
        assert (
            record.disturbance,
            record.disturbed_fraction,
            record.host_ms,
            record.host_high_ms,
        ) == (None,) * 4
        assert record.samples.keys() == {"warmup_ms", "latency_ms", "period_ms"}
        assert "discarded" not in record.extra


class TestWatched:
    """How the host is watched, by the device and the protocol."""

    def watch_of(self, monkeypatch, device, protocol, **request):
        made = {}

        def watch(quiet_ms, tolerance, **options):
            made.update(options, quiet_ms=quiet_ms, tolerance=tolerance)
            return HostWatch(quiet_ms, tolerance, **options)

        monkeypatch.setattr(context, "HostWatch", watch)
        running = trial_of(device)
        running.context.protocol = TrialProtocol.of({**vars(RULES), **protocol})
        running.context.request = replace(running.request, **request)
        timed(running, Timing([5.0] * 9, [4.9] * 9), Timing([5.0] * 9), busy_fraction=0.0)
        return SimpleNamespace(**made)

    @pytest.mark.parametrize(
        ("host_tolerance", "tolerance"), [(0.25, 1.25), (0.1, 1.1), (None, 1.1)]
    )
    def test_a_host_is_watched_also_without_a_tolerance(
        self, monkeypatch, host_tolerance, tolerance
    ):
        protocol = {"host_tolerance": host_tolerance, "patience": 2.0}
        assert self.watch_of(monkeypatch, "cpu", protocol).tolerance == tolerance

    @pytest.mark.parametrize(
        ("device", "moves", "all_threads"), [("cuda", True, False), ("cpu", False, True)]
    )
    def test_on_the_cpu_all_threads_are_watched_and_none_moves(
        self, monkeypatch, device, moves, all_threads
    ):
        made = self.watch_of(monkeypatch, device, {"host_tolerance": 0.1, "patience": 2.0})
        assert (made.moves, made.all_threads) == (moves, all_threads)

    @pytest.mark.parametrize(
        ("protocol", "waits"),
        [
            ({"host_tolerance": 0.1, "patience": 2.0}, True),
            ({"host_tolerance": 0.1, "patience": 1.0}, False),
            ({"host_tolerance": None, "patience": 2.0}, False),
        ],
    )
    def test_it_waits_for_quiet_moments_if_the_protocol_is_patient(
        self, monkeypatch, protocol, waits
    ):
        assert self.watch_of(monkeypatch, "cpu", protocol).waits is waits

    def test_it_knows_the_speeds_of_earlier_trials(self, monkeypatch):
        speeds = {"host_ms": 0.03, "host_high_ms": 0.07}
        made = self.watch_of(monkeypatch, "cpu", {"host_tolerance": 0.1, "patience": 2.0}, **speeds)
        assert (made.quiet_ms, made.usual_high_ms) == (0.03, 0.07)

    def test_a_step_that_does_not_depend_on_the_host_is_not_watched(self):
        running = trial_of("cuda", host_tolerance=0.1)
        record = timed(running, Timing([5.0] * 9, [0.1] * 9), Timing([5.0] * 9), busy_fraction=None)
        assert (record.host_ms, record.host_high_ms, record.disturbed_fraction) == (
            None,
            None,
            None,
        )


@pytest.fixture
def on_missing_gpu(monkeypatch):
    """Runs a trial whose mode and module do not exist, on a GPU that torch sees or not; returns the
    record and the phases."""

    def run(is_available, uuid=None):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: is_available)
        module = {"_target_": "not.there"}
        mode = {"name": "e", "_target_": "not.there.Mode"}
        cell = Cell({"name": "m", "module": module}, 1, mode, "float32", "inference", "cuda")
        request = TrialRequest(cell.params(), {**vars(RULES)}, gpu_uuid=uuid)
        phases = []
        return trial.run(request.to_json(), phases.append), phases

    return run


def test_the_gpu_is_touched_before_any_user_code(monkeypatch, on_missing_gpu):
    """So that what fails there is known to be the harness's failure."""

    def refuse(*_, **options):
        raise RuntimeError("CUDA driver initialization failed")

    monkeypatch.setattr(torch, "empty", refuse)
    ended, phases = on_missing_gpu(is_available=True)
    assert phases == [ended["phase"]] == [DEVICE_PHASE]
    assert ended["status"] == "error" and "CUDA driver initialization failed" in ended["reason"]


# the sweep retries the error
@pytest.mark.parametrize(("uuid", "status"), [("GPU-1", "error"), (None, "unsupported")])
def test_a_gpu_that_torch_does_not_see(on_missing_gpu, uuid, status):
    ended, _ = on_missing_gpu(is_available=False, uuid=uuid)
    assert (ended["phase"], ended["status"]) == (DEVICE_PHASE, status)


SGD = {
    "optimizer": "sgd",
    "implementation": "foreach",
    "lr": 0.1,
    "loss": "mean",
    "set_to_none": True,
}


@pytest.mark.parametrize("phase", ["inference", "training"])
@pytest.mark.parametrize(
    ("module", "shape"),
    [
        ({"_target_": "torch.nn.LazyConv3d"}, [2, 4, 4, 4]),
        ({"_target_": "torch.nn.Conv2d", "in_channels": 2}, [2, 4, 4]),
    ],
)
def test_lazy_weights_and_layers_of_other_dimensions_are_built(phase, module, shape):
    module = {**module, "out_channels": 2, "kernel_size": 3}
    inputs = [{"name": "x", "shape": shape}]
    running = trial_of("cpu", module, inputs, phase, {"channels_last": True}, training=SGD)
    running.build()
    weight = running.workload.module.weight
    assert weight.shape[:2] == (2, 2)
    assert weight.dim() != 4 or weight.is_contiguous(memory_format=torch.channels_last)


def test_a_cache_that_keeps_the_graph_of_a_training_step_is_named():
    sizes = {
        "max_batch": 1,
        "max_seq": 4,
        "context": 1,
        "layers": 1,
        "width": 8,
        "heads": 2,
        "vocab": 11,
    }
    module = {"_target_": "effbench.models.gpt2.GPT2Decoder", **sizes}
    inputs = [
        {"name": name, "shape": [1], "dtype": "int64", "value": 1} for name in ("token", "position")
    ]
    inputs[1]["batch_dim"] = None
    running = trial_of("cpu", module, inputs, "training", training=SGD)
    running.build()
    with pytest.raises(
        ValueError,
        match=r"^the buffer blocks\.0\..* keeps values of the step before with their graph",
    ):
        running.workload.take_reference()


@pytest.fixture
def torch_threads(monkeypatch):
    """The number of torch's threads, which the test may change. It begins with 4."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield torch.get_num_threads
    torch.set_num_threads(before)


def test_the_number_of_threads_that_a_module_sets_is_measured(torch_threads):
    module = {**LINEAR, "in_features": 2, "out_features": 2}
    running = trial_of("cpu", module, [{"name": "x", "shape": [2]}], threads=2)
    running.take_device()
    running.set_up()
    running.build()
    torch.set_num_threads(5)  # as its constructor may
    running.prepare()
    assert torch_threads() == 5


@pytest.mark.parametrize(
    ("threads", "cores", "expected"),
    [(None, 2, 2), (None, 4, 4), (None, 16, 4), (1, 4, 1), (3, 1, 3), (6, 16, 6)],
    ids=[
        "one per core",
        "as many cores",
        "no more than torch has",
        "fewer",
        "more than cores",
        "more than torch has",
    ],
)
def test_a_trial_runs_on_its_threads_or_on_one_per_physical_core(
    monkeypatch, torch_threads, threads, cores, expected
):
    monkeypatch.setattr(trial, "physical_cores", lambda usable: [(core,) for core in range(cores)])
    running = trial_of(threads=threads)
    running.take_device()
    assert torch_threads() == running.trial.threads == expected


def test_the_physical_cores_are_those_that_the_trial_may_use(monkeypatch, torch_threads):
    """It is pinned to some of them."""
    pinned = []
    monkeypatch.setattr(trial.os, "sched_setaffinity", lambda pid, cores: pinned.extend(cores))
    monkeypatch.setattr(trial.os, "sched_getaffinity", lambda pid: set(pinned))
    running = trial_of()
    running.request = replace(running.request, cores=[7, 9])
    running.take_device()
    assert (pinned, torch_threads()) == ([7, 9], 2)


QUIET = Counters(
    graphs=1, graph_breaks=0, recompiles=0, cudagraph_skips=0, cache_hits=0, cache_misses=0
)


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (QUIET, None),
        (replace(QUIET, cache_hits=3, cudagraph_skips=2), None),
        (replace(QUIET, graphs=2), "a graph was compiled while it was timed"),
        (
            replace(QUIET, graphs=2, recompiles=1, recompile_reason="failed guard: n == 1"),
            "a graph was compiled again while it was timed (failed guard: n == 1)",
        ),
    ],
)
def test_what_was_compiled_meanwhile_is_named_with_its_guard(after, expected):
    assert context.compiled_between(QUIET, after) == expected


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


class CompilesLate(Counts):
    """Compiles for the first time while `Counts.is_on`."""

    def forward(self, x):
        return self.work(x) if Counts.is_on else x + 0.0


class TestCompilingWhileTimed:
    """The figures of a step that compiles while it is timed include compiling, so it is timed once
    more."""

    @pytest.fixture
    def run(self, fresh_dynamo, monkeypatch):
        """Runs a trial of a module whose counting is on in these of its timings; gives the trial
        and its phases."""

        def run(module, on_in_timings):
            phases, timings = [], iter(range(9))

            def say_phase(phase):
                phases.append(phase)
                is_on = phase == "timing" and next(timings) in on_in_timings
                monkeypatch.setattr(Counts, "is_on", is_on)

            model = {"name": "m", "module": {"_target_": f"{__name__}.{module}"}}
            model["inputs"] = [{"name": "x", "shape": [4]}]
            cell = Cell(model, 1, EAGER, "float32", "inference", "cpu", threads=1)
            protocol = {**vars(RULES), "budget_s": 0.05, "min_time_s": 0.0, "host_tolerance": None}
            ended = trial.run(TrialRequest(cell.params(), protocol).to_json(), say_phase)
            return SimpleNamespace(**ended), [
                phase for phase in phases if phase in ("warmup", "timing")
            ]

        return run

    def test_a_step_that_compiles_nothing_is_timed_once(self, run):
        ended, phases = run("Counts", on_in_timings=())
        assert (ended.status, phases) == ("ok", ["warmup", "timing"])
        assert "timed_again" not in ended.extra

    def test_one_that_compiles_once_is_timed_again_and_ok(self, run):
        ended, phases = run("Counts", on_in_timings={0})
        assert (ended.status, ended.reason) == ("ok", None)
        assert phases == ["warmup", "timing", "warmup", "timing"]
        assert ended.extra["timed_again"].startswith(
            "a graph was compiled again while it was timed ("
        )

    def test_one_that_compiles_both_times_is_degraded_with_the_guard_that_failed(self, run):
        ended, phases = run("Counts", on_in_timings={0, 1})
        assert phases == ["warmup", "timing", "warmup", "timing"]
        assert ended.status == "degraded"
        assert ended.reason.startswith("a graph was compiled again while it was timed (")
        assert "self.calls" in ended.reason
        assert ended.reason.endswith("), twice: the times include compiling")
        assert ended.latency_ms > 0, "it has figures"

    def test_a_first_graph_is_named_as_such(self, run):
        ended, phases = run("CompilesLate", on_in_timings={0, 1})
        assert ended.extra["timed_again"] == "a graph was compiled while it was timed"
        assert (ended.status, len(phases)) == ("ok", 4), "it compiles once"


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
    reason = trial.unsupported(cell, mode, CPU)
    assert reason == expected or reason.startswith(expected)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"model": {"module": {"_target_": "os.system"}}}, "_target_=os.system is part of Python"),
        (
            {"model": {"module": {"_target_": "fractions.Fraction"}}},
            "_target_=fractions.Fraction is part of Python",
        ),
        (
            {"model": {"module": {"_target_": "torch.device"}}},
            "torch.device is a class; allowed: a torch.nn.Module",
        ),
        (
            {"model": {"module": {**LINEAR, "x": [{"_target_": "os.system"}]}}},
            "_target_=os.system is part of Python",
        ),
        (
            {"model": {"module": LINEAR, "inputs": {"x": {}, "y": {}}}},
            "torch.nn.Linear: model.inputs has 2 inputs by",
        ),
        (
            {"model": {"module": LINEAR, "inputs": [{"name": "y", "keyword": True}]}},
            "model.inputs.y is no argument",
        ),
        ({"mode": {**EAGER, "_target_": "os.system"}}, "_target_=os.system is part of Python"),
        (
            {"mode": {**EAGER, "_target_": "effbench.modes.base.Mode"}},
            "mode eager: Mode needs a method prepare",
        ),
        (
            {"mode": {**EAGER, "_target_": "torch.nn.Identity"}},
            "mode eager: derive Identity from effbench",
        ),
        (
            {"mode": {**EAGER, "_target_": "torch.cuda.is_available"}},
            "mode eager: derive bool from effbench",
        ),
        (
            {"phase": "training", "training": {"loss": "os.system"}},
            "training.loss=os.system is part of Python",
        ),
        (
            {"phase": "training", "training": {"loss": "meansquare"}},
            "did you mean mean-square.; allowed: mean",
        ),
    ],
)
def test_what_cannot_be_a_target_is_refused_before_the_first_trial(changed, expected):
    part = {
        "model": {"module": LINEAR},
        "mode": EAGER,
        "phase": "inference",
        "device": "cpu",
        **changed,
    }
    here = SimpleNamespace(
        call=lambda task, payload, timeout_s: probe.run(payload, lambda phase: None)
    )
    with pytest.raises(ConfigError, match=expected):
        probe_parts(here, [part], "eager")
