"""What a trial does with a stream: inputs, what is checked in which order, and whole sweeps on the
CPU."""

import itertools
from collections import Counter

import pytest
import torch
from whole_sweeps import results_of, trials_of

from effbench.cell import Cell
from effbench.models.spec import parse_inputs
from effbench.store import Store
from effbench.workloads.base import make_sets
from effbench.workloads.stream import Stream, latency_by_size, slice_sets

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
    return Cell({"name": "m"}, bs, eager, "float32", "inference", "cpu", numerics, stream=stream)


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


def test_without_a_stream_all_sets_are_checked():
    cell = Cell({"name": "m"}, 4, {"name": "eager"}, "float32", "inference", "cpu")
    (first, *_), (second, *_), _ = (args for args, _ in make_sets(cell, SPECS, 3))
    assert first.shape == (4, 3) and not torch.equal(first, second)


@pytest.mark.parametrize(
    ("cell", "shape"),
    [
        (cell_of([2, 5], channels_last=True), (2, 3, 4, 5)),
        (cell_of([2, 4], bs=2, dim=2, channels_last=True), (2, 3, 2, 5)),
    ],
)
def test_slices_keep_the_memory_format(cell, shape):
    (x,) = tensors(slice_sets(cell, IMAGES, 1).timed[0])
    assert x.shape == shape
    assert x.is_contiguous(memory_format=torch.channels_last)


def test_lengths_vary_the_inputs_that_have_them():
    cell = cell_of([2, 6, 2], bs=4, dim=1)
    dims = {"mask": None, "ids": 1, "features": None, "positions": 1}
    batch = Stream.batch(cell, SEQUENCES)
    assert [value.dim for value in (*batch.args, *batch.kwargs.values())] == [*dims.values()]
    assert batch.sizes == (4,)
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


def test_latencies_by_size():
    facts = latency_by_size([1.0, 10.0, 1.0, 10.0, 3.0, 20.0], [1, 8])
    assert facts["passes"] == 3
    assert facts["by_size"] == {
        "1": {"calls": 1, "latency_ms": 1.0},
        "8": {"calls": 1, "latency_ms": 10.0},
    }
    assert facts["latency_mean_ms"] == pytest.approx(7.5)


class TestSweep:
    """With a capture that runs again in the place of CUDA graphs: what a trial tells the mode and
    keeps of it."""

    @pytest.fixture(scope="class")
    @classmethod
    def database(cls, workshop):
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

    @pytest.fixture(scope="class")
    @classmethod
    def rows(cls, database):
        return {row["mode"]: row for row in results_of(database)}

    @pytest.fixture(scope="class")
    @classmethod
    def trials(cls, database):
        return {trial["mode"]: trial for trial in trials_of(database)}

    @pytest.fixture(scope="class")
    @classmethod
    def sizes(cls, rows):
        return rows["eager"]["params"]["stream"]["sizes"]

    def test_modes_without_their_device_are_unsupported(self, rows, trials):
        statuses = {mode: row["status"] for mode, row in rows.items()}
        expected = {"eager": "ok", "again": "ok", "bucketed-graph": "unsupported"}
        assert statuses == expected, trials["again"]["reason"]

    def test_what_follows_bs_follows_the_stream(self, rows, sizes):
        params = rows["eager"]["params"]
        assert params["model"]["module"]["max_batch"] == params["bs"] == max(sizes)

    def test_figures(self, rows, trials, sizes):
        throughput = rows["eager"]["throughput_per_s"]
        assert throughput is None, "the median latency is not that of the mean size"
        by_size = trials["eager"]["extra"]["facts"]["stream"]["by_size"]
        assert {int(size): entry["calls"] for size, entry in by_size.items()} == Counter(sizes)
        assert trials["eager"]["latency_samples"] % 30 == 0

    def test_facts_of_captured_sizes(self, trials, sizes):
        facts = trials["again"]["extra"]["facts"]
        held = [size for size in sizes if size <= 6]
        buckets = (1, 4, 6)
        padded = [min(bucket for bucket in buckets if bucket >= size) for size in held]
        assert facts["padding_waste"] == pytest.approx(1 - sum(held) / sum(padded))
        assert facts["fallbacks_per_pass"] == len(sizes) - len(held) > 0
        assert facts["calls"] > 30 and facts["fallbacks"] > facts["fallbacks_per_pass"]
        assert set(facts["capture_seconds"]) == {"1", "4", "6"}


