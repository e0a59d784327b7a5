from dataclasses import replace

import pytest
from made_sweeps import a_cell, environment

from effbench.commands.check import baseline_of, verdict_line
from effbench.comparison.compare import Compared
from effbench.comparison.limits import STATUS, Limits
from effbench.comparison.verdicts import Change, Verdict
from effbench.errors import NothingFoundError, UsageError
from effbench.store import Store


def chosen(made, sweep, on=None, any_hardware=False):
    with Store.open(made.path) as store:
        return baseline_of(store, "main", store.find_sweep(sweep), on, any_hardware)


def set_main(made, sweep):
    with Store.open(made.path, mode="write") as store:
        store.set_baseline("main", sweep)


def test_a_sweep_on_several(made):
    def swept(*names):
        sweep = None
        for name in names:
            sweep = made.sweep([a_cell()], env=environment(gpu_name=f"NVIDIA {name}"), into=sweep)
        return sweep

    both, sweep = swept("L40S", "A100"), swept("L40S", "A100", "L4")
    set_main(made, both)
    with pytest.raises(UsageError, match="is set on NVIDIA A100, NVIDIA L40S; choose one with --on"):
        chosen(made, sweep)
    assert chosen(made, sweep, on="a100").hardware == "NVIDIA A100"
    # a name in full goes before a part
    for on in ("NVIDIA L4", "nvidia l4", "L4"):
        with pytest.raises(NothingFoundError, match="not on NVIDIA L4; "):
            chosen(made, sweep, on=on)
    here = swept("L4")
    set_main(made, here)
    assert [chosen(made, sweep, on=on).sweep_id for on in ("NVIDIA L4", "l4", "l40")] == [here, here, both]


def test_other_hardware_only_if_asked_for(made):
    set_main(made, made.sweep([a_cell()], env=environment(gpu_name="NVIDIA A100")))
    sweep = made.sweep([a_cell()])
    with pytest.raises(NothingFoundError, match="is set on NVIDIA A100, not on NVIDIA H200"):
        chosen(made, sweep)
    assert chosen(made, sweep, any_hardware=True).hardware == "NVIDIA A100"


def test_what_was_not_judged_is_said():
    def line(*changes):
        return verdict_line(Compared(None, None, "H", [], list(changes), [], Limits()), "main")

    same = Change("0123456789abcdef", "mlp", "latency_ms", Verdict.SAME, before=1.0, after=1.0)
    hazy, status = replace(same, verdict=Verdict.AMBIGUOUS), replace(same, metric=STATUS)
    assert "1 of 2 rows could not be judged" in line(same, hazy)
    assert line(replace(same, verdict=Verdict.BROKEN, ignored=True)).endswith("ignored: 1 broken")
    assert "1 of 2 cells have figures in both sweeps" in line(same, status, replace(hazy, key="a", before=None))
