"""What a trial does with a stream: inputs, what is checked in which order, and whole sweeps on the
CPU."""

import itertools
from collections import Counter

import pytest
import torch
from whole_sweeps import results_of, trials_of

from effbench.core.cell import Cell
from effbench.models.inputs import Batch
from effbench.models.spec import parse_inputs
from effbench.workloads.stream import StreamCalls, slice_sets

SPECS = parse_inputs({"x": {"shape": [3]}, "scale": {"shape": [3], "batch_dim": None}})
IMAGES = parse_inputs({"x": {"shape": [3, 4, 5]}})
SEQUENCES = parse_inputs(
    {
        "mask": {"shape": [1, 6], "batch_dim": None},
        "ids": {"shape": [6, 2]},
        "features": {"shape": [9]},
        "positions": {"shape": [6], "keyword": True},
    }
)


def cell_of(sizes, bs=None, dim=None, **numerics):
    stream = {"name": "s", "sizes": sizes} | ({"dim": dim} if dim else {})
    bs = bs or max(sizes)
    eager = {"name": "eager"}
    return Cell(
        {"name": "m"},
        bs,
        eager,
        "float32",
        "inference",
        "cpu",
        numerics,
        stream=stream,
    )


def tensors(given):
    args, kwargs = given
    return [*args, *kwargs.values()]


def test_inputs_are_slices_of_shared_tensors():
    timed = slice_sets(cell_of([2, 5, 1, 2, 5, 1, 4]), SPECS, 3).timed
    firsts = [args[0] for args, _ in timed]
    assert [len(x) for x in firsts] == [2, 5, 1, 2, 5, 1, 4]
    assert len({x.untyped_storage().data_ptr() for x in firsts}) == 3
    assert timed[0] is timed[3], "the same set and size is one entry"
    assert all(x.is_contiguous() for x in firsts)
    assert {args[1].shape for args, _ in timed} == {(3,)}


def test_lengths_vary_the_inputs_that_have_them():
    cell = cell_of([2, 6, 2], bs=4, dim=1)
    assert StreamCalls.batch(cell, SEQUENCES) == Batch((4,), (None, 1, None, 1))
    sets = slice_sets(cell, SEQUENCES, 2)
    shapes = [[tuple(value.shape) for value in tensors(given)] for given in sets.timed[:2]]
    assert shapes == [
        [(1, 6), (4, 2, 2), (4, 9), (4, 2)],
        [(1, 6), (4, 6, 2), (4, 9), (4, 6)],
    ]
    assert [args[1].shape[1] for args, _ in sets.checked] == [6, 2]
    assert all(args[1].is_contiguous() for args, _ in sets.timed)


@pytest.mark.parametrize(
    ("sizes", "sets", "checked"),
    [([2, 5, 1, 2, 5, 4, 4], 3, [5, 4, 2, 1]), ([4, 3, 2, 1] * 6, 2, [4, 3, 2, 1])],
)
def test_every_size_is_checked_once_from_the_largest_down(sizes, sets, checked):
    firsts = [args[0] for args, _ in slice_sets(cell_of(sizes), SPECS, sets).checked]
    assert [len(x) for x in firsts] == checked
    for larger, smaller in itertools.pairwise(firsts):
        assert not torch.equal(larger[: len(smaller)], smaller), "neighbours have other values"


@pytest.fixture(scope="module")
def batch_sizes(workshop):
    """The database of a stream of batch sizes, with a capture that runs again in the place of CUDA
    graphs."""
    done = workshop.sweep(
        "--config-dir=conf",
        "model=gpt2",
        "model.module.layers=1",
        "model.module.width=8",
        "model.module.heads=1",
        "model.module.vocab=20",
        "model.module.max_seq=8",
        "model.module.context=4",
        "mode=eager,again,bucketed-graph",
        "stream=uniform",
        "stream.high=8",
        "stream.length=30",
        "db=stream.db",
    )
    assert done.code == 0, done.out + done.err
    return workshop.folder / "stream.db"


@pytest.fixture(scope="module")
def sizes(batch_sizes):
    return results_of(batch_sizes)[0]["params"]["stream"]["sizes"]


def stream_facts(database, mode):
    (trial,) = [trial for trial in trials_of(database) if trial["mode"] == mode]
    return trial["extra"]["facts"]


def test_a_sweep_over_batch_sizes(batch_sizes):
    statuses = {row["mode"]: row["status"] for row in results_of(batch_sizes)}
    assert statuses == {"eager": "ok", "again": "ok", "bucketed-graph": "unsupported"}


def test_the_calls_of_each_size_are_counted(batch_sizes, sizes):
    by_size = stream_facts(batch_sizes, "eager")["stream"]["by_size"]
    assert {int(size): entry["calls"] for size, entry in by_size.items()} == Counter(sizes)


def test_graphs_of_buckets_pad_and_fall_back(batch_sizes, sizes):
    facts = stream_facts(batch_sizes, "again")
    bucket_of = {1: 1, 2: 4, 3: 4, 4: 4, 5: 6, 6: 6}
    held = [size for size in sizes if size in bucket_of]
    padded = [bucket_of[size] for size in held]
    assert facts["padding_waste"] == pytest.approx(1 - sum(held) / sum(padded))
    assert facts["fallbacks_per_pass"] == len(sizes) - len(held) > 0
    assert set(facts["capture_seconds"]) == {"1", "4", "6"}


def test_a_sweep_over_lengths(workshop):
    """Dynamic shapes compile a second graph."""
    done = workshop.sweep(
        "model=custom",
        "model.module._target_=mischief.Product",
        "model.inputs.x.shape=[12]",
        "stream=uniform",
        "stream.dim=1",
        "stream.low=3",
        "stream.high=12",
        "stream.length=30",
        "bs=2",
        "db=lengths.db",
        "mode=eager,default",
    )
    assert done.code == 0, done.out + done.err
    eager, default = results_of(workshop.folder / "lengths.db")
    assert (eager["bs"], eager["throughput_per_s"]) == (2, None)
    assert (default["status"], default["recompiles"]) == ("ok", 1)


def test_a_server_that_keeps_up_and_a_saturated_one(cli_in, tmp_path):
    cli = cli_in(tmp_path)
    done = cli.sweep(
        "model=mlp",
        "model.module.width=16",
        "mode=eager",
        "stream=arrivals",
        "stream.high=2",
        "stream.rate=200,100000",
    )
    assert done.code == 0, done.out + done.err
    assert "saturated" in done.out
    rows = {row["cell_key"]: row for row in results_of(cli.db)}
    for trial in trials_of(cli.db):
        row, facts = rows[trial["cell_key"]], trial["extra"]["facts"]["stream"]
        is_saturated = row["params"]["stream"]["rate"] == 100_000
        assert facts["saturated"] is is_saturated
        assert row["status"] == ("degraded" if is_saturated else "ok")
        assert ("saturated: the server completed" in (row["reason"] or "")) is is_saturated
        assert facts["requests"] == trial["latency_samples"] > 20
        assert set(facts["calls_by_size"]) <= {"1", "2"}
