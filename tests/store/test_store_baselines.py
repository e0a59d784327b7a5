import pytest
from made_sweeps import H200, a_cell, environment

from effbench.errors import NothingFoundError, UsageError

A100 = environment(gpu_name="NVIDIA A100")


def test_moved_and_of_a_sweep_that_was_deleted_by_hand(made, opened):
    first, second = made.sweep([a_cell()], label="v1"), made.sweep([a_cell()], name="nightly")
    assert opened.set_baseline("main", first, "good") == [H200]
    (one,) = opened.baselines()
    assert (one.hardware, one.sweep_id, one.note, one.label) == (H200, first, "good", "v1")
    assert opened.set_baseline("main", second) == [H200]
    (one,) = opened.baselines("main")
    assert (one.sweep_id, one.sweep_name, one.note) == (second, "nightly", None)
    assert one.set_at >= one.started_at
    made.delete_sweep(second)
    (one,) = opened.baselines("main")
    assert (one.sweep_id, one.started_at) == (second, None)
    assert [gone.sweep_id for gone in opened.remove_baseline("main")] == [second]


def test_a_name_holds_once_for_each_hardware(made, opened):
    here, there, both = made.sweep([a_cell()]), made.sweep([a_cell()], env=A100), made.sweep([a_cell()])
    opened.set_baseline("main", here)
    opened.set_baseline("main", there)
    assert {one.hardware: one.sweep_id for one in opened.baselines("main")} == {H200: here, "NVIDIA A100": there}
    assert [one.sweep_id for one in opened.remove_baseline("main", "NVIDIA A100")] == [there]
    assert [one.hardware for one in opened.baselines()] == [H200]
    with pytest.raises(NothingFoundError, match="'main' is set on NVIDIA H200, not on NVIDIA A100"):
        opened.remove_baseline("main", "NVIDIA A100")
    made.sweep([a_cell()], env=A100, into=both)
    assert opened.set_baseline("main", both) == ["NVIDIA A100", H200]
    cpu = made.sweep([a_cell(device="cpu")], env=environment(gpu_name=None, cpu_name="EPYC 9654"))
    assert opened.set_baseline("main", cpu) == ["EPYC 9654"], "without a GPU"


def test_names(made, opened):
    with pytest.raises(NothingFoundError, match="has no trial yet: it cannot be a baseline"):
        opened.set_baseline("main", made.sweep({a_cell(): None}, state="interrupted"))
    sweep = made.sweep([a_cell()])
    for name in ("", "a b", "-x", "a;b", "../x", "last", "20261121-143052-7f3a", "x\n"):
        with pytest.raises(UsageError, match="cannot name a baseline"):
            opened.set_baseline(name, sweep)
    assert opened.baselines() == []
    for name in ("main", "v1.2", "release/2.13", "torch@2.13+cu128", "nightly_h200"):
        opened.set_baseline(name, sweep)
        assert opened.baselines(name)[0].name == name
    with pytest.raises(NothingFoundError, match="choose from main, nightly"):
        opened.remove_baseline("zzz")
