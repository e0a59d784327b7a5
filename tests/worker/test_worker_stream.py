"""What a trial does with a stream: inputs, what is checked in which order, and whole sweeps on the
CPU."""

import dataclasses
import itertools
from collections import Counter

import pytest
import torch
from whole_sweeps import results_of, trials_of

from effbench.cell import Cell
from effbench.models.spec import parse_inputs
from effbench.store import Store
from effbench.worker import workload

SPECS = parse_inputs({"x": {"shape": [3]}, "scale": {"shape": [3], "batch_dim": None}})
CPU = torch.device("cpu")


def cell(sizes):
    part = {"name": "s", "samples_per_call": 1.0, "sizes": sizes} if sizes else None
    return Cell(
        {"name": "m"},
        max(sizes or [4]),
        {"name": "eager"},
        "float32",
        "inference",
        "cpu",
        stream=part,
    )


def sets(one, count=3):
    return workload.make_sets(one, SPECS, count, torch.float32, CPU, 0)


def test_inputs_are_slices_of_shared_tensors():
    inputs, _ = sets(cell([2, 5, 1, 2, 5, 1, 4]))
    assert [args[0].shape[0] for args, _ in inputs] == [2, 5, 1, 2, 5, 1, 4]
    assert len({args[0].untyped_storage().data_ptr() for args, _ in inputs}) == 3
    assert inputs[0] is inputs[3], "the same set and size is one entry"
    assert all(args[0].is_contiguous() and args[1].shape == (3,) for args, _ in inputs)
    inputs, checked = sets(cell(None))
    assert len(inputs) == 3
    assert checked == inputs
    assert workload.sizes_of(cell(None)) == [4]
    images, layout = parse_inputs({"x": {"shape": [3, 4, 5]}}), torch.channels_last
    one = dataclasses.replace(cell([2, 5]), numerics={"channels_last": True})
    for args, _ in workload.make_sets(one, images, 1, torch.float32, CPU, 0)[0]:
        assert args[0].is_contiguous(memory_format=layout) and not args[0].is_contiguous()
    one = dataclasses.replace(one, bs=2, stream={"name": "s", "sizes": [2, 4], "dim": 2})
    ((small, *_), _), _ = workload.make_sets(one, images, 1, torch.float32, CPU, 0)[0]
    assert small.shape == (2, 3, 2, 5) and small.is_contiguous(memory_format=layout)


def test_lengths_vary_the_inputs_that_have_them():
    specs = parse_inputs(
        {
            "mask": {"shape": [1, 6], "batch_dim": None},
            "ids": {"shape": [6, 2]},
            "features": {"shape": [9]},
            "positions": {"shape": [6], "keyword": True},
        }
    )
    part = {"name": "s", "sizes": [2, 6, 2], "dim": 1}
    one = Cell({"name": "m"}, 4, {"name": "eager"}, "float32", "inference", "cpu", stream=part)
    assert workload.varied_dims(one, specs) == {
        "mask": None,
        "ids": 1,
        "features": None,
        "positions": 1,
    }
    timed, checked = workload.make_sets(one, specs, 2, torch.float32, CPU, 0)
    shapes = [[tuple(value.shape) for value in (*args, *kwargs.values())] for args, kwargs in timed]
    assert shapes[0] == [(1, 6), (4, 2, 2), (4, 9), (4, 2)] and shapes[1] == [
        (1, 6),
        (4, 6, 2),
        (4, 9),
        (4, 6),
    ]
    assert [args[1].shape[1] for args, _ in checked] == [6, 2] and workload.batch_sizes_of(one) == [
        4
    ]
    assert all(args[1].is_contiguous() for args, _ in timed)


def test_every_size_is_checked_once_from_the_largest_down():
    _, checked = sets(cell([2, 5, 1, 2, 5, 4, 4]))
    assert [args[0].shape[0] for args, _ in checked] == [5, 4, 2, 1]
    _, checked = sets(cell([4, 3, 2, 1] * 6), 2)
    for (larger, _), (smaller, _) in itertools.pairwise(checked):
        assert not torch.equal(larger[0][: len(smaller[0])], smaller[0]), (
            "neighbours have other values"
        )


