from dataclasses import replace

import pytest
from made_sweeps import H200, a_cell, environment

from effbench.analysis.halves import Half, accepted, differences, pairs_of, partners_of, seat_of, seated, without
from effbench.analysis.screen import Side
from effbench.errors import NothingFoundError, UsageError
from effbench.store.values import cell_row


def row(env):
    return {name: getattr(env, name) for name in env.__dataclass_fields__} | {"id": env.id}


HERE = (environment(),)


def half(cells, envs=HERE, title="before", measured=None, **facts):
    """A side where every cell was measured in every environment, or only those of `measured`."""
    cells = {cell.key: cell_row(cell) for cell in cells}
    done = cells if measured is None else {cell.key for cell in measured}
    sides = {(key, env.id): Side("ok") for key in cells if key in done for env in envs}
    return Half(title, None, cells, sides, {env.id: row(env) for env in envs}, **facts)


def names(*halves):
    return {key: key[:6] for half in halves for key in half.cells}


def pairs(old, new, across=()):
    return pairs_of(old, new, names(old, new), across)


EAGER, DEFAULT, GRAPH = (a_cell(mode) for mode in ("eager", "default", "cuda-graph"))


def test_cells_are_matched_by_their_keys():
    old, new = half([EAGER, DEFAULT]), half([DEFAULT, GRAPH], title="after")
    found = {pair.key: pair for pair in pairs(old, new)}
    assert [found[cell.key].why for cell in (EAGER, DEFAULT, GRAPH)] == ["not in the plan", None, None]
    assert found[EAGER.key].after is None
    assert found[GRAPH.key].before is None
    assert found[DEFAULT.key].about == {
        "model": "mlp", "bs": 8, "mode": "default", "dtype": "bfloat16", "phase": "inference", "device": "cuda",
        "hardware": H200,
    }  # fmt: skip


def test_what_is_planned_and_not_measured_says_so():
    both = [EAGER, DEFAULT, GRAPH]
    old = half(both, measured=[EAGER, DEFAULT])
    new = half(both, title="after", measured=[EAGER], state="interrupted")
    found = {pair.key: pair for pair in pairs(old, new)}
    assert found[DEFAULT.key].why == "planned, not measured: the sweep is interrupted"
    assert GRAPH.key not in found  # nothing is known of it on either side
    again = {pair.key: pair for pair in pairs(new, old)}
    assert again[DEFAULT.key].why == "not measured before: that sweep is interrupted"


def test_nothing_shared():
    with pytest.raises(NothingFoundError, match="no cell was measured in both before and after"):
        pairs(half([EAGER]), half([DEFAULT], title="after"))
    both = [EAGER, DEFAULT]
    with pytest.raises(NothingFoundError, match="no cell was measured in both before and after"):
        pairs(half(both, measured=[EAGER]), half(both, title="after", measured=[DEFAULT]))
    with pytest.raises(NothingFoundError, match="after has no trial yet"):
        pairs(half(both), half(both, envs=(), title="after"))


def test_another_dtype_is_named_and_can_be_accepted():
    old, new = half([EAGER]), half([a_cell(dtype="float16")], title="after")
    with pytest.raises(NothingFoundError, match=r"differ in dtype \(bfloat16 against float16\); --across dtype"):
        pairs(old, new)
    (pair,) = pairs(old, new, ("dtype",))
    assert (pair.key, pair.after) == (EAGER.key, Side("ok"))


def test_other_numerics_are_named_and_can_be_accepted():
    old, new = half([EAGER]), half([a_cell(numerics={"tf32": True})], title="after")
    with pytest.raises(NothingFoundError, match=r"differ in numerics \(tf32=False against tf32=True\)"):
        pairs(old, new)
    assert len(pairs(old, new, ("numerics",))) == 1


def test_another_gpu_is_named_and_can_be_accepted():
    other = environment(gpu_name="NVIDIA A100")
    old, new = half([EAGER]), half([EAGER], envs=[other], title="after")
    with pytest.raises(NothingFoundError, match="NVIDIA H200 against NVIDIA A100; --across hardware"):
        pairs(old, new)
    (pair,) = pairs(old, new, ("hardware",))
    assert pair.about["hardware"] == "NVIDIA A100"
    assert differences(old, new)[0] == "gpu_name NVIDIA H200 → NVIDIA A100"


def test_without_a_gpu_the_cpu_is_the_hardware():
    env = environment(gpu_name=None, cpu_name="EPYC")
    assert seat_of(row(env))[0] == "EPYC"


