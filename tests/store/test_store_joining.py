"""Sweeps of several hosts become one, whose intervals are over hosts and not over processes."""

import math
import random
import statistics

import pytest
from made_sweeps import a_cell, environment, sql, steps

from effbench.cell import Status, Trial
from effbench.comparison.compare import compare_sweeps
from effbench.comparison.limits import read as read_limits
from effbench.errors import StoreError, UsageError
from effbench.report.notes import joined_hosts
from effbench.stats.intervals import Interval, log_mean, mean_of_related_estimates
from effbench.store import Store
from effbench.store.summary import counted, estimate

EAGER, DEFAULT, LARGE = a_cell(), a_cell("default"), a_cell(bs=64)
BUSY = "host busy for 83 % of the timing"
#: Host -> the speed of its launches, and the speedup of pairs there.
HOSTS = {"a": (1.0, 10.7), "b": (1.3, 8.9), "c": (1.1, 9.6)}


def on_host(made, name, speed=1.0, speedup=2.0, rounds=5, cells=None, env=None, **facts):
    """A sweep of eager and default on a host, whose launch-bound times follow its speed."""
    of_host = {"gpu_uuid": f"GPU-{name}", "host_ms": 0.04 * speed}
    eager = {"latency_ms": steps(2.0 * speed, 0.001), **of_host}
    default = {
        "latency_ms": steps(speed, 0.001),
        "pair_speedup": steps(speedup, 0.001),
        "compilation": [0, 1, 0, 1, 0],
        **of_host,
    }
    figures = cells or {EAGER: eager, DEFAULT: default}
    machine = environment(cpu_name=f"CPU {name}", driver_version=f"580.{ord(name[0])}", **env or {})
    host = {"hostname": f"{name}.cluster", "process": {"boot": f"boot of {name}"}}
    protocol = {"name": "standard", "rounds": 5, "budget_s": 1.0}
    facts = {"host": host, "protocol": protocol, **facts}
    return made.sweep(figures, env=machine, rounds=rounds, **facts)


def on_hosts(made, hosts=HOSTS, **facts):
    return [
        on_host(made, name, speed, speedup, **facts) for name, (speed, speedup) in hosts.items()
    ]


def result(store, sweep_id, cell=DEFAULT):
    (row,) = [row for row in store.results(sweep_id) if row.cell_key == cell.key]
    return row


def interval(row, name):
    return Interval(row.value(name), row.value(f"{name}_ci_low"), row.value(f"{name}_ci_high"))


def test_a_host_counts_once(made, opened):
    joined = opened.join(on_hosts(made), "h200")
    assert (joined.hosts, joined.cells, joined.trials) == (["a", "b", "c"], 2, 30)
    row = result(opened, joined.id)
    assert (row.hosts, row.trials, row.compilations) == (3, 15, 6)
    speeds = [speed for speed, _ in HOSTS.values()]
    assert row.latency_ms == pytest.approx(statistics.geometric_mean(speeds))
    assert row.latency_ci_low_ms < min(speeds) < max(speeds) < row.latency_ci_high_ms
    of_pairs = [speedup for _, speedup in HOSTS.values()]
    expected = log_mean(of_pairs).interval()
    assert row.speedup_from == "pairs"
    assert interval(row, "speedup").value == pytest.approx(expected.value)
    assert interval(row, "speedup").low == pytest.approx(expected.low)
    assert interval(row, "speedup").high == pytest.approx(expected.high)


def test_the_speed_of_a_host_does_not_affect_its_separate_speedup(made, opened):
    row = result(opened, opened.join(on_hosts(made), "h200").id)
    assert row.separate_speedup == pytest.approx(2.0)
    assert row.separate_speedup_ci_high / row.separate_speedup_ci_low < 1.001


def test_the_number_of_trials_of_a_host_does_not_matter(made, opened):
    parts = [on_host(made, "a", 1.0, rounds=5), on_host(made, "b", 4.0, rounds=2)]
    row = result(opened, opened.join(parts, "x").id)
    of_b = statistics.geometric_mean(steps(4.0, 0.001)[:2])
    assert row.latency_ms == pytest.approx(math.sqrt(of_b), rel=1e-6)
    assert row.latency_ci_high_ms / row.latency_ci_low_ms > 1000, "two hosts say little"


@pytest.mark.parametrize(
    ("marked_hosts", "hosts", "is_marked"), [("d", 3, False), ("cd", 4, True), ("abcd", 4, True)]
)
def test_a_host_is_marked_if_all_its_trials_are(made, opened, marked_hosts, hosts, is_marked):
    parts = []
    for name in "abcd":
        disturbance = [BUSY if name in marked_hosts else None] * 4 + [BUSY]
        parts.append(on_host(made, name, cells={EAGER: {"disturbance": disturbance}}))
    row = result(opened, opened.join(parts, "x").id, EAGER)
    assert (row.hosts, row.marked) == (hosts, is_marked)


