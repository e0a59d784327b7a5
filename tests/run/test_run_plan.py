"""Which trials are left, in which order slots take them, and how a plan is printed."""

from dataclasses import replace

import pytest
from schedule_parts import CPU, cell_runs, gpus, groups, trials_of

from effbench.core.cell import Cell, Status, Trial
from effbench.run.dry_run import plan_table
from effbench.run.plan import CellRun
from effbench.run.schedule import TrialQueue


def test_rounds_are_in_order_and_each_has_a_seeded_order_of_its_own():
    def orders(seed):
        left = trials_of(groups(20, 3, seed))
        assert [round for _, round in left] == [0] * 20 + [1] * 20 + [2] * 20
        sizes = [run.cell.bs for run, _ in left]
        return [tuple(sizes[start : start + 20]) for start in (0, 20, 40)]

    assert orders(1) == orders(1)
    assert len({*orders(1), *orders(2), tuple(range(1, 21))}) == 7
    assert all(sorted(order) == list(range(1, 21)) for order in orders(1))


def test_what_is_recorded_or_has_failed_is_not_run():
    one, two, three = runs = cell_runs(3)
    recorded = ((one, 0, Status.OK), (two, 0, Status.OOM), (three, 1, Status.DEGRADED))
    history = {run: [Trial(run.cell.key, round, status)] for run, round, status in recorded}
    left = trials_of(groups(runs, 3, history=history))
    assert {(run.cell.bs, round) for run, round in left} == {(1, 1), (1, 2), (3, 0), (3, 2)}


@pytest.mark.parametrize("slots", [[*gpus(1), CPU], [CPU, *gpus(1)]])
@pytest.mark.parametrize(("on_gpu", "on_cpu"), [(2, 3), (0, 2)])
def test_devices_take_turns_by_rounds(slots, on_gpu, on_cpu):
    queue = TrialQueue(groups([*cell_runs(on_gpu), *cell_runs(on_cpu, device="cpu")], 3), slots)
    order = []
    for _ in range(100):
        for slot in slots:
            placement = queue.take(slot)
            if placement is not None:
                order.append(placement.group.round)
                queue.finished(placement.group)
    assert queue.is_empty()
    assert order == sorted(order)


def test_trials_that_are_no_longer_needed_collect_no_gpus():
    (plain,) = cell_runs(1)
    both = CellRun(replace(plain.cell, parallel="tp2"))
    first, second = gpus(2)
    queue = TrialQueue(groups([plain, both], 2), [first, second])
    queue.drop({both})
    for _ in range(2):
        placement = queue.take(first)
        assert placement.group.runs == [plain]
        queue.finished(placement.group)
    assert queue.is_empty()


def test_the_plan_has_a_row_for_each_mode_of_a_model():
    def cell(mode, bs, dtype="float32"):
        return Cell({"name": "m"}, bs, {"name": mode}, dtype, "inference", "cuda")

    cells = [cell("eager", bs, dtype) for bs in (8, 1) for dtype in ("float32", "float16")]
    cells += [cell("cuda-graph", bs) for bs in range(1, 10)]
    assert [tuple(row.values()) for row in plan_table(cells).rows] == [
        ("m", "eager", "1, 8", 4),
        ("m", "cuda-graph", "1, 2, 3, 4, 5, 6, 7, 8 and 1 more", 9),
    ]
