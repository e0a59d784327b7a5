"""What disturbs timing: discarded, timed again, and in the end kept as a mark. The GPU is made
up."""

import itertools
import os
from types import SimpleNamespace

import pytest
import torch

from effbench.core.cell import Status, Trial
from effbench.core.disturbances import Disturbance, DisturbanceKind
from effbench.measure import watch
from effbench.measure.gpu import Gpu, GpuState

MIB = 2**20
CLOCKS, PROCESS = DisturbanceKind.CLOCKS, DisturbanceKind.PROCESS


def answers(sequence):
    """A query that gives these answers."""
    following = itertools.chain(sequence, itertools.repeat(sequence[-1]))
    return lambda *asked: next(following)


class MadeUp(Gpu):
    """Each query gives the next of its answers, the last one for ever."""

    def __init__(self, events=((),), pids=(set(),), used=(None,), busy=(0,), working=(None,)):
        super().__init__()
        self.state = answers([GpuState(clocks_event_reasons=list(names)) for names in events])
        self.foreign_pids = answers(pids)
        self.used_bytes = answers(used)
        self.utilization = answers(busy)
        self.working_pids = answers(working)


@pytest.fixture(autouse=True)
def without_cuda(monkeypatch):
    """torch holds no memory on the GPU."""
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


@pytest.fixture
def naps(monkeypatch):
    """How long it has slept, which takes no time."""
    naps = []
    monkeypatch.setattr(watch.time, "sleep", naps.append)
    return naps


def watching(shared=False, **answers):
    made = watch.GpuWatch(MadeUp(**answers))
    made.shared = shared
    made.begin()
    return made


@pytest.mark.parametrize(
    ("answers", "disturbed", "kind", "text"),
    [
        ({}, [False], None, None),
        ({"events": [("sw_power_cap", "gpu_idle")]}, [False], None, None),
        (
            {"events": [("hw_slowdown",), ("gpu_idle",)]},
            [True, False],
            CLOCKS,
            "clocks reduced (hw_slowdown)",
        ),
        ({"pids": [{7}, {7}]}, [False], None, None),
        (
            {"pids": [{7}, {7, 8, 9}]},
            [True],
            PROCESS,
            "another process started to use this GPU (pid 8, 9)",
        ),
        (
            {"pids": [{7, 8}], "working": [{1}, {1, 8}, {1}]},
            [False, True, False],
            PROCESS,
            "another process works on this GPU (pid 8)",
        ),
        (
            {"used": [600 * MIB, 2600 * MIB]},
            [True],
            PROCESS,
            "another process allocated 2000 MiB on this GPU",
        ),
    ],
)
def test_disturbances(answers, disturbed, kind, text):
    made = watching(**answers)
    assert [made.discard_if_disturbed() for _ in disturbed] == disturbed
    assert made.discarded == ([Disturbance(kind, text)] if text else [])
    assert made.disturbance is None


def test_a_new_watch_is_complete():
    made = watch.GpuWatch(MadeUp(used=[600 * MIB]))
    assert not made.discard_if_disturbed()
    made.end()
    assert made.disturbance is None


def test_after_three_retries_it_is_kept_and_marks_the_trial():
    made = watching(events=[("hw_slowdown",)])
    assert [made.discard_if_disturbed() for _ in range(5)] == [True, True, True, False, False]
    assert len(made.discarded) == 3
    text = "during timing, on every attempt: clocks reduced (hw_slowdown)"
    assert made.disturbance == Disturbance(CLOCKS, text)
    made.begin()
    assert made.discard_if_disturbed(), "each timer has its retries"


@pytest.mark.parametrize(
    ("answers", "slept_s", "disturbance"),
    [
        ({"pids": [{7}], "busy": [40]}, 2.0, "another process kept this GPU busy"),
        ({"pids": [{7}], "busy": [0]}, 2.0, "None"),
        # reported late
        ({"pids": [{7}], "working": [{1, 7}]}, 0, "another process works on this GPU (pid 7)"),
        ({"pids": [{7}], "working": [{1}], "busy": [40]}, 0, "None"),
        ({"pids": [set()], "busy": [40]}, 0, "None"),
        ({"shared": True, "busy": [40]}, 2.0, "another process kept this GPU busy"),
    ],
)
def test_rest_after_timing(naps, answers, slept_s, disturbance):
    made = watching(**answers)
    made.end()
    assert sum(naps) == slept_s
    assert disturbance in str(made.disturbance)


