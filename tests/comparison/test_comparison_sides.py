"""Matching the cells and environments of two sides, and how they differ."""

from dataclasses import replace

import pytest
from made_sweeps import H200, a_cell, environment

from effbench.comparison.sides import Side, differences, machine_of, on_one_machine, pairs_of
from effbench.errors import NothingFoundError, UsageError
from effbench.store.sides import CellResult
from effbench.store.values import cell_row

HERE = (environment(),)
A100 = environment(gpu_name="NVIDIA A100")
EAGER, DEFAULT, GRAPH = (a_cell(mode) for mode in ("eager", "default", "cuda-graph"))


def row(env):
    return {name: getattr(env, name) for name in env.__dataclass_fields__} | {"id": env.id}


def a_side(cells, envs=HERE, title="before", measured=None, **facts):
    """A side on which every cell was measured in every environment, or only those of `measured`."""
    cells = {cell.key: cell_row(cell) for cell in cells}
    done = cells if measured is None else {cell.key for cell in measured}
    results = {(key, env.id): CellResult("ok") for key in cells if key in done for env in envs}
    return Side(title, None, cells, results, {env.id: row(env) for env in envs}, **facts)


def pairs(old, new, across=()):
    old, new = on_one_machine(old, new, across)
    return pairs_of(old, new, {key: key[:6] for side in (old, new) for key in side.cells}, across)


def test_planned_cells_that_were_not_measured_say_so():
    both = [EAGER, DEFAULT, GRAPH]
    old = a_side(both, measured=[EAGER, DEFAULT])
    new = a_side(both, title="after", measured=[EAGER], state="interrupted")
    found = {pair.key: pair for pair in pairs(old, new)}
    assert found[DEFAULT.key].why == "planned, not measured: the sweep is interrupted"
    assert GRAPH.key not in found  # nothing is known of it on either side
    again = {pair.key: pair for pair in pairs(new, old)}
    assert again[DEFAULT.key].why == "not measured before: that sweep is interrupted"


def test_what_cannot_be_compared_says_why():
    two, both = [environment(), A100], [EAGER, DEFAULT]
    interpreters = [environment(flags={"interpreter": f"/venvs/{name}/bin/python"}) for name in "ab"]
    wide, other = (a_cell(settings={"width": width}) for width in (64, 128))
    shared = "no cell was measured in both before and after"

    def after(cells, *envs, **more):
        return a_side(cells, envs or HERE, title="after", **more)

    for old, new, error, said in (
        (a_side([EAGER]), after([DEFAULT]), NothingFoundError, shared),
        (a_side(both, measured=[EAGER]), after(both, measured=[DEFAULT]), NothingFoundError, f"{shared}$"),
        (a_side(both), a_side(both, (), "after"), NothingFoundError, "after has no trial yet"),
        (a_side([EAGER]), after([a_cell(dtype="float16")]), NothingFoundError,
         r"differ in dtype \(bfloat16 against float16\); --across dtype"),
        (a_side([EAGER]), after([a_cell(numerics={"tf32": True})]), NothingFoundError,
         r"differ in numerics \(tf32=False against tf32=True\)"),
        (a_side([EAGER]), after([EAGER], A100), NothingFoundError, "H200 against NVIDIA A100; --across hardware"),
        (a_side([EAGER], two), after([EAGER], *two), UsageError, "NVIDIA H200, NVIDIA A100; choose one with --on"),
        (a_side([EAGER]), after([EAGER], *interpreters), UsageError, "after ran on 2 kinds of hardware"),
        (a_side([wide]), after([other]), NothingFoundError, r"all differ in .*width \(64 against 128\)$"),
        (a_side([wide, EAGER]), after([other]), NothingFoundError, r"differ in mode.width \(64 against 128\)$"),
    ):  # fmt: skip
        with pytest.raises(error, match=said):
            pairs(old, new)


def test_machines():
    assert machine_of(row(environment(gpu_name=None, cpu_name="EPYC")))[0] == "EPYC"
    # of several GPUs the shared one counts
    narrow = on_one_machine(a_side([EAGER]), a_side([EAGER], [A100, environment()], "after"))[1]
    assert [one["gpu_name"] for one in narrow.environments.values()] == [H200]
    assert {key[1] for key in narrow.results} == {environment().id}
    # an update within a sweep is one machine, and the last environment counts
    envs = [environment(), environment(torch_version="2.14.0")]
    new = a_side([EAGER], envs, title="after")
    new.results[EAGER.key, envs[1].id] = CellResult("oom")
    (pair,) = pairs(a_side([EAGER]), new)
    assert pair.after.status == "oom"


def test_differences_list_software_first():
    old = a_side([EAGER], protocol={"name": "standard", "rounds": 5, "budget_s": 5.0})
    env = environment(torch_version="2.14.0", python="3.13.1", flags={"TORCHDYNAMO_DISABLE": "1"})
    new = a_side([EAGER], [env], "after", protocol={"name": "mine", "rounds": 10, "budget_s": 5.0})
    assert differences(old, new, ()) == [
        "torch_version 2.13.0 → 2.14.0", "python 3.12.4 → 3.13.1", "TORCHDYNAMO_DISABLE not set → 1",
        "protocol.rounds 5 → 10",
    ]  # fmt: skip
    assert differences(old, replace(old), ()) == []
    host = {"hostname": "a", "kernel": "6.1", "effbench": "0.1.0", "folder": "/x"}
    here, there = (a_side([EAGER], host={**host, **more}) for more in ({}, {"hostname": "b", "effbench": "0.2.0"}))
    assert differences(here, there, ()) == ["host a → b", "effbench 0.1.0 → 0.2.0"]
    assert differences(a_side([EAGER]), there, ()) == []  # a sweep that does not record where it ran