def test_marked_trials_of_a_host_do_not_count_next_to_others():
    quiet = Trial("k", 0, Status.OK, host="a")
    slow = Trial("k", 1, Status.OK, host="a", disturbance=BUSY)
    failed = Trial("k", 2, Status.ERROR, host="a", disturbance=BUSY)
    other = Trial("k", 3, Status.OK, host="b", disturbance=BUSY)
    assert counted([quiet, slow, failed, other]) == [quiet, failed, other]


@pytest.mark.parametrize("hosts", [3, 5])
def test_the_interval_covers_the_mean_over_all_hosts(hosts):
    """Of hosts that differ by 10 % (SD), with processes that differ by 2 %."""
    draw = random.Random(7)
    covered = 0
    for _ in range(500):
        trials = []
        for host in range(hosts):
            speed = draw.gauss(0, 0.1)
            for turn in range(3):
                latency_ms = math.exp(speed + draw.gauss(0, 0.02))
                number = len(trials) + turn
                trials.append(Trial("k", number, Status.OK, host=str(host), latency_ms=latency_ms))
        found = estimate(trials, "latency_ms").interval()
        covered += found.low <= 1.0 <= found.high
    assert 0.92 <= covered / 500 <= 0.98


def test_one_host_of_a_joined_sweep_has_no_interval():
    trials = [Trial("k", turn, Status.OK, host="a", latency_ms=2.0 + turn) for turn in range(3)]
    assert estimate(trials, "latency_ms").interval().low is None


def test_joining_again_changes_nothing_until_a_sweep_goes_on(made, opened):
    parts = on_hosts(made)
    joined = opened.join(parts, "h200")
    assert joined.is_changed
    again = opened.join(reversed(parts), "h200")
    assert (again.id, again.trials, again.is_changed) == (joined.id, 30, False)
    assert opened.join(parts, "other name").id != joined.id
    (machine,) = opened.environments_of(parts[1])
    samples = {"latency_ms": [1.0, 2.0]}
    extra = {"artifacts": [f"artifacts/{parts[1]}/x"], "facts": {"a": 1}}
    trial = Trial(EAGER.key, 5, Status.OK, latency_ms=2.6, samples=samples, extra=extra)
    opened.record(parts[1], machine["id"], trial)
    more = opened.join(parts, "h200")
    assert (more.id, more.trials, more.is_changed) == (joined.id, 31, True)
    assert opened.find_sweep("h200").trials == 31
    (copy,) = [row for row in opened.trials(joined.id) if row["extra"]]
    assert copy["extra"] == {"facts": {"a": 1}}
    assert opened.samples(copy["id"])["latency_ms"].tolist() == [1.0, 2.0]
    assert Store.check(made.path) == []


def test_cells_that_only_some_planned_are_omitted(made, opened):
    parts = [on_host(made, "a"), on_host(made, "b", cells={LARGE: {}, EAGER: {}})]
    joined = opened.join(parts, "x")
    assert (joined.cells, joined.omitted) == (1, 2)
    assert [cell.key for cell in opened.planned(joined.id)] == [EAGER.key]


def test_the_sweep_names_its_hosts(made, opened):
    joined = opened.find_sweep(opened.join(on_hosts(made), "h200").id)
    assert joined.imported_at is not None
    assert (joined.name, joined.rounds, joined.state) == ("h200", 15, "completed")
    (line,) = joined_hosts(joined)
    assert line == (
        "over 3 hosts: a (CPU a, fixed work 40 µs), b (CPU b, fixed work 52 µs),"
        " c (CPU c, fixed work 44 µs)"
    )
    (machine,) = opened.environments_of(joined.id)
    assert machine["cpu_name"] == "CPU a, CPU b, CPU c"
    assert (machine["gpu_name"], machine["torch_version"]) == ("NVIDIA H200", "2.13.0")


def test_hosts_of_the_same_name_are_numbered(made, opened):
    parts = []
    for name in "ab":
        host = {"hostname": "gpu", "process": {"boot": name}}
        parts.append(on_host(made, name, host=host))
    assert opened.join(parts, "x").hosts == ["gpu-1", "gpu-2"]


def test_a_comparison_takes_hosts_and_not_trials(made, opened):
    before = opened.join(on_hosts(made), "before").id
    slower = {name: (1.1 * speed, speedup) for name, (speed, speedup) in HOSTS.items()}
    after = opened.join(on_hosts(made, slower), "after").id
    (side,) = [side for (key, _), side in opened.sides(before).items() if key == DEFAULT.key]
    assert side.figures["latency_ms"] == pytest.approx({0: 1.0, 1: 1.3, 2: 1.1})
    assert side.compiled == dict.fromkeys(range(3), (None, None))
    sweeps = [opened.find_sweep(sweep_id) for sweep_id in (before, after)]
    compared = compare_sweeps(opened, *sweeps, read_limits())
    (row,) = [
        row for row in compared.changes if (row.key, row.metric) == (DEFAULT.key, "latency_ms")
    ]
    assert (row.verdict, row.ratio) == ("ambiguous", pytest.approx(1.1))
    assert row.test.df == pytest.approx(4)
    modes = {line.mode: line for line in compared.modes if line.metric == "latency_ms"}
    assert modes["default"].low == pytest.approx(row.low), "cells share their hosts"