def test_a_stream_through_whole_trials(workshop):
    """With a capture that runs again in the place of CUDA graphs: what a trial tells the mode and
    keeps of it."""
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
    rows = {row["mode"]: row for row in results_of(workshop.folder / "stream.db")}
    trials = {trial["mode"]: trial for trial in trials_of(workshop.folder / "stream.db")}
    assert {mode: row["status"] for mode, row in rows.items()} == {
        "eager": "ok",
        "again": "ok",
        "bucketed-graph": "unsupported",
    }, trials["again"]["reason"]
    params, stream = rows["eager"]["params"], trials["eager"]["extra"]["facts"]["stream"]
    sizes = params["stream"]["sizes"]
    assert params["model"]["module"]["max_batch"] == params["bs"] == max(sizes), (
        "what follows bs follows the stream"
    )
    assert rows["eager"]["throughput_per_s"] is None, (
        "the median latency is not that of the mean size"
    )
    assert {int(size): entry["calls"] for size, entry in stream["by_size"].items()} == Counter(
        sizes
    )
    assert trials["eager"]["latency_samples"] % 30 == 0
    facts, held = trials["again"]["extra"]["facts"], [size for size in sizes if size <= 6]
    padded = sum(1 if size == 1 else 4 if size <= 4 else 6 for size in held)
    assert facts["padding_waste"] == pytest.approx(1 - sum(held) / padded)
    assert facts["fallbacks_per_pass"] == len(sizes) - len(held) > 0
    assert facts["calls"] > 30 and facts["fallbacks"] > facts["fallbacks_per_pass"]
    assert set(facts["capture_seconds"]) == {"1", "4", "6"}


def test_lengths_through_a_sweep_with_their_recompilations(workshop):
    words = (
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
    )
    done = workshop.sweep(*words, "mode=eager,default", "mode.dynamic=null,true,false")
    assert done.code == 0, done.out + done.err
    assert workshop.sweep(*words, "mode=aot-inductor").code == 0
    with Store.open(workshop.folder / "lengths.db") as store:
        static, rows = (store.results(sweep.id) for sweep in store.sweeps())
    by_mode = {(row["mode"], row["params"]["mode"].get("dynamic")): row for row in rows}
    found = {
        dynamic: (row["status"], row["recompiles"])
        for (mode, dynamic), row in by_mode.items()
        if mode == "default"
    }
    assert found == {None: ("ok", 1), True: ("ok", 0), False: ("degraded", found[False][1])}
    assert "hit config.recompile_limit" in by_mode["default", False]["reason"]
    eager = by_mode["eager", None]
    assert (eager["bs"], eager["throughput_per_s"]) == (
        2,
        None,
    ), "the median latency is not that of the mean length"
    assert [(row["status"], row["reason"]) for row in static] == [
        ("unsupported", "this mode has one static length, but the stream has many: use stream=none")
    ]


def test_a_server_at_two_rates(cli):
    """One that keeps up, and one that gets more requests than any machine can serve."""
    done = cli.sweep(
        "model=mlp",
        "model.module.width=16",
        "mode=eager",
        "stream=arrivals",
        "stream.high=2",
        "stream.rate=200,100000",
    )
    assert done.code == 0, done.out + done.err
    rows = {row["params"]["stream"]["rate"]: row for row in results_of(cli.db)}
    trials = {row["cell_key"]: row for row in trials_of(cli.db)}
    slow, fast = rows[200], rows[100_000]
    assert (fast["status"], slow["throughput_per_s"], slow["period_ms"]) == ("degraded", None, None)
    assert "saturated: the server completed" in fast["reason"] and "saturated" in done.out
    assert 0 < slow["latency_ms"] <= slow["latency_p95_ms"] <= slow["latency_p99_ms"]
    for row in (slow, fast):
        trial = trials[row["cell_key"]]
        facts = trial["extra"]["facts"]["stream"]
        assert facts["requests"] == trial["latency_samples"] > 20 and set(
            facts["calls_by_size"]
        ) <= {"1", "2"}
        assert 1 <= facts["mean_batch"] <= 2
    assert facts["saturated"] and facts["achieved_per_s"] < 0.95 * facts["offered_per_s"]
    assert "stream.rate" in cli.run("show", "--metric", "latency_p99_ms").out
    assert "bottlenecks need a GPU" in cli.run("show", "--why").out
