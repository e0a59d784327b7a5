"""Sweeps of several hosts become one, whose intervals are over hosts and not over processes."""

import math
import statistics

import pytest
from made_pairs import rows_of
from made_sweeps import DEFAULT, EAGER, a_cell, environment, steps

from effbench.analysis.compare import compare_sweeps
from effbench.analysis.limits import limits_of
from effbench.core.cell import Status, Trial
from effbench.core.errors import StoreError, UsageError
from effbench.core.trace import Trace
from effbench.stats.intervals import log_mean

LARGE = a_cell(bs=64)
BUSY = "host busy for 83 % of the timing"
#: Host -> the speed of its launches, and the speedup of pairs there.
HOSTS = {"a": (1.0, 10.7), "b": (1.3, 8.9), "c": (1.1, 9.6)}


def on_host(made, name, speed=1.0, speedup=2.0, cells=None, env=None, **facts):
    """A sweep of eager and default on a host, whose launch-bound times follow its speed."""
    of_host = {"gpu_uuid": f"GPU-{name}", "host_ms": 0.04 * speed}
    default = {
        "latency_ms": steps(speed, 0.001),
        "pair_speedup": steps(speedup, 0.001),
        "compilation": [0, 1, 0, 1, 0],
        **of_host,
    }
    eager = {"latency_ms": steps(2.0 * speed, 0.001), **of_host}
    machine = environment(cpu_name=f"CPU {name}", driver_version=f"580.{ord(name[0])}", **env or {})
    host = {"hostname": f"{name}.cluster", "process": {"boot": f"boot of {name}"}}
    protocol = {"name": "standard", "rounds": 5, "budget_s": 1.0}
    facts = {"host": host, "protocol": protocol, **facts}
    return made.sweep(cells or {EAGER: eager, DEFAULT: default}, env=machine, **facts)


def on_hosts(made, hosts=HOSTS, **facts):
    return [
        on_host(
            made,
            name,
            speed,
            speedup,
            **facts,
        )
        for name, (speed, speedup) in hosts.items()
    ]


def result_in(store, sweep_id, cell=DEFAULT):
    (result,) = [result for result in store.results(sweep_id) if result.cell_key == cell.key]
    return result


def test_a_host_counts_once(made, opened):
    joined = opened.join(on_hosts(made), "h200")
    assert joined.hosts == ["a", "b", "c"]
    assert opened.find_sweep(joined.id).imported_at is not None
    (machine,) = opened.environments_of(joined.id)
    assert machine.cpu_name == "CPU a, CPU b, CPU c"
    result = result_in(opened, joined.id)
    assert result.hosts == 3
    assert result.trials == 3
    speeds = [speed for speed, _ in HOSTS.values()]
    assert result.latency_ms == pytest.approx(statistics.geometric_mean(speeds))
    assert result.latency_ci_low_ms < min(speeds) < max(speeds) < result.latency_ci_high_ms
    expected = log_mean([speedup for _, speedup in HOSTS.values()]).interval()
    found = (result.speedup, result.speedup_ci_low, result.speedup_ci_high)
    assert found == pytest.approx((expected.value, expected.low, expected.high))
    assert result.separate_speedup == pytest.approx(2.0)


def test_a_joined_cell_has_the_figures_of_its_hosts(made, opened):
    """Also those of an empty compile cache, and speedups without pairs, on which the speed of a
    host has no effect."""
    cold_first = ["cold", "warm", "warm", "warm", "warm"]
    parts = []
    for name, (speed, _) in HOSTS.items():
        compiled = {
            "latency_ms": speed,
            "pair_speedup": None,
            "compile_cache": cold_first,
            "compile_s": [40.0, 3.0, 3.0, 3.0, 3.0],
            "first_call_s": [50.0, 4.0, 4.0, 4.0, 4.0],
            "peak_reserved_bytes": [9, 5, 5, 5, 5],
            "steady": False,
        }
        cells = {EAGER: {"latency_ms": 2.0 * speed}, DEFAULT: compiled}
        parts.append(on_host(made, name, cells=cells))
    result = result_in(opened, opened.join(parts, "x").id)
    assert result.speedup_ci_low == pytest.approx(2.0)
    assert result.speedup_ci_high == pytest.approx(2.0)
    assert result.compile_cold_s == pytest.approx(40.0)
    assert result.compile_warm_s == pytest.approx(3.0)
    assert result.first_call_s == 50.0
    assert (result.peak_reserved_bytes, result.peak_reserved_cold_bytes) == (5, 9)
    assert result.unsteady_trials == 3


def test_the_number_of_trials_of_a_host_does_not_matter(made, opened):
    parts = [
        on_host(
            made,
            "a",
            1.0,
            rounds=5,
        ),
        on_host(
            made,
            "b",
            4.0,
            rounds=2,
        ),
    ]
    result = result_in(opened, opened.join(parts, "x").id)
    of_b = statistics.geometric_mean(steps(4.0, 0.001)[:2])
    assert result.latency_ms == pytest.approx(math.sqrt(of_b), rel=1e-6)
    assert result.latency_ci_high_ms / result.latency_ci_low_ms > 1000, "two hosts say little"


@pytest.mark.parametrize(("marked_hosts", "hosts", "is_marked"), [("d", 3, False), ("cd", 4, True)])
def test_a_host_is_marked_if_its_result_is(made, opened, marked_hosts, hosts, is_marked):
    parts = []
    for name in "abcd":
        disturbance = [BUSY if name in marked_hosts else None] * 4 + [BUSY]
        parts.append(on_host(made, name, cells={EAGER: {"disturbance": disturbance}}))
    result = result_in(opened, opened.join(parts, "x").id, EAGER)
    assert (result.hosts, result.marked) == (hosts, is_marked)


