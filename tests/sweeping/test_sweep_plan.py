"""Which trials are left, in which order slots take them, and how long they take."""

from dataclasses import replace

import pytest
from schedule_parts import PROTOCOL, cell_runs, gpus, trials

from effbench.cell import Cell, Status, Trial
from effbench.printable import between
from effbench.sweeping.bounds import trial_bounds
from effbench.sweeping.devices import Slot
from effbench.sweeping.forecast import estimate, known_durations, plan_table
from effbench.sweeping.plan import CellRun, Settings
from effbench.sweeping.trial_queue import TrialQueue, groups_of


def test_rounds_are_in_order_and_each_has_a_seeded_order_of_its_own():
    def orders(seed):
        left = trials(20, 3, seed)
        assert [trial.round for trial in left] == [0] * 20 + [1] * 20 + [2] * 20
        return [
            tuple(trial.run.cell.bs for trial in left if trial.round == number)
            for number in range(3)
        ]

    assert orders(1) == orders(1)
    assert len({*orders(1), *orders(2), tuple(range(1, 21))}) == 7
    assert all(sorted(order) == list(range(1, 21)) for order in orders(1))


def test_what_is_recorded_or_has_failed_is_not_run():
    one, two, three = runs = cell_runs(3)
    recorded = ((one, 0, Status.OK), (two, 0, Status.OOM), (three, 1, Status.DEGRADED))
    history = {run: [Trial(run.cell.key, round, status)] for run, round, status in recorded}
    left = {(trial.run.cell.bs, trial.round) for trial in trials(runs, 3, history=history)}
    assert left == {(1, 1), (1, 2), (3, 0), (3, 2)}


def test_a_cell_on_the_cpu_never_runs_next_to_one_on_a_gpu():
    (on_gpu,), (on_cpu,) = cell_runs(1), cell_runs(1, device="cpu")
    for first, second in ((("GPU 0", "cuda"), ("CPU", "cpu")), (("CPU", "cpu"), ("GPU 0", "cuda"))):
        queue = queue_of(trials([on_gpu, on_cpu]), {}, {})
        group = queue.take(*first, {"cuda", "cpu"})
        assert queue.take(*second, {"cuda", "cpu"}) is None
        queue.finished(group)
        assert queue.take(*second, {"cuda", "cpu"}).cell.device == second[1]


def queue_of(trials, history, slots):
    return TrialQueue(groups_of(trials, history, slots))


DEVICES = {"cuda", "cpu"}
SLOT_OF = {"cuda": "GPU 0", "cpu": "CPU"}


def taken_by_turns(queue, first):
    """Let the slots of both devices ask in turn, `first` first, and end each group at once. Return
    the devices and rounds of the groups in order."""
    order, idle = [], 0
    second = "cpu" if first == "cuda" else "cuda"
    while not queue.is_empty():
        for device in (first, second):
            group = queue.take(SLOT_OF[device], device, DEVICES)
            if group is None:
                idle += 1
                assert idle < 1000, "no slot gets a group"
                continue
            order.append((device, group.round))
            queue.finished(group)
    return order


@pytest.mark.parametrize("first", ["cuda", "cpu"])
def test_devices_take_turns_by_rounds(first):
    queue = queue_of(trials([*cell_runs(2), *cell_runs(3, device="cpu")], 3), {}, {})
    order = taken_by_turns(queue, first)
    assert [round for _, round in order] == [0] * 5 + [1] * 5 + [2] * 5


def test_a_device_waits_for_the_round_of_the_other_and_not_for_the_next_one():
    queue = queue_of(trials([*cell_runs(1), *cell_runs(1, device="cpu")], 2), {}, {})
    queue.finished(queue.take("GPU 0", "cuda", DEVICES))
    assert queue.take("GPU 0", "cuda", DEVICES) is None, "round 0 of the CPU is left"
    queue.finished(queue.take("CPU", "cpu", DEVICES))
    assert queue.take("GPU 0", "cuda", DEVICES).round == 1


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_device_alone_waits_for_none(device):
    queue = queue_of(trials(cell_runs(1, device=device), 3), {}, {})
    rounds = []
    while group := queue.take(SLOT_OF[device], device, {device}):
        rounds.append(group.round)
        queue.finished(group)
    assert rounds == [0, 1, 2]


