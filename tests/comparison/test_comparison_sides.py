"""Matching the cells and environments of two sides, and how they differ."""

from dataclasses import replace

import pytest
from made_sweeps import A100, DEFAULT, EAGER, GRAPH, H200, a_cell, environment

from effbench.cell import Cell
from effbench.comparison.matching import (
    Machine,
    Side,
    differences,
    machine_names,
    on_one_machine,
    pairs_of,
)
from effbench.errors import NothingFoundError, UsageError
from effbench.store.sides import CellResult
from effbench.store.values import cell_row

HERE = (environment(),)


def row(env):
    return {name: getattr(env, name) for name in env.__dataclass_fields__} | {"id": env.id}


def a_side(cells, envs=HERE, title="before", measured=None, **facts):
    """A side on which every cell was measured in every environment, or only those of `measured`."""
    done = {cell.key for cell in (cells if measured is None else measured)}
    cells = {cell.key: cell_row(cell) | {"params": cell.params()} for cell in cells}
    results = {(key, env.id): CellResult("ok") for key in cells if key in done for env in envs}
    return Side(title, None, cells, results, {env.id: row(env) for env in envs}, **facts)


def pairs(old, new, across=()):
    return pairs_of(*on_one_machine(old, new, across), across)


def test_planned_cells_that_were_not_measured_say_so():
    old = a_side([EAGER, DEFAULT, GRAPH], measured=[EAGER, DEFAULT])
    new = a_side([EAGER, DEFAULT, GRAPH], title="after", measured=[EAGER], state="interrupted")
    found = {pair.key: pair for pair in pairs(old, new)}
    assert found[DEFAULT.key].why == "planned, not measured: the sweep is interrupted"
    assert GRAPH.key not in found  # nothing is known of it on either side
    (pair,) = [one for one in pairs(a_side([EAGER, DEFAULT]), a_side([EAGER])) if one.after is None]
    assert pair.why == "not in the plan"


def test_cells_that_differ_in_what_is_accepted_are_matched():
    half = a_cell(dtype="float16")
    (pair,) = pairs(a_side([EAGER]), a_side([half]), ["dtype"])
    assert (pair.key, pair.about.dtype) == (EAGER.key, "bfloat16")
    assert pair.about.after == replace(pair.about, dtype="float16", after=None)
    same, other = pairs(a_side([EAGER, half]), a_side([half, EAGER]), ["dtype"])
    assert same.about.after is other.about.after is None, "the same cell goes first"
    third = a_cell(dtype="float32")
    for old, new in (([third], [EAGER, half]), ([EAGER, half], [third])):
        with pytest.raises(
            UsageError, match=r"differ only in dtype: .*bfloat16.*float16.*; compare sweeps that"
        ):
            pairs(a_side(old), a_side(new), ["dtype"])


def test_what_cannot_be_compared_says_why():
    both = [EAGER, DEFAULT]
    interpreters = [
        environment(flags={"interpreter": f"/venvs/{name}/bin/python"}) for name in "ab"
    ]
    shared = "no cell was measured in both before and after"
    other = a_cell("default", bs=64, env={f"A{number}": "1" for number in range(6)})

    def after(cells, *envs, **more):
        return a_side(cells, envs or HERE, title="after", **more)

    for old, new, error, said in (
        (
            a_side([EAGER]),
            after([DEFAULT, other]),
            NothingFoundError,
            f"{shared}; .* in mode.name eager → default$",
        ),
        (
            a_side([EAGER]),
            after([other]),
            NothingFoundError,
            f"{shared}; .* eager → default, .* → 1 and 3 more$",
        ),
        (a_side([]), after([EAGER]), NothingFoundError, f"{shared}$"),
        (
            a_side(both, measured=[EAGER]),
            after(both, measured=[DEFAULT]),
            NothingFoundError,
            f"{shared}$",
        ),
        (
            a_side([EAGER]),
            after([EAGER], *interpreters),
            UsageError,
            "after ran on several kinds of hardware",
        ),
    ):
        with pytest.raises(error, match=said):
            pairs(old, new)


def test_names_and_inputs_follow_a_parameter_of_the_module():
    def part(*models):
        cells = [
            Cell(
                {
                    "name": name,
                    "module": {"width": width},
                    "inputs": [{"name": "x", "shape": [width]}],
                },
                1,
                {"name": "eager"},
                "float32",
                "inference",
                "cpu",
                {},
            )
            for name, width in models
        ]
        return a_side(cells)

    parts = part(("small", 8)), part(("large", 16))
    (pair,) = pairs_of(*parts, by="model.module.width")
    assert (pair.about.model, pair.about.after.model) == ("small", "large")
    with pytest.raises(
        NothingFoundError,
        match=r"differ in model.module.width 8 → 16, model.inputs.x.shape \[8\] → ",
    ):
        pairs_of(*parts, by="model.name")
    # a model that has both widths is compared with itself
    both = part(("a", 8), ("b", 8)), part(("a", 16), ("b", 16))
    assert [pair.about.after for pair in pairs_of(*both, by="model.module.width")] == [
        None,
        None,
    ]


def test_settings_of_a_phase_and_the_cache_of_a_request_follow():
    def part(phase, seq=None, **settings):
        model = {"name": "net", "module": {"seq": seq}, "inputs": []}
        return a_side([Cell(model, 1, {"name": "eager"}, "float32", phase, "cpu", {}, **settings)])

    def request(prompt):
        return part("generate", prompt + 4, generate={"prompt": prompt, "new_tokens": 4})

    (pair,) = pairs_of(request(8), request(32), by="generate.prompt")
    assert pair.differs and pair.before and pair.after
    (pair,) = pairs_of(part("inference"), part("training", training={"lr": 0.1}), by="phase")
    assert pair.about.after.phase == "training"


def test_machines():
    assert Machine.of(row(environment(gpu_name=None, cpu_name="EPYC"))).hardware == "EPYC"
    chosen = environment(flags={"interpreter": "/venvs/new/bin/python"})
    for other, names in (
        (A100, [H200, "NVIDIA A100"]),
        (chosen, [f"{H200} own", f"{H200} /venvs/new/bin/python"]),
    ):
        assert list(machine_names(Machine.of(row(env)) for env in (*HERE, other)).values()) == names
    # of several GPUs the shared one counts
    narrow = on_one_machine(a_side([EAGER]), a_side([EAGER], [A100, environment()], "after"))[1]
    assert [one["gpu_name"] for one in narrow.environments.values()] == [H200]


def test_differences_list_software_first():
    old = a_side([EAGER], protocol={"name": "standard", "rounds": 5, "budget_s": 5.0})
    env = environment(torch_version="2.14.0", flags={"TORCHDYNAMO_DISABLE": "1"})
    new = a_side([EAGER], [env], "after", protocol={"name": "mine", "rounds": 10, "budget_s": 5.0})
    found = [
        "torch_version 2.13.0 → 2.14.0",
        "TORCHDYNAMO_DISABLE not set → 1",
        "protocol.rounds 5 → 10",
    ]
    assert differences(old, new, ()) == found
    assert differences(old, replace(old), ()) == []
    host = {"hostname": "a", "kernel": "6.1", "effbench": "0.1.0", "folder": "/x"}
    here, there = (
        a_side([EAGER], host={**host, **more})
        for more in ({}, {"hostname": "b", "effbench": "0.2.0"})
    )
    assert differences(here, there, ()) == ["host a → b", "effbench 0.1.0 → 0.2.0"]
    # a sweep that does not record where it ran
    assert differences(a_side([EAGER]), there, ()) == []
