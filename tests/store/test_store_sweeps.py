"""Sweeps: planned, extended, found, finished."""

import datetime as dt
import re

import pytest
from made_sweeps import DEFAULT, EAGER, GRAPH, sql
from whole_sweeps import set_state

from effbench.core.errors import NothingFoundError, UsageError
from effbench.store import liveness


def test_a_sweep_is_kept_as_it_was_given(store, cell, begin):
    before = dt.datetime.now(dt.UTC)
    facts = {
        "name": "nightly",
        "label": "v1",
        "command": ["effbench", "-m", "bs=1"],
        "overrides": ["bs=1"],
        "seed": 2**40,
        "git_revision": "abc",
        "rounds": 5,
        "baseline_mode": "default",
        "host": {"a": [1]},
    }
    sweep = begin(
        store,
        [cell()],
        protocol={"limit": float("inf")},
        **facts,
    )
    assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{4}", sweep)
    found = store.find_sweep(sweep)
    assert vars(found).items() >= facts.items()
    assert found.protocol == {"limit": None}
    assert found.state == "running"
    assert before <= found.started_at <= dt.datetime.now(dt.UTC)


def test_trials_and_results_are_counted(made, opened):
    cells = {EAGER: {}, DEFAULT: {"status": "oom"}, GRAPH: None}
    found = opened.find_sweep(made.sweep(cells, rounds=2))
    assert (found.cells, found.trials) == (3, 4)
    assert found.statuses == {"ok": 1, "oom": 1}


def test_a_database_without_sweeps(store):
    assert store.sweeps() == []
    assert list(store.results()) == []


def test_a_sweep_ends_and_is_resumed(store, cell, begin):
    sweep = begin(store, [cell()], host={"a": 1})
    store.finish_sweep(sweep, "completed")
    ended = store.find_sweep(sweep)
    assert ended.state == "completed"
    assert ended.finished_at >= ended.started_at
    store.resume_sweep(sweep, rounds=7)
    resumed = store.find_sweep(sweep)
    assert (resumed.state, resumed.finished_at, resumed.rounds) == ("running", None, 7)
    assert resumed.host == {"a": 1, "process": liveness.identity()}


def test_the_plan_keeps_cells_their_order_and_overrides(store, cell, begin):
    first, second, new = (cell(bs=bs) for bs in (8, 1, 99))
    sweep = begin(store, [first, second, first], cell_overrides={second.key: ["bs=1"]})
    assert store.planned(sweep) == [first, second]
    store.extend_sweep(sweep, [new, second], {new.key: ["bs=99"]})
    store.extend_sweep(sweep, [new])
    assert store.planned(sweep) == [first, second, new]
    overrides = {first.key: None, second.key: ["bs=1"], new.key: ["bs=99"]}
    assert store.cell_overrides(sweep) == overrides


def test_a_sweep_is_found_by_what_people_type(store, cell, begin):
    first = begin(store, [cell()], name="nightly")
    second = begin(store, [cell()], name="nightly")
    third = begin(store, [cell()], label="v1")
    expected = {
        "last": third,
        "nightly": second,
        "v1": third,
        first: first,
        first[:-1]: first,
    }
    assert {ref: store.find_sweep(ref).id for ref in expected} == expected


def test_a_start_in_the_future_is_never_the_newest(store, path, cell, begin):
    own, skewed, future = (begin(store, [cell()]) for _ in range(3))
    now = dt.datetime.now(dt.UTC)
    set_state(path, skewed, started_at=now + dt.timedelta(minutes=1))
    set_state(path, future, started_at=now + dt.timedelta(minutes=60))
    assert store.find_sweep("last").id == skewed, "clocks differ a little"
    assert [sweep.id for sweep in store.sweeps()] == [skewed, own, future]


@pytest.mark.parametrize(
    ("ref", "kind", "said"),
    [
        ("zzz", NothingFoundError, "choose from .* more"),
        ("20", UsageError, "'20' means 6 sweeps"),
        ("v1", UsageError, "'v1' means 6 sweeps"),
        ("", NothingFoundError, "no sweep ''"),
    ],
)
def test_what_is_not_found_names_what_there_is(store, cell, begin, ref, kind, said):
    with pytest.raises(NothingFoundError, match="no sweep yet"):
        store.find_sweep("last")
    for number in range(6):
        begin(
            store,
            [cell()],
            name=f"nightly-{number}",
            label="v1",
        )
    with pytest.raises(kind, match=said):
        store.find_sweep(ref)


def test_environments(store, environment):
    first = store.add_environment(environment(flags={"a": "1"}), {"pip": ["x"]})
    assert store.add_environment(environment(flags={"a": "1"}), {"pip": ["y"]}) == first
    second = store.add_environment(environment(gpu_name="NVIDIA H200"), {})
    assert {row.id for row in store.environments([second, first, "unknown"])} == {first, second}
    (row,) = store.environments([first])
    assert (row.flags, row.details) == ({"a": "1"}, {"pip": ["x"]})
    assert store.environments([]) == []


def test_the_newest_verdict_of_a_claim_on_each_machine(store, path, environment):
    """By time, because an import adds older ones later."""
    for gpu, torch, experiment, verdict in (
        ("H200", "2.14.0", "modes", "confirmed"),
        ("A100", "2.13.0", "modes", "undecided"),
        ("H200", "2.13.0", "modes", "refuted"),
        ("H200", "2.14.0", "mine", "refuted"),
    ):
        machine = store.add_environment(environment(gpu_name=gpu, torch_version=torch), {})
        judged = {
            "claim": "P1",
            "experiment": experiment,
            "verdict": verdict,
            "measured": {},
        }
        store.add_verdicts(machine, [judged])
    sql(path, "UPDATE claim_verdict SET judged_at = '2020-01-01 00:00:00.000000' WHERE id = 3")
    rows = store.verdicts()
    assert [(row["experiment"], row["gpu_name"], row["verdict"]) for row in rows] == [
        ("modes", "H200", "confirmed"),
        ("modes", "A100", "undecided"),
        ("mine", "H200", "refuted"),
    ]
    assert rows[0]["torch_version"] == "2.14.0"
