"""Which trials are left, and in which order slots take them."""

from schedule_parts import cell_runs, trials

from effbench.cell import Status, Trial
from effbench.sweeping.plan import PlannedTrial, Queue


def test_rounds_are_in_order_and_each_has_a_seeded_order_of_its_own():
    def orders(seed):
        left = trials(20, 3, seed)
        assert [trial.round for trial in left] == [0] * 20 + [1] * 20 + [2] * 20
        return [tuple(trial.run.cell.bs for trial in left if trial.round == number) for number in range(3)]

    assert orders(1) == orders(1)
    assert len({*orders(1), *orders(2), tuple(range(1, 21))}) == 7
    assert all(sorted(order) == list(range(1, 21)) for order in orders(1))


def test_what_is_recorded_or_has_failed_is_not_run():
    one, two, three = runs = cell_runs(3)
    recorded = ((one, 0, Status.OK), (two, 0, Status.OOM), (three, 1, Status.DEGRADED))
    history = {run: [Trial(run.cell.key, round, status)] for run, round, status in recorded}
    left = {(trial.run.cell.bs, trial.round) for trial in trials(runs, 3, history=history)}
    assert left == {(1, 1), (1, 2), (3, 0), (3, 2)}


def test_a_noisy_round_keeps_its_further_tries_when_resumed():
    one, other, failed, *new = runs = cell_runs(6)
    history = {
        one: [Trial(one.cell.key, 0, Status.NOISY), Trial(one.cell.key, 1, Status.NOISY, attempt=1)],
        other: [Trial(other.cell.key, 0, Status.OK), Trial(other.cell.key, 1, Status.OK)],
        failed: [Trial(failed.cell.key, 0, Status.NOISY), Trial(failed.cell.key, 1, Status.ERROR)],
    }
    first, second = ([left for left in trials(runs, 2, 0, 2, history) if left.round == number] for number in (0, 1))
    assert {left.run for left in first[:3]} == {left.run for left in second} == {*new}
    assert first[3:] == [PlannedTrial(one, 0, 1)], "at the end of its round"
    assert {left.run for left in trials(runs, 2, attempts=1, history=history)} == {*new}


def test_the_last_groups_of_several_gpus_start_longest_first():
    runs = cell_runs(8)
    history = {run: [Trial(run.cell.key, 0, Status.OK, wall_s=float(run.cell.bs))] for run in runs}
    left = trials(runs, 2, history=history)
    planned = [trial.run.cell.bs for trial in left]

    def order(count):
        queue, taken = Queue(left, history, {f"GPU-{i}": f"GPU {i}" for i in range(count)}), []
        while group := queue.take("GPU 0", "cuda", {"cuda"}):
            taken.append(group.cell.bs)
            queue.finished(group)
        return taken

    assert order(1) == planned
    assert order(2) == [*planned[:4], *sorted(planned[4:], reverse=True)]
