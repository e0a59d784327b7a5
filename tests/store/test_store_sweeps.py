"""Sweeps: planned, extended, found, finished."""

import datetime as dt
import re

import pytest
import sqlalchemy as sa
from whole_sweeps import set_state

from effbench.cell import Status, Trial
from effbench.errors import NothingFoundError, UsageError
from effbench.report.history_table import position_of
from effbench.store.schema import CALIBRATION, VERDICT

FUTURE = dt.datetime(2150, 1, 1, tzinfo=dt.UTC)


def test_a_sweep_is_kept_as_it_was_given(store, cell, environment, begin):
    before = dt.datetime.now(dt.UTC)
    facts = {
        "name": "nightly",
        "label": "v1",
        "command": ["effbench", "-m", "bs=1"],
        "overrides": ["bs=1"],
    }
    facts |= {
        "seed": 2**40,
        "git_revision": "abc",
        "rounds": 5,
        "baseline_mode": "default",
        "host": {"a": [1]},
    }
    cells = [cell(bs=bs) for bs in range(1, 6)]
    sweep = begin(store, cells, protocol={"name": "standard", "limit": float("inf")}, **facts)
    assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{4}", sweep)
    found = store.find_sweep(sweep)
    assert {name: getattr(found, name) for name in facts} == facts
    assert (found.id, found.state, found.finished_at) == (sweep, "running", None)
    assert found.protocol == {"name": "standard", "limit": None}
    assert before <= found.started_at <= dt.datetime.now(dt.UTC)
    assert (found.cells, found.trials, found.statuses) == (5, 0, {})
    here = store.add_environment(environment(), {})
    for one, status in zip(cells, ("ok", "ok", "oom", "error"), strict=False):
        store.record(sweep, here, Trial(one.key, 0, Status(status)))
    store.record(sweep, here, Trial(cells[0].key, 1, Status.OK))
    found = store.find_sweep(sweep)
    assert (found.cells, found.trials, found.statuses) == (5, 5, {"ok": 2, "oom": 1, "error": 1})
    for state in ("completed", "interrupted", "failed", "running"):
        store.finish_sweep(sweep, state)
        found = store.find_sweep(sweep)
        assert (found.state, found.finished_at is None) == (state, state == "running")


def test_the_plan_keeps_cells_their_order_and_overrides(store, cell, begin):
    plan = [
        cell(mode, bs=bs, model=model)
        for bs in (8, 1)
        for mode in ("graph", "eager")
        for model in ("b", "a")
    ]
    overrides = {plan[1].key: ["bs=8", "mode=graph"]}
    sweep = begin(store, [*plan, plan[0]], cell_overrides=overrides)
    assert store.planned(sweep) == plan
    assert [one.key for one in store.planned(sweep)] == [one.key for one in plan]
    assert store.cell_overrides(sweep) == {one.key: overrides.get(one.key) for one in plan}
    store.extend_sweep(sweep, [cell(bs=99), plan[2]], {cell(bs=99).key: ["bs=99"]})
    store.extend_sweep(sweep, [cell(bs=99)])
    assert store.planned(sweep) == [*plan, cell(bs=99)]
    assert store.cell_overrides(sweep)[cell(bs=99).key] == ["bs=99"]


def test_a_sweep_is_found_by_what_people_type(store, cell, begin):
    first = begin(store, [cell()], name="nightly")
    second = begin(store, [cell()], name="nightly")
    third = begin(store, [cell()])
    assert [sweep.id for sweep in store.sweeps()] == [third, second, first]
    assert store.find_sweep("last").id == third
    assert store.find_sweep("nightly").id == second
    assert store.find_sweep(first).id == first
    unique = next(
        first[:n] for n in range(1, 99) if not any(i.startswith(first[:n]) for i in (second, third))
    )
    assert store.find_sweep(unique).id == first


def test_a_start_in_the_future_is_never_the_newest(store, path, cell, begin):
    own, skewed, future = (begin(store, [cell()], name="nightly") for _ in range(3))
    for sweep_id, minutes in ((skewed, 1), (future, 60)):
        set_state(
            path, sweep_id, started_at=dt.datetime.now(dt.UTC) + dt.timedelta(minutes=minutes)
        )
    assert store.find_sweep("last").id == skewed, "clocks differ a little"
    assert store.find_sweep("nightly").id == skewed
    assert [sweep.id for sweep in store.sweeps()] == [skewed, own, future]
    assert {(sweep.cells, sweep.trials) for sweep in store.sweeps(brief=True)} == {(1, 0)}
    assert store.find_sweep(future).id == future
    oldest_first = (store.find_sweep(future), store.find_sweep(own))  # as the history orders them
    rows = [{"id": sweep.id, "started_at": sweep.started_at} for sweep in oldest_first]
    assert position_of("last", rows) == 1
    for sweep_id, hours in ((own, 4), (skewed, 3)):  # the clock was turned back after they began
        set_state(path, sweep_id, started_at=dt.datetime.now(dt.UTC) + dt.timedelta(hours=hours))
    assert store.find_sweep("last").id == own