def test_joining_again_replaces_the_joined_sweep(made, opened):
    parts = on_hosts(made)
    joined = opened.join(parts, "h200")
    assert opened.join(reversed(parts), "h200") == joined
    assert opened.join(parts, "other name").id != joined.id
    (machine,) = opened.environments_of(parts[1])
    trial = Trial(EAGER.key, 5, Status.OK, latency_ms=99.0)
    opened.add_trial(parts[1], machine.id, trial)
    before = result_in(opened, joined.id, EAGER)
    assert opened.join(parts, "h200") == joined
    assert result_in(opened, joined.id, EAGER).latency_ms > before.latency_ms


def test_cells_that_only_some_planned_are_omitted(made, opened):
    parts = [on_host(made, "a"), on_host(made, "b", cells={LARGE: {}, EAGER: {}})]
    joined = opened.join(parts, "x")
    assert joined.omitted == 2
    assert opened.planned(joined.id) == [EAGER]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"env": {"gpu_name": "NVIDIA H100"}}, "GPU NVIDIA H200 and NVIDIA H100"),
        ({"env": {"python": "3.10.1"}}, "Python 3.12 and 3.10"),
        ({"protocol": {"name": "quick", "budget_s": 2.0}}, "protocol budget_s 1.0 and 2.0"),
        ({"baseline_mode": "default"}, "protocol baseline_mode eager and default"),
        ({"cells": {LARGE: {}}}, "they have no cell in common"),
        ({"host": {"process": {"boot": "boot of a"}}}, "they ran on the same host"),
        ({"name": "a", "host": {"hostname": "b"}}, "they ran on the same host"),
    ],
)
def test_sweeps_that_differ_in_more_than_the_host(made, opened, changed, reason):
    parts = [on_host(made, "a"), on_host(made, **{"name": "b", **changed})]
    known = opened.sweeps()
    with pytest.raises(StoreError, match=reason) as refused:
        opened.join(parts, "x")
    assert "\n" not in str(refused.value)
    assert opened.sweeps() == known


def the_same_name(made):
    return [on_host(made, name, host={"hostname": "node"}) for name in "ab"]


def unknown_hosts(made):
    parts = [on_host(made, name, host={}) for name in "ab"]
    made.sql("UPDATE trial SET gpu_uuid = NULL")
    return parts


def several_environments(made):
    sweep = on_host(made, "b")
    return [on_host(made, "a"), on_host(made, "c", into=sweep)]


def another_cpu(made):
    cells = {EAGER: {"gpu_uuid": None}}
    return [
        on_host(
            made,
            name,
            env={"gpu_name": None},
            cells=cells,
        )
        for name in "ab"
    ]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (the_same_name, "they ran on the same host .node"),
        (unknown_hosts, "it is unknown whether they ran on different hosts"),
        (several_environments, "has trials in 2 environments"),
        (another_cpu, "only the host may differ: CPU CPU a and CPU b"),
    ],
)
def test_hosts_that_cannot_be_joined(made, opened, make, reason):
    with pytest.raises(StoreError, match=reason):
        opened.join(make(made), "x")


def test_a_joined_sweep_is_not_joined_again(made, opened):
    joined = opened.join(on_hosts(made), "x").id
    with pytest.raises(StoreError, match="is a joined sweep; name the sweeps that it joins"):
        opened.join([joined, on_host(made, "d")], "y")


@pytest.mark.parametrize(
    ("hosts", "name", "text"),
    [
        ("ab", " ", "give the joined sweep a name"),
        ("a", "x", "--join needs the sweeps of two hosts or more, not 1 sweep"),
    ],
)
def test_mistakes(made, opened, hosts, name, text):
    with pytest.raises(UsageError, match=text):
        opened.join([on_host(made, host) for host in hosts], name)


def test_a_comparison_takes_hosts_and_not_trials(made, opened):
    slower = {name: (1.1 * speed, speedup) for name, (speed, speedup) in HOSTS.items()}
    joined = (opened.join(on_hosts(made, hosts), "x").id for hosts in (HOSTS, slower))
    compared = compare_sweeps(opened, *map(opened.find_sweep, joined), limits_of({}))
    (row,) = [row for row in rows_of(compared, "latency_ms") if row.key == DEFAULT.key]
    assert row.verdict == "ambiguous"
    assert row.ratio == pytest.approx(1.1)
    assert row.test.difference.df == pytest.approx(4)
    modes = {line.mode: line for line in compared.modes if line.metric == "latency_ms"}
    assert modes["default"].low == pytest.approx(row.low), "cells share their hosts"


def test_a_joined_result_has_the_trace_of_a_typical_trial_of_each_host(made, opened):
    """Whose latency is nearest to the host's result; a host may have none."""
    parts = []
    for name, (speed, speedup) in HOSTS.items():
        parts.append(on_host(made, name, speed, speedup))
    for sweep_id in parts[:2]:
        for trial in opened.trials(sweep_id):
            trace = Trace("cuda", 12, trial.latency_ms, 0.1, 0.1, 40, (), {})
            data = f"x'{trace.packed().hex()}'"
            made.sql(f"INSERT INTO trace VALUES ({trial.id}, 'json+zlib', {data})")
    joined = opened.join(parts, "h200")
    (machine,) = opened.environments_of(joined.id)
    traced = opened.traces(joined.id, DEFAULT.key, machine.id)
    assert [of_trial.trial.host for of_trial in traced] == ["a", "b", "c"]
    assert [of_trial.trace and of_trial.trace.latency_ms for of_trial in traced] == [1.0, 1.3, None]
    again = opened.join(parts, "h200")
    assert len(opened.traces(again.id, DEFAULT.key, machine.id)) == 3
