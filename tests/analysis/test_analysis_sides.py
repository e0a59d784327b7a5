"""Matching the cells and environments of two sides, and how they differ."""

import itertools
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
from made_pairs import side
from made_sweeps import DEFAULT, EAGER, GRAPH, H200, a_cell, environment

from effbench.analysis.matching import (
    Side,
    at_one_place,
    compared_cells,
    differences,
)
from effbench.core.cell import Cell, StoredEnvironment
from effbench.core.errors import NothingFoundError, UsageError

HERE = (environment(),)


def stored(env):
    return StoredEnvironment(**asdict(env), id=env.id)


def a_side(cells, envs=HERE, title="before", measured=None, **facts):
    """A side on which every cell was measured in every environment, or only those of `measured`."""
    done = {cell.key for cell in (cells if measured is None else measured)}
    cells = {cell.key: cell for cell in cells}
    results = {}
    for key, env in itertools.product(done, envs):
        cell = cells[key]
        names = {"model": cell.model_name, "dtype": cell.dtype}
        results[key, env.id] = replace(side(), cell_key=key, **names)
    sweep = {"protocol": {}, "state": "completed", "host": {}} | facts
    return Side(
        SimpleNamespace(**sweep),
        title,
        None,
        cells,
        results,
        {env.id: stored(env) for env in envs},
    )


def pairs(old, new, across=()):
    return compared_cells(*at_one_place(old, new, across), across)


def test_planned_cells_that_were_not_measured_say_so():
    plan = [EAGER, DEFAULT, GRAPH]
    old = a_side(plan, measured=[EAGER, DEFAULT])
    new = a_side(
        plan,
        title="after",
        measured=[EAGER],
        state="interrupted",
    )
    found = {pair.key: pair for pair in pairs(old, new)}
    assert found[DEFAULT.key].why == "planned, not measured: the sweep is interrupted"
    assert GRAPH.key not in found  # nothing is known of it on either side


def test_cells_of_one_side_say_so():
    (pair,) = [one for one in pairs(a_side([EAGER, DEFAULT]), a_side([EAGER])) if one.after is None]
    assert pair.why == "not in the plan"


HALF = a_cell(dtype="float16")


def test_cells_that_differ_in_what_is_accepted_are_matched():
    (pair,) = pairs(a_side([EAGER]), a_side([HALF]), ["dtype"])
    assert pair.key == EAGER.key
    assert pair.before.dtype == "bfloat16"
    assert pair.before.cell_key != pair.after.cell_key


@pytest.mark.parametrize("order", [1, -1])
def test_a_cell_with_several_partners_is_refused(order):
    sides = [a_side([a_cell(dtype="float32")]), a_side([EAGER, HALF])][::order]
    with pytest.raises(UsageError, match=r"differ only in dtype: .*bfloat16.*float16"):
        pairs(*sides, ["dtype"])


SHARED = "no cell was measured in both before and after"
TWO = [environment(flags={"interpreter": f"/venvs/{name}/bin/python"}) for name in "ab"]
KNOWN = ", ".join(rf"{H200} \(interpreter /venvs/{name}/bin/python\)" for name in "ab")


@pytest.mark.parametrize(
    ("new", "error", "said"),
    [
        ({"cells": [DEFAULT]}, NothingFoundError, f"{SHARED}; .* differ in mode.name"),
        ({"cells": []}, NothingFoundError, SHARED),
        ({"cells": [EAGER], "measured": []}, NothingFoundError, f"{SHARED}$"),
        (
            {"cells": [EAGER], "envs": TWO},
            UsageError,
            f"after ran on several kinds .*: {KNOWN}; choose one with --on",
        ),
    ],
)
def test_what_cannot_be_compared_says_why(new, error, said):
    with pytest.raises(error, match=said):
        pairs(a_side([EAGER]), a_side(title="after", **new))


def part(*models):
    """A side of networks with these names and widths."""
    cells = []
    for name, width in models:
        inputs = [{"name": "x", "shape": [width]}]
        model = {"name": name, "module": {"width": width}, "inputs": inputs}
        cells.append(
            Cell(
                model,
                1,
                {"name": "eager"},
                "float32",
                "inference",
                "cpu",
                {},
            )
        )
    return a_side(cells)


def test_names_and_inputs_follow_a_parameter_of_the_module():
    parts = part(("small", 8)), part(("large", 16))
    (pair,) = compared_cells(*parts, by="model.module.width")
    assert pair.before.model == "small"
    assert pair.before and pair.after
    with pytest.raises(NothingFoundError, match="no cell was measured in both"):
        compared_cells(*parts, by="model.name")


def test_a_model_that_has_both_widths_is_compared_with_itself():
    both = part(("a", 8), ("b", 8)), part(("a", 16), ("b", 16))
    found = compared_cells(*both, by="model.module.width")
    assert [pair.before.model for pair in found if pair.before and pair.after] == ["a", "b"]


def test_differences_list_software_first():
    old = a_side([EAGER], protocol={"name": "standard", "rounds": 5, "budget_s": 5.0})
    env = environment(torch_version="2.14.0", flags={"TORCHDYNAMO_DISABLE": "1"})
    new = a_side(
        [EAGER],
        [env],
        "after",
        protocol={"name": "mine", "rounds": 10, "budget_s": 5.0},
    )
    assert differences(old, new, ()) == [
        "torch_version 2.13.0 → 2.14.0",
        "TORCHDYNAMO_DISABLE not set → 1",
        "protocol.rounds 5 → 10",
    ]


def test_differences_of_machines():
    host = {"hostname": "a", "kernel": "6.1", "effbench": "0.1.0"}
    here = a_side([EAGER], host=host)
    there = a_side([EAGER], host=host | {"hostname": "b", "effbench": "0.2.0"})
    assert differences(here, there, ()) == ["host a → b", "effbench 0.1.0 → 0.2.0"]
    # a sweep that does not record where it ran
    assert differences(a_side([EAGER]), there, ()) == []