def test_of_several_gpus_the_shared_one_counts():
    other = environment(gpu_name="NVIDIA A100")
    old, new = half([EAGER]), half([EAGER], envs=[other, environment()], title="after")
    (pair,) = pairs(old, new)
    assert pair.about["hardware"] == H200
    narrow = seated(old, new)[1]
    assert [one["gpu_name"] for one in narrow.environments.values()] == [H200]
    assert {key[1] for key in narrow.sides} == {environment().id}


def test_where_both_have_two_gpus_one_must_be_chosen():
    envs = [environment(), environment(gpu_name="NVIDIA A100")]
    with pytest.raises(UsageError, match="NVIDIA H200, NVIDIA A100; choose one with --on"):
        pairs(half([EAGER], envs), half([EAGER], envs, title="after"))


def test_two_interpreters_against_one():
    envs = [environment(flags={"interpreter": f"/venvs/{name}/bin/python"}) for name in "ab"]
    with pytest.raises(UsageError, match="after ran on 2 kinds of hardware or interpreters"):
        pairs(half([EAGER]), half([EAGER], envs, title="after"))


def test_an_update_within_a_sweep_is_one_seat_and_the_last_environment_counts():
    envs = [environment(), environment(torch_version="2.14.0")]
    new = half([EAGER], envs, title="after")
    new.sides[EAGER.key, envs[1].id] = Side("oom")
    (pair,) = pairs(half([EAGER]), new)
    assert pair.after.status == "oom"


def test_differences_are_told_software_first():
    old = half([EAGER], protocol={"name": "standard", "rounds": 5, "budget_s": 5.0})
    env = environment(torch_version="2.14.0", python="3.13.1", flags={"TORCHDYNAMO_DISABLE": "1"})
    new = half([EAGER], [env], "after", protocol={"name": "mine", "rounds": 10, "budget_s": 5.0})
    assert differences(old, new) == [
        "torch_version 2.13.0 → 2.14.0",
        "python 3.12.4 → 3.13.1",
        "TORCHDYNAMO_DISABLE not set → 1",
        "protocol.rounds 5 → 10",
    ]
    assert differences(old, replace(old)) == []


def test_what_was_accepted_is_told_too():
    old, new = half([a_cell(dtype="float16"), EAGER]), half([a_cell(numerics={"tf32": True}), DEFAULT], title="after")
    assert accepted(old, new, ["dtype", "numerics"]) == ["dtype float16 → bfloat16", "numerics.tf32 False → True"]
    assert accepted(old, new, ["hardware"]) == accepted(old, old, ["dtype", "numerics"]) == []


def test_another_machine_with_the_same_hardware_is_told():
    here = {"hostname": "a", "kernel": "6.1", "effbench": "0.1.0", "folder": "/x"}
    old, new = (
        half([EAGER], host=here),
        half([EAGER], host={**here, "hostname": "b", "effbench": "0.2.0", "folder": "/y"}),
    )
    assert differences(old, new) == ["host a → b", "effbench 0.1.0 → 0.2.0"]
    assert differences(half([EAGER]), new) == []  # a sweep that does not say where it ran


def test_cells_that_differ_in_a_parameter_are_refused_by_its_name():
    wide, other = (a_cell(settings={"width": width}) for width in (64, 128))
    with pytest.raises(NothingFoundError, match=r"both before and after: all differ in .*width \(64 against 128\)$"):
        pairs(half([wide]), half([other], title="after"))
    with pytest.raises(NothingFoundError, match=r"after: all differ in mode.width \(64 against 128\)$"):
        pairs(half([wide, EAGER]), half([other], title="after"))
    with pytest.raises(NothingFoundError, match=r"both before and after$"):  # the same cell, measured on one side
        pairs(half([EAGER, DEFAULT], measured=[DEFAULT]), half([EAGER, GRAPH], title="after", measured=[EAGER]))


def test_cells_without_a_parameter():
    params = cell_row(EAGER)["params"]
    assert without(params, ["dtype"]) == without(cell_row(a_cell(dtype="float32"))["params"], ["dtype"])
    assert without(params, ["numerics"]) == without({**params, "numerics": {"tf32": True}}, ["numerics"])
    assert without(params, ["numerics.tf32"]) != without(params, ["dtype"])


def test_a_cell_has_one_partner_only():
    cells = [a_cell(dtype=name) for name in ("float32", "float16")]
    old = {EAGER.key: cell_row(EAGER)}
    new = {cell.key: cell_row(cell) for cell in cells}
    assert partners_of(old, new, ("dtype",)) == {EAGER.key: cells[0].key}
    assert partners_of(new, old, ("dtype",)) == {cells[0].key: EAGER.key}
    assert partners_of(old, new, ()) == {}