def test_what_is_not_found_names_what_there_is(store, cell, begin):
    with pytest.raises(NothingFoundError, match="no sweep yet"):
        store.find_sweep("last")
    ids = [begin(store, [cell()], name=f"nightly-{n}") for n in range(6)]
    for ref, kind, said in (
        ("zzz", NothingFoundError, "choose from .* …"),
        (ids[0][:4], UsageError, "6 sweep ids start with"),
        ("", NothingFoundError, "no sweep ''"),
    ):
        with pytest.raises(kind, match=said):
            store.find_sweep(ref)
    for change in (
        lambda: store.extend_sweep("no", [cell()]),
        lambda: store.finish_sweep("no", "completed"),
        lambda: store.rebuild_results("no"),
        lambda: store.record("no", "e", Trial(cell().key, 0, Status.OK)),
    ):
        with pytest.raises(NothingFoundError, match="no sweep 'no'"):
            change()


def test_environments(store, environment):
    first = store.add_environment(environment(flags={"a": "1"}), {"pip": ["x"]})
    assert store.add_environment(environment(flags={"a": "1"}), {"pip": ["y"]}) == first
    second = store.add_environment(environment(gpu_name="NVIDIA H200", gpu_memory_bytes=2**37), {})
    assert first == environment(flags={"a": "1"}).id
    rows = store.environments([second, first, "unknown"])
    assert {row["id"] for row in rows} == {first, second}
    row = store.environments([first])[0]
    assert (row["flags"], row["details"], row["torch_version"]) == (
        {"a": "1"},
        {"pip": ["x"]},
        "2.13.0",
    )
    assert len(store.environments()) == 2
    assert store.environments([]) == []


def change(store, table, which, **values):
    with store.writing() as connection:
        connection.execute(sa.update(table).where(which).values(**values))


def test_the_newest_of_each_counts(store, environment):
    here = store.add_environment(environment(), {})
    assert store.calibration(here) is None
    for copy in (1.0, 4e12):
        store.add_calibration(here, "GPU-1", ceilings={"copy_bytes_per_s": copy})
    store.add_calibration(here, None, noise={"trials": 5})
    change(store, CALIBRATION, CALIBRATION.c.id == 1, measured_at=FUTURE)
    found = store.calibration(here)
    assert found.pop("measured_at").tzinfo is not None
    assert found == {
        "ceilings": {"copy_bytes_per_s": 4e12},
        "noise": {"trials": 5},
        "gpu_uuid": None,
    }
    assert store.calibration(store.add_environment(environment(torch_version="2.11.0"), {})) is None


def test_the_newest_verdict_of_a_claim_on_each_machine(store, environment):
    """Of each experiment; every judgement is kept."""
    for gpu, torch, claim, experiment, verdict in (
        ("H200", "2.13.0", "P1", "modes", "refuted"),
        ("A100", "2.13.0", "P1", "modes", "undecided"),
        ("H200", "2.14.0", "P1", "modes", "confirmed"),
        ("H200", "2.14.0", "P1", "mine", "refuted"),
        (None, "2.13.0", "P1", "modes", "not measurable here"),
        ("", "2.13.0", "P1", "modes", "refuted"),
    ):
        judged = {
            "claim": claim,
            "experiment": experiment,
            "verdict": verdict,
            "reason": "holds",
            "sweep_id": None,
        }
        cpu = "EPYC" if gpu == "" else "Xeon"
        here = store.add_environment(
            environment(gpu_name=gpu or None, cpu_name=cpu, torch_version=torch), {}
        )
        store.add_verdicts(here, [{**judged, "measured": {"value": 1.5}}])
    change(store, VERDICT, VERDICT.c.id == 1, judged_at=FUTURE)
    rows = store.verdicts()
    assert [(row["claim"], row["experiment"], row["gpu_name"], row["verdict"]) for row in rows] == [
        ("P1", "modes", "A100", "undecided"),
        ("P1", "modes", "H200", "confirmed"),
        ("P1", "mine", "H200", "refuted"),
        ("P1", "modes", None, "not measurable here"),
        ("P1", "modes", None, "refuted"),
    ]
    assert (rows[0]["measured"], rows[1]["torch_version"], rows[3]["cpu_name"]) == (
        {"value": 1.5},
        "2.14.0",
        "Xeon",
    )
    assert rows[0]["judged_at"].tzinfo is not None