def sample(pid, util, at):
    return SimpleNamespace(pid=pid, smUtil=util, timeStamp=int(at * 1e6))


MINE = sample(os.getpid(), 50, 20.0)
OTHERS = [sample(7, 30, 20.0), sample(8, 0, 20.0), sample(9, 30, 5.0)]


@pytest.mark.parametrize(
    ("answer", "expected"),
    # None: NVML cannot tell, or it numbers processes otherwise than this one does
    [([MINE, *OTHERS], {MINE.pid, 7}), (OTHERS, None), (None, None)],
)
def test_working_pids_are_those_with_a_recent_kernel(answer, expected):
    nvml = SimpleNamespace(ask=lambda function, handle, since: answer)
    assert Gpu(nvml, object()).working_pids(10.0) == expected


@pytest.mark.parametrize(
    ("answers", "is_shared", "slept"),
    [
        ({"used": [MIB], "busy": [90]}, False, 0),  # of an earlier trial
        ({}, False, 0),  # unknown
        ({"used": [16384 * MIB], "busy": [0]}, True, 0),  # memory that is only held
        ({"used": [16384 * MIB], "busy": [90, 40, 0]}, True, 2),
    ],
)
def test_a_foreign_process_before_the_trial(naps, answers, is_shared, slept):
    made = watch.GpuWatch(MadeUp(**answers))
    made.wait_until_free(9.0)
    assert len(naps) == slept
    assert made.before_timing is None
    assert made.shared is is_shared


def test_a_foreign_process_that_does_not_stop(monkeypatch, naps):
    monkeypatch.setattr(watch, "SAMPLING_S", 0.0)
    made = watch.GpuWatch(MadeUp(used=[16384 * MIB], busy=[90]))
    made.wait_until_free(0.0)
    text = "another process keeps this GPU busy (16384 MiB in use before the trial)"
    assert made.before_timing == Disturbance(PROCESS, text)


def recorded(made):
    """The trial, with what the GPU showed."""
    trial = Trial("key", 0, Status.OK)
    made.record(trial)
    return trial


@pytest.mark.parametrize("uuid", [None, "GPU-00000000-0000-0000-0000-000000000000"])
def test_without_nvml_nothing_is_known(uuid):
    gpu = Gpu.open(uuid)
    made = watch.GpuWatch(gpu)
    made.wait_until_free(9.0)
    made.begin()
    made.poll(10)
    assert not made.discard_if_disturbed()
    made.end()
    assert recorded(made) == Trial("key", 0, Status.OK)
    assert gpu.processes() is gpu.working_pids(0.0) is gpu.utilization() is None


def test_polling_marks_changes_of_the_energy_counter_and_reads_the_state_less_often(monkeypatch):
    now, energies = [0.0], iter([5, None, 5, 7, 7, 9, 9, 9, 9, 9])
    monkeypatch.setattr(watch.time, "perf_counter", lambda: now[0])
    state = GpuState(clocks_event_reasons=["hw_slowdown"])
    made = watch.GpuWatch(
        SimpleNamespace(handle=1, ask=lambda function: next(energies), state=lambda: state)
    )
    for calls in range(10):
        made.poll(calls)
        now[0] += 0.025
    assert [(change.energy_mj, change.calls) for change in made.energy_changes] == [
        (5, 0),
        (7, 3),
        (9, 5),
    ]
    assert made.states == [state] * 2
    assert made.events == {"hw_slowdown"}


def test_energy_and_readings_of_a_busy_gpu():
    made = watch.GpuWatch(Gpu())
    # the first mark is where polling began: the counter had changed some time before
    marks = [(90, 0, 0.0), (100, 10, 0.05), (200, 60, 0.2), (300, 110, 0.5)]
    made.energy_changes = [watch.EnergyChange(*mark) for mark in marks]
    assert made.energy_per_call_mj() == 2
    made.energy_changes.pop()
    assert made.energy_per_call_mj() is None, "too short"
    made.states = [
        GpuState(1000, 2000, 50, 100.0, ["gpu_idle"]),
        GpuState(1900, 2000, 60, None, ["sw_power_cap"]),
        GpuState(1800, None, 61, 300.0, ["sw_power_cap"]),
    ]
    trial = recorded(made)
    assert (trial.sm_clock_mhz, trial.memory_clock_mhz) == (1800, 2000)
    assert (trial.temperature_c, trial.power_w) == (60, 200.0)
    assert trial.clocks_event_reasons == "gpu_idle,sw_power_cap"