class TestLengths:
    """A sweep over lengths, with their recompilations."""

    @pytest.fixture(scope="class")
    @classmethod
    def sweeps(cls, workshop):
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
            return [store.results(sweep.id) for sweep in store.sweeps()]

    @pytest.fixture(scope="class")
    @classmethod
    def rows(cls, sweeps):
        _, rows = sweeps
        return {(row.mode, row.params["mode"].get("dynamic")): row for row in rows}

    @pytest.mark.parametrize(
        ("dynamic", "status", "recompiles"), [(None, "ok", 1), (True, "ok", 0)]
    )
    def test_dynamic_shapes_compile_few_graphs(self, rows, dynamic, status, recompiles):
        row = rows["default", dynamic]
        assert (row.status, row.recompiles) == (status, recompiles)

    def test_static_shapes_recompile_until_dynamo_gives_up(self, rows):
        row = rows["default", False]
        assert row.status == "degraded"
        assert "hit config.recompile_limit" in row.reason

    def test_the_batch_is_as_given(self, rows):
        eager = rows["eager", None]
        assert eager.bs == 2
        assert eager.throughput_per_s is None, "the median latency is not that of a mean length"

    def test_a_mode_with_one_static_length_is_unsupported(self, sweeps):
        (row,), _ = sweeps
        reason = "this mode has one static length, but the stream has many: use stream=none"
        assert (row.status, row.reason) == ("unsupported", reason)


class TestServer:
    """A server that keeps up, and one that gets more requests than any machine can serve."""

    @pytest.fixture(scope="class")
    @classmethod
    def cli(cls, cli_in, tmp_path_factory):
        cli = cli_in(tmp_path_factory.mktemp("arrivals"))
        cli.done = cli.sweep(
            "model=mlp",
            "model.module.width=16",
            "mode=eager",
            "stream=arrivals",
            "stream.high=2",
            "stream.rate=200,100000",
        )
        assert cli.done.code == 0, cli.done.out + cli.done.err
        return cli

    @pytest.fixture(scope="class")
    @classmethod
    def rows(cls, cli):
        return {row["params"]["stream"]["rate"]: row for row in results_of(cli.db)}

    @pytest.fixture(scope="class")
    @classmethod
    def trials(cls, cli, rows):
        """Rate -> trial."""
        rates = {row["cell_key"]: rate for rate, row in rows.items()}
        return {rates[trial["cell_key"]]: trial for trial in trials_of(cli.db)}

    def test_latencies(self, rows):
        row = rows[200]
        assert (row["throughput_per_s"], row["period_ms"]) == (None, None)
        assert 0 < row["latency_ms"] <= row["latency_p95_ms"] <= row["latency_p99_ms"]

    def test_a_saturated_server_is_degraded(self, cli, rows, trials):
        assert rows[100_000]["status"] == "degraded"
        assert "saturated: the server completed" in rows[100_000]["reason"]
        assert "saturated" in cli.done.out
        facts = trials[100_000]["extra"]["facts"]["stream"]
        assert facts["saturated"] and facts["achieved_per_s"] < 0.95 * facts["offered_per_s"]

    @pytest.mark.parametrize("rate", [200, 100_000])
    def test_facts(self, trials, rate):
        facts = trials[rate]["extra"]["facts"]["stream"]
        assert facts["requests"] == trials[rate]["latency_samples"] > 20
        assert set(facts["calls_by_size"]) <= {"1", "2"}
        assert 1 <= facts["mean_batch"] <= 2

    def test_reports(self, cli):
        assert "stream.rate" in cli.run("show", "--metric", "latency_p99_ms").out
        assert "bottlenecks need a GPU" in cli.run("show", "--why").out