def test_no_device_waits_for_cells_of_a_device_that_the_machine_lacks():
    """Such cells run on any slot, and report that it is missing."""
    queue = queue_of(trials([*cell_runs(1), *cell_runs(1, device="cpu")], 2), {}, {})
    devices = [queue.take("CPU", "cpu", {"cpu"}).cell.device for _ in range(2)]
    assert sorted(devices) == ["cpu", "cuda"]


def test_rounds_of_one_device_that_are_over_hold_up_no_other():
    recorded, left = cell_runs(1), cell_runs(1, device="cpu")
    queue = queue_of(
        trials([*recorded, *left], 3, history={recorded[0]: done(recorded[0], 3)}), {}, {}
    )
    assert [round for _, round in taken_by_turns(queue, "cuda")] == [0, 1, 2]


def done(run, rounds, wall_s=1.0):
    return [Trial(run.cell.key, round, Status.OK, wall_s=wall_s) for round in range(rounds)]


def cell_of(model, mode, bs=1, device="cuda", dtype="float32"):
    return Cell({"name": model}, bs, {"name": mode}, dtype, "inference", device)


def test_an_estimate_uses_the_closest_history():
    known, alike = cell_of("m", "default"), cell_of("m", "default", bs=2)
    recorded = [
        (known, "cold", 100.0),
        *((known, "warm", seconds) for seconds in (10.0, 20.0, 90.0)),
    ]
    recorded += [
        (cell_of("m", "default", bs=4), "cold", 40.0),
        (cell_of("m", "default", bs=4), "warm", 4.0),
    ]
    recorded += [(cell_of("k", "default"), "cold", 10.0), (cell_of("k", "default"), "warm", 100.0)]
    eager, on_cpu = cell_of("m", "eager"), cell_of("m", "default", device="cpu")
    recorded += [(eager, None, 3.0), (on_cpu, "cold", 3.0)]
    durations = known_durations(
        (c.key, c.phase, c.model_name, c.mode_name, c.device, cache, s) for c, cache, s in recorded
    )
    settings = Settings.with_defaults(protocol={**PROTOCOL, "rounds": 3, "compilations": 2})
    assert settings.protocol.budget_s == 5

    def text(*cells):
        planned = trials([CellRun(cell) for cell in cells], 3)
        return estimate(planned, settings, [*gpus(2), Slot("CPU", "cpu")], durations)

    # on two GPUs, 2 × 100 + 20, 2 × 70 + 15, 2 × 40 + 20 and 3 × 3 s; on the CPU, 3 × 3 s
    assert (
        text(known, alike, cell_of("n", "default"), eager, on_cpu)
        == "duration: about 4 min, from the medians of earlier trials"
    )
    assert text(eager) == "duration: a few seconds, from the medians of earlier trials"
    assert text() == "duration: none, because all trials are recorded"
    # three trials, on average on 1.5 GPUs
    bounds = trial_bounds(cell_of("n", "other"), settings.protocol, is_cold=True)
    assert (
        text(cell_of("n", "other"))
        == f"duration: {between(1.5 * bounds.low_s, 1.5 * bounds.high_s)}, from the protocol and"
        " usual compile times: nothing like it has run here with this protocol"
    )
    assert "from the protocol and" in text(replace(eager, phase="training"))
    both = text(known, cell_of("n", "other"))
    assert both.endswith(
        "from the medians of earlier trials and, for 1 cell without any, the protocol"
    )
    assert between(110 + 1.5 * bounds.low_s, 110 + 1.5 * bounds.high_s) in both


def test_modes_with_the_same_sizes_share_a_row_of_the_plan():
    cells = [
        cell_of("m", mode, bs, dtype=dtype)
        for mode in ("eager", "default")
        for bs in range(8, 0, -1)
        for dtype in ("float32", "float16")
    ]
    cells += [cell_of("m", "cuda-graph", bs) for bs in range(1, 10)]
    assert [tuple(row.values()) for row in plan_table(cells).rows] == [
        ("m", "1, 2, 3, 4, 5, 6, 7, 8", "eager, default", 32),
        ("m", "9 sizes from 1 to 9", "cuda-graph", 9),
    ]
