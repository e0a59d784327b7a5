"""What a trial does with a stream: inputs, what is checked in which order, and whole sweeps on the
CPU."""

import itertools

import pytest
import torch
from own_cells import cpu_cell
from whole_sweeps import results_of, trials_of

from effbench.models.inputs import Batch
from effbench.models.spec import parse_inputs
from effbench.workloads.stream import slice_sets

SPECS = parse_inputs({"x": {"shape": [3]}, "scale": {"shape": [3], "batch_dim": None}})


def sliced(sizes, sets, specs=SPECS):
    cell = cpu_cell(5, stream={"name": "s", "sizes": sizes})
    return slice_sets(cell, specs, Batch.of(specs, sizes), sets)


def test_each_input_has_its_own_batch_dimension():
    specs = parse_inputs(
        {
            "mask": {"shape": [6, 6], "batch_dim": None},
            "later": {"shape": [6], "keyword": True},
            "turned": {"shape": [6, 2], "batch_dim": 1},
        }
    )
    (args, kwargs), *_ = sliced([2, 5], 2, specs).timed
    shapes = [tuple(value.shape) for value in (*args, kwargs["later"])]
    assert shapes == [(6, 6), (6, 2, 2), (2, 6)]
    assert args[1].is_contiguous()


def test_inputs_are_slices_of_shared_tensors():
    timed = sliced([2, 5, 1, 2, 5, 1, 4], 3).timed
    firsts = [args[0] for args, _ in timed]
    assert [len(x) for x in firsts] == [2, 5, 1, 2, 5, 1, 4]
    assert len({x.untyped_storage().data_ptr() for x in firsts}) == 3
    assert timed[0] is timed[3], "the same set and size is one entry"


@pytest.mark.parametrize(("sizes", "sets"), [([2, 5, 1, 2, 5, 4, 4], 3), ([5, 4, 2, 1] * 6, 2)])
def test_every_size_is_checked_once_from_the_largest_down(sizes, sets):
    firsts = [args[0] for args, _ in sliced(sizes, sets).checked]
    assert [len(x) for x in firsts] == [5, 4, 2, 1]
    for larger, smaller in itertools.pairwise(firsts):
        assert not torch.equal(larger[: len(smaller)], smaller), "neighbours have other values"


def test_a_sweep_over_batch_sizes(workshop):
    """With a capture that runs again in the place of CUDA graphs."""
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
    trials = {trial["mode"]: trial for trial in trials_of(workshop.folder / "stream.db")}
    statuses = {mode: trial["status"] for mode, trial in trials.items()}
    assert statuses == {"eager": "ok", "again": "ok", "bucketed-graph": "unsupported"}
    facts = trials["again"]["extra"]["facts"]
    assert facts["capture_seconds"].keys() == {"1", "4", "6"}
    assert facts["fallbacks_per_pass"] > 0


def test_dynamic_shapes_compile_a_second_graph(workshop):
    done = workshop.sweep(
        "model=custom",
        "model.module._target_=mischief.Product",
        "model.inputs.x.shape=[12]",
        "stream=uniform",
        "stream.low=3",
        "stream.high=12",
        "stream.length=30",
        "db=default.db",
        "mode=eager,default",
    )
    assert done.code == 0, done.out + done.err
    eager, default = results_of(workshop.folder / "default.db")
    assert (eager["bs"], eager["throughput_per_s"]) == (12, None)
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
    by_rate = {row["params"]["stream"]["rate"]: row for row in results_of(cli.db)}
    assert by_rate[200]["status"] == "ok"
    assert by_rate[100_000]["status"] == "degraded"
    assert "saturated: the server completed" in by_rate[100_000]["reason"]
    for trial in trials_of(cli.db):
        facts = trial["extra"]["facts"]["stream"]
        assert trial["latency_samples"] > 20
        assert set(facts["calls_by_size"]) <= {"1", "2"}
