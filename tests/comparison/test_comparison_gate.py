from dataclasses import replace
from types import SimpleNamespace

import pytest
from made_sweeps import H200, a_cell, environment

from effbench.analysis.limits import limits_of
from effbench.commands.check import baseline_of, command_for, failing, unchecked, verdict_line
from effbench.comparison.compare import compare_sweeps, find
from effbench.comparison.verdicts import STATUS, Change, Verdict
from effbench.errors import NothingFoundError, UsageError
from effbench.store import Store

A100 = environment(gpu_name="NVIDIA A100")


@pytest.fixture
def chosen(made):
    def call(sweep, on=None, any_hardware=False):
        with Store.open(made.path) as store:
            return baseline_of(store, "main", store.find_sweep(sweep), on, any_hardware)

    return call


def set_main(made, *sweeps):
    with Store.open(made.path, mode="write") as store:
        for sweep in sweeps:
            store.set_baseline("main", sweep)


def test_the_baseline_of_the_sweeps_own_hardware(made, chosen):
    here, there = made.sweep([a_cell()]), made.sweep([a_cell()], env=A100)
    set_main(made, here, there)
    assert chosen(made.sweep([a_cell()])).sweep_id == here
    assert chosen(made.sweep([a_cell()], env=A100)).sweep_id == there


def test_none_on_this_hardware(made, chosen):
    set_main(made, made.sweep([a_cell()]))
    sweep = made.sweep([a_cell()], env=A100)
    with pytest.raises(NothingFoundError, match=r"is set on NVIDIA H200, and sweep .* ran on NVIDIA A100; set one"):
        chosen(sweep)
    assert chosen(sweep, any_hardware=True).hardware == H200


def test_a_sweep_on_several(made, chosen):
    both = made.sweep([a_cell()])
    made.sweep([a_cell()], env=A100, into=both)
    set_main(made, both)
    sweep = made.sweep([a_cell()])
    made.sweep([a_cell()], env=A100, into=sweep)
    made.sweep([a_cell()], env=environment(gpu_name="NVIDIA L4"), into=sweep)
    with pytest.raises(UsageError, match="share NVIDIA A100, NVIDIA H200: choose one with --on"):
        chosen(sweep)
    assert chosen(sweep, on="a100").hardware == "NVIDIA A100"
    with pytest.raises(NothingFoundError, match="not both on 'L4'; set one there"):
        chosen(sweep, on="L4")


@pytest.mark.parametrize("on", ["NVIDIA L4", "nvidia l4", "L4"])
def test_a_name_in_full_goes_before_a_part(made, chosen, on):
    small, large = (environment(gpu_name=f"NVIDIA {name}") for name in ("L4", "L40S"))
    here, there = made.sweep([a_cell()], env=small), made.sweep([a_cell()], env=large)
    set_main(made, there)
    sweep = made.sweep([a_cell()], env=small)
    made.sweep([a_cell()], env=large, into=sweep)
    with pytest.raises(NothingFoundError, match=r"is set on NVIDIA L40S, and sweep .* not both on"):
        chosen(sweep, on=on)
    set_main(made, here)
    assert chosen(sweep, on=on).sweep_id == here
    assert chosen(sweep, on="l40").sweep_id == there
    set_main(made, made.sweep([a_cell()]))
    with pytest.raises(NothingFoundError, match="not both on 'H200'"):
        chosen(sweep, on="H200")


def test_what_a_check_did_not_look_at(made):
    old, new = (environment(flags={"interpreter": f"/venvs/{name}/bin/python"}) for name in ("old", "new"))
    before, after = made.sweep([a_cell()], env=old), made.sweep([a_cell()], env=old)
    made.sweep([a_cell()], env=new, into=after)
    made.sweep([a_cell()], env=A100, into=after)
    with Store.open(made.path) as store:
        infos = [store.find_sweep(one) for one in (before, after)]
        compared = compare_sweeps(store, *infos, limits_of({}))
        assert set(unchecked(store, infos[1], compared)) == {"NVIDIA H200 /venvs/new/bin/python", "NVIDIA A100"}
        again = compare_sweeps(store, *reversed(infos), limits_of({}))
        assert unchecked(store, infos[0], again) == []


def test_on_may_name_an_interpreter(made, chosen):
    set_main(made, made.sweep([a_cell()]))
    assert chosen(made.sweep([a_cell()]), on="/venvs/new/").hardware == H200


def test_itself_gone_or_empty(made, chosen):
    sweep = made.sweep([a_cell()])
    set_main(made, sweep)
    with pytest.raises(UsageError, match="is the baseline 'main' itself"):
        chosen(sweep)
    with pytest.raises(NothingFoundError, match="has no trial yet: there is nothing to check"):
        chosen(made.sweep({a_cell(): None}))
    last = made.sweep([a_cell()])
    made.delete_sweep(sweep)
    with Store.open(made.path) as store, pytest.raises(NothingFoundError, match=f"is sweep {sweep}, which is gone"):
        find(store, "main")
    with pytest.raises(NothingFoundError, match=f"is sweep {sweep}, which is gone"):
        chosen(last)


def change(verdict, **more):
    return Change("0123456789abcdef", "mlp", more.pop("metric", "latency_ms"), verdict, **more)


def test_what_fails_a_check():
    rows = [change(verdict) for verdict in Verdict]
    compared = SimpleNamespace(changes=rows)
    assert {one.verdict for one in failing(compared)} == {"slower", "broken", "missing"}
    assert failing(SimpleNamespace(changes=[change(Verdict.SLOWER, ignored=True)])) == []


def test_the_line_that_says_so():
    failed = [change(Verdict.BROKEN, metric=STATUS), change(Verdict.SLOWER), change(Verdict.SLOWER)]
    known = {"before": 1.0, "after": 1.0}

    def line(changes, failed=(), unchecked=()):
        return verdict_line(SimpleNamespace(changes=changes, unchecked=list(unchecked)), failed, "main")

    assert line(failed, failed) == "check failed: 1 broken, 2 slower against main"
    assert line([change(Verdict.SAME, **known)]) == "check passed against main"
    hazy = [change(Verdict.SAME, **known), change(Verdict.AMBIGUOUS, **known)]
    assert line(hazy) == "check passed against main; 1 of 2 rows could not be judged"
    ignored = [change(verdict, ignored=True, **known) for verdict in (Verdict.BROKEN, Verdict.SLOWER, Verdict.SLOWER)]
    faster = change(Verdict.FASTER, ignored=True, **known)
    assert line([*ignored, faster]) == "check passed against main; ignored: 1 broken, 2 slower"
    assert line(hazy[:1], unchecked=["NVIDIA L4"]) == "check passed against main; NVIDIA L4 not checked"
    nothing = change(Verdict.SAME, metric=STATUS)
    assert line([nothing]) == "check passed against main; the only cell has no figures to compare"
    others = [*hazy[:1], replace(nothing, key="f"), replace(hazy[1], key="a", before=None)]
    said = "check passed against main; 1 of 3 rows could not be judged; 1 of 3 cells have figures to compare"
    assert line(others) == said


def test_the_command_that_shows_a_row():
    row, sweep = change(Verdict.SLOWER), SimpleNamespace(id="20261121-143052-7f3a")
    said = "effbench compare 20261120-000000-aaaa 20261121-143052-7f3a --cell 0123456789ab --all"
    assert command_for(row, "20261120-000000-aaaa", sweep, "results/effbench.db") == said
    more = command_for(row, "20261120-000000-aaaa", sweep, "a b.db", ["--on", "NVIDIA H200"])
    assert more == f"{said} --on 'NVIDIA H200' --db 'a b.db'"
