"""Which trials are left, in which order slots take them, and how a plan is printed."""

import pytest
from schedule_parts import cell_runs, trials

from effbench.core.cell import Cell, Status, Trial
from effbench.run.dry_run import plan_table
from effbench.run.schedule import TrialQueue, groups_of

DEVICES = {"cuda", "cpu"}


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


def queue_of(planned):
    return TrialQueue(groups_of(planned))


@pytest.mark.parametrize(("first", "second"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_a_cell_on_the_cpu_never_runs_next_to_one_on_a_gpu(first, second):
    queue = queue_of(trials([*cell_runs(1), *cell_runs(1, device="cpu")]))
    group = queue.take(first, DEVICES)
    assert queue.take(second, DEVICES) is None
    queue.finished(group)
    assert queue.take(second, DEVICES).cell.device == second


def taken_by_turns(queue, *devices):
    """Let slots of these devices ask in turn, and end each group at once. Return the rounds of the
    groups in order."""
    order, idle = [], 0
    while not queue.is_empty():
        for device in devices:
            group = queue.take(device, DEVICES)
            if group is None:
                idle += 1
                assert idle < 1000, "no slot gets a group"
                continue
            order.append(group.round)
            queue.finished(group)
    return order


@pytest.mark.parametrize("devices", [("cuda", "cpu"), ("cpu", "cuda")])
def test_devices_take_turns_by_rounds(devices):
    queue = queue_of(trials([*cell_runs(2), *cell_runs(3, device="cpu")], 3))
    assert taken_by_turns(queue, *devices) == [0] * 5 + [1] * 5 + [2] * 5


def test_a_device_waits_for_the_round_of_the_other_and_not_for_the_next_one():
    queue = queue_of(trials([*cell_runs(1), *cell_runs(1, device="cpu")], 2))
    queue.finished(queue.take("cuda", DEVICES))
    assert queue.take("cuda", DEVICES) is None, "round 0 of the CPU is left"
    queue.finished(queue.take("cpu", DEVICES))
    assert queue.take("cuda", DEVICES).round == 1


def test_no_device_waits_for_cells_of_a_device_that_the_machine_lacks():
    """Such cells run on any slot, and report that it is missing."""
    queue = queue_of(trials([*cell_runs(1), *cell_runs(1, device="cpu")], 2))
    devices = [queue.take("cpu", {"cpu"}).cell.device for _ in range(2)]
    assert sorted(devices) == ["cpu", "cuda"]


def test_rounds_of_one_device_that_are_over_hold_up_no_other():
    queue = queue_of(trials(cell_runs(1, device="cpu"), 3))
    assert taken_by_turns(queue, "cuda", "cpu") == [0, 1, 2]


def test_the_plan_has_a_row_for_each_mode_of_a_model():
    def cell(mode, bs, dtype="float32"):
        return Cell({"name": "m"}, bs, {"name": mode}, dtype, "inference", "cuda")

    cells = [cell("eager", bs, dtype) for bs in (8, 1) for dtype in ("float32", "float16")]
    cells += [cell("cuda-graph", bs) for bs in range(1, 10)]
    assert [tuple(row.values()) for row in plan_table(cells).rows] == [
        ("m", "eager", "1, 8", 4),
        ("m", "cuda-graph", "9 sizes from 1 to 9", 9),
    ]
