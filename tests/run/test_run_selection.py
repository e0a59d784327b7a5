"""Which cells of a matrix are planned: rules that exclude some, and shards."""

import dataclasses
import random
from collections import Counter
from itertools import chain, product

import pytest
import sqlalchemy as sa
from made_sweeps import a_cell, environment
from whole_sweeps import info_of, outcomes, results_of

from effbench.config.overrides import expand, read
from effbench.core.cell import Status, Trial
from effbench.core.errors import ConfigError, UsageError
from effbench.run.selection import excluded, shards
from effbench.store import Store, liveness
from effbench.store.schema import SWEEP
from effbench.store.sweeps import Shard, processes

CELLS = [
    a_cell(mode, model, bs, settings={"fullgraph": True} if mode == "default" else {})
    for model in ("mlp", "gpt2")
    for bs in (1, 64, 512)
    for mode in ("eager", "default", "cuda-graph")
]


@pytest.mark.parametrize(
    ("rule", "fits"),
    [
        (
            {"mode": "cuda-graph", "bs": ">64"},
            lambda cell: cell.mode_name == "cuda-graph" and cell.bs > 64,
        ),
        ({"bs": [1, ">=512"]}, lambda cell: cell.bs in (1, 512)),
        ({"model": "g*", "bs": "64"}, lambda cell: cell.model_name == "gpt2" and cell.bs == 64),
        ({"mode.fullgraph": True}, lambda cell: cell.mode_name == "default"),
        ({"numerics.tf32": "false", "bs": 1}, lambda cell: cell.bs == 1),
    ],
    ids=range(5),
)
def test_a_rule_matches_cells_that_fit_all_its_keys(rule, fits):
    assert excluded(CELLS, [rule]) == (set(filter(fits, CELLS)), [])


def test_a_rule_that_matches_no_cell_is_named():
    assert excluded(CELLS, [{"model": ">3"}]) == (set(), ["{model: >3}"])


def test_a_rule_reads_numbers_of_variables_and_settings_of_networks():
    cells = [a_cell(env={"OMP_NUM_THREADS": number}) for number in ("2", "16", "all")]
    cells += [
        dataclasses.replace(
            cells[0], model={"name": "a", "module": {"arch": "a", "image_size": 32}}
        )
    ]
    assert excluded(cells, [{"env.OMP_NUM_THREADS": ">2"}]) == ({cells[1]}, [])
    assert excluded(cells, [{"model.arch": "a", "model.image_size": "<64"}]) == ({cells[3]}, [])


@pytest.mark.parametrize(
    ("rules", "error"),
    [
        ([{"moed": "eager"}], "unknown key 'moed'; did you mean mode"),
        ([{}], "must be a list of rules"),
        ([{"bs": "<inf"}], "comparison with a number"),
        ([{"mode": {"name": "eager"}}], "mode: expected a value"),
    ],
)
def test_rules_that_are_refused(rules, error):
    with pytest.raises(ConfigError, match=error):
        excluded(CELLS, rules)


def random_matrix(draw):
    """Return some cells of a matrix, and its number of modes."""
    modes = ["eager", *(f"m{n}" for n in range(draw.randint(1, 12)))]
    points = product(range(1, draw.randint(2, 60)), modes)
    cells = [a_cell(mode, bs=bs) for bs, mode in points if draw.random() < 0.8]
    return cells, len(modes)


@pytest.mark.parametrize("seed", range(8))
def test_shards_are_complete_balanced_and_keep_together_what_is_compared(seed):
    draw = random.Random(seed)
    cells, modes = random_matrix(draw)
    parts = shards(cells, draw.randint(1, 12))
    assert Counter(chain(*parts)) == Counter(cells)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= modes
    parts_of = Counter(bs for part in parts for bs in {cell.bs for cell in part})
    numbers = Counter(cell.bs for cell in cells)
    most = -(-len(cells) // len(parts))
    assert all(number == 1 or numbers[bs] > most for bs, number in parts_of.items())


def shard_of(path, name, number=3, label="v1"):
    """A database with one shard of CELLS; gives the sweep's id."""
    facts = {
        "name": "nightly",
        "label": label,
        "command": [],
        "overrides": [],
        "protocol": {"rounds": 1},
        "rounds": 1,
        "baseline_mode": "eager",
        "seed": 0,
        "git_revision": "abc",
        "host": {"hostname": f"node{name}"},
    }
    part = shards(CELLS, number)[int(name.split("/")[0]) - 1]
    with Store.open(path, mode="write") as store:
        shard = Shard(name, ["nightly", label, number], CELLS)
        sweep = store.begin_sweep(plan=part, shard=shard, **facts)
        where = store.add_environment(environment(), {})
        for cell in part:
            latency_ms = cell.bs * (1.0 + len(cell.mode_name))
            store.add_trial(sweep, where, Trial(cell.key, 0, Status.OK, latency_ms=latency_ms))
        store.finish_sweep(sweep, "interrupted" if name.startswith("2") else "completed", name)
    return sweep


def results(path):
    return [(row["model"], row["bs"], row["mode"], row["speedup"]) for row in results_of(path)]


def test_shards_merge_into_the_sweep_that_one_run_would_have_given(tmp_path):
    merged, whole = tmp_path / "merged.db", tmp_path / "whole.db"
    assert len({shard_of(tmp_path / f"{n}.db", f"{n}/3") for n in (1, 2, 3)}) == 1
    assert outcomes(tmp_path / "3.db", merged) == ["imported"]
    assert info_of(merged).state == "partial (1 of 3 shards)"
    for number, outcome in ((1, "completed"), (2, "completed"), (1, "already there")):
        assert outcomes(tmp_path / f"{number}.db", merged) == [outcome]
    shard_of(whole, "1/1", 1)
    assert results(merged) == results(whole)
    assert Store.check(merged) == []
    info = info_of(merged)
    assert info.state == "interrupted", "the second shard was"
    with Store.open(merged) as store:
        assert store.planned(info.id) == CELLS


def test_shards_of_different_runs_stay_apart(tmp_path):
    ids = {shard_of(tmp_path / "x.db", "1/3"), shard_of(tmp_path / "x.db", "3/3")}
    assert len(ids) == 1, "one database may hold several shards"
    with pytest.raises(UsageError, match=r"has shard 1/3 .* resume=\S+ shard=1/3"):
        shard_of(tmp_path / "x.db", "1/3")
    assert shard_of(tmp_path / "x.db", "1/3", label="v2") not in ids
    (both,) = ids
    with pytest.raises(
        UsageError, match="has several shards; resume one of them: add shard=1/3 or shard=3/3"
    ):
        expand(read([f"resume={both}", f"db={tmp_path / 'x.db'}"]))


def test_each_shard_has_a_process_of_its_own(tmp_path):
    sweep = shard_of(tmp_path / "x.db", "1/3")
    ended = {**liveness.identity(), "boot": "before"}
    with Store.open(tmp_path / "x.db", mode="write") as store:
        store.finish_sweep(sweep, "running", "1/3")
        assert shard_of(tmp_path / "x.db", "3/3") == sweep
        host = store.find_sweep(sweep).host
        assert processes(host) == [liveness.identity()]
        assert processes(host, "3/3") == []
        for process, state in ((liveness.identity(), "running"), (ended, "interrupted")):
            changed = host | {"process": ended, "processes": {"1/3": process}}
            with store.writing() as connection:
                connection.execute(sa.update(SWEEP).values(host=changed))
            assert store.find_sweep(sweep).state == state