def test_a_mean_of_related_estimates_has_the_error_of_one():
    one = log_mean([1.0, 1.2, 1.1])
    assert mean_of_related_estimates([one, one]).error == pytest.approx(one.error)
    assert mean_of_related_estimates([one, log_mean([1.0])]).error is None


def no_fewer_than_two(made):
    return [on_host(made, "a")]


def another_gpu(made):
    return [on_host(made, "a"), on_host(made, "b", env={"gpu_name": "NVIDIA H100"})]


def another_torch(made):
    return [on_host(made, "a"), on_host(made, "b", env={"torch_version": "2.11.0"})]


def another_python(made):
    return [on_host(made, "a"), on_host(made, "b", env={"python": "3.10.1"})]


def another_flag(made):
    return [on_host(made, "a"), on_host(made, "b", env={"flags": {"X": "1"}})]


def another_protocol(made):
    return [on_host(made, "a"), on_host(made, "b", protocol={"name": "quick", "budget_s": 2.0})]


def another_baseline(made):
    return [on_host(made, "a"), on_host(made, "b", baseline_mode="default")]


def other_cells(made):
    return [on_host(made, "a"), on_host(made, "b", cells={LARGE: {}})]


def the_same_gpu(made):
    return [on_host(made, "a"), on_host(made, "a", host={"hostname": "b"})]


def the_same_boot(made):
    return [on_host(made, name, host={"process": {"boot": "x"}}) for name in "ab"]


def the_same_name(made):
    return [on_host(made, name, host={"hostname": "node"}) for name in "ab"]


def unknown_hosts(made):
    parts = [on_host(made, name, host={}) for name in "ab"]
    made.sql("UPDATE trial SET gpu_uuid = NULL")
    return parts


def no_trial(made):
    return [on_host(made, "a"), on_host(made, "b", cells={EAGER: None})]


def several_environments(made):
    sweep = on_host(made, "b")
    return [on_host(made, "a"), on_host(made, "c", into=sweep)]


def another_cpu(made):
    return [
        on_host(made, name, env={"gpu_name": None}, cells={EAGER: {"gpu_uuid": None}})
        for name in "ab"
    ]


REFUSALS = [
    (no_fewer_than_two, "--join needs the sweeps of two hosts or more, not 1 sweep"),
    (another_gpu, "only the host may differ: GPU NVIDIA H200 and NVIDIA H100"),
    (another_torch, "only the host may differ: torch 2.13.0 and 2.11.0"),
    (another_python, "only the host may differ: Python 3.12.4 and 3.10.1"),
    (another_flag, "only the host may differ: X none and 1"),
    (another_protocol, "only the host may differ: protocol budget_s 1.0 and 2.0"),
    (another_baseline, "their baselines are default and eager"),
    (other_cells, "they have no cell in common"),
    (the_same_gpu, "they ran on the same host, with the GPU GPU-a"),
    (the_same_boot, "they ran on the same host, without a name"),
    (the_same_name, "they ran on the same host, node"),
    (unknown_hosts, "it is unknown whether they ran on different hosts"),
    (no_trial, "has trials in 0 environments"),
    (several_environments, "has trials in 2 environments"),
    (another_cpu, "only the host may differ: CPU CPU a and CPU b"),
]


@pytest.mark.parametrize(("make", "reason"), REFUSALS, ids=[make.__name__ for make, _ in REFUSALS])
def test_what_cannot_be_joined(made, opened, make, reason):
    parts = make(made)
    known = opened.sweeps()
    with pytest.raises((StoreError, UsageError), match=reason) as refused:
        opened.join(parts, "x")
    assert "\n" not in str(refused.value)
    assert opened.sweeps() == known


def test_a_setting_that_an_earlier_version_lacks_does_not_matter(made, opened):
    parts = [on_host(made, "a"), on_host(made, "b", protocol={"name": "quick", "rounds": 3})]
    assert opened.join(parts, "x").is_changed


def test_a_joined_sweep_is_not_joined_again(made, opened):
    joined = opened.join(on_hosts(made), "x").id
    with pytest.raises(StoreError, match="is a joined sweep; name the sweeps that it joins"):
        opened.join([joined, on_host(made, "d")], "y")


@pytest.mark.parametrize("name", ["", " ", "confirm: x"])
def test_the_name_must_be_one(made, opened, name):
    with pytest.raises(UsageError, match="give the joined sweep a name"):
        opened.join(on_hosts(made), name)


def test_forged_hosts_do_not_break_a_comparison(made, opened):
    joined = opened.join(on_hosts(made), "x").id
    sql(made.path, f"UPDATE trial SET host = NULL WHERE sweep_id = '{joined}' AND round < 3")
    opened.rebuild_results(joined)
    assert len(opened.sides(joined)) == 2
