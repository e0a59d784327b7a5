"""FLOPs, least bytes and kernels that are known by hand; the profiled pass itself needs a GPU
(tests/gpu)."""

import pytest
import torch
from torch import nn

from effbench.measure import work
from effbench.measure.profile import Activity, fingerprint, summarise, union_ns


def size(*tensors):
    return sum(tensor.nbytes for tensor in tensors)


def test_weights_that_are_not_used():
    module, x = nn.Linear(16, 16), torch.randn(2, 16)
    module.unused = nn.Linear(1000, 1000)
    counted = work.count(module, (), {"input": x})
    assert counted.flops == 2 * 2 * 16 * 16
    assert counted.min_bytes == size(module.weight, module.bias, x) + 2 * 16 * 4


def bytes_of(module, *inputs):
    return work.count(module, inputs, {}).min_bytes


def test_only_the_rows_of_a_table_that_are_read_count():
    index = torch.tensor([[1, 2, 3, 3]])
    assert bytes_of(nn.Embedding(1000, 16), index) == 3 * 64 + index.nbytes + 4 * 64


class Cache(nn.Module):
    """Writes one position and reads the first ten."""

    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(4, 100, 8))

    def forward(self, x, position):
        self.k.index_copy_(1, position, x)
        return (self.k[:, :10] * 2).sum(1)


def test_what_is_written_and_what_is_read_count_once():
    x, position = torch.randn(4, 1, 8), torch.tensor([3])
    written, read, out = size(x), 4 * 10 * 8 * 4, 4 * 8 * 4
    assert bytes_of(Cache(), x, position) == written + read + size(x, position) + out


def test_an_output_that_is_the_input_counts_once():
    x = torch.randn(10, 10)
    assert bytes_of(nn.ReLU(inplace=True), x) == 2 * x.nbytes


class Packed(nn.Linear):
    def forward(self, x):
        q, k, v = self.weight.chunk(3)
        return x @ q.t() + x @ k.t() + x @ v.t() + x @ v.t()


def test_parts_of_a_weight_add_up_and_the_same_part_counts_once():
    x, module = torch.randn(2, 16), Packed(16, 48, bias=False)
    assert bytes_of(module, x) == size(module.weight, x) + 2 * 16 * 4


class Does(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.forward = forward


@pytest.mark.parametrize(
    ("forward", "rows"),
    [
        (lambda x, mask, index: x[:1].sum(0).expand(10, 8), 2),
        (lambda x, mask, index: x[mask], 2 * 3),
        (lambda x, mask, index: x.view(torch.int32)[index], 2 + 4),
        (lambda x, mask, index: x.index_add_(0, index, torch.ones(4, 8)), 2),
        (lambda x, mask, index: (x.fill_(1), x.fill_(2))[1], 10),
    ],
)
def test_bytes_are_at_most_those_that_are_moved(forward, rows):
    x, mask, index = torch.randn(10, 8), torch.arange(10) < 3, torch.tensor([1, 2, 2, 2])
    moved = rows * 8 * 4
    assert moved <= bytes_of(Does(forward), x, mask, index) <= moved + size(mask, index)


def test_fewer_heads_of_keys_than_of_queries():
    query, key = (
        torch.empty(2, 8, 10, 16, device="meta"),
        torch.empty(2, 2, 12, 16, device="meta"),
    )
    counted, _ = work.observe(
        [query, key], lambda: torch.ops.aten._scaled_dot_product_flash_attention(query, key, key)
    )
    assert counted.flops == 2 * (2 * 8 * 10 * 12 * 16) * 2, "scores and output"


def run(*spans, name="k", correlation=1):
    return [Activity(name, start, end - start, correlation) for start, end in spans]


@pytest.mark.parametrize(
    ("spans", "busy"),
    [
        ([(0, 10), (5, 15)], 15),  # two streams
        ([(0, 100), (10, 20), (30, 40)], 100),  # inside a longer one
        ([(20, 25), (0, 10), (9, 21)], 25),  # in any order
    ],
)
def test_time_in_which_anything_ran(spans, busy):
    assert union_ns(run(*spans)) == busy


def test_figures_are_of_one_call():
    activities = [
        *run((0, 3_000_000), (10_000_000, 13_000_000), name="gemm", correlation=1),
        *run((3_000_000, 4_000_000), (13_000_000, 14_000_000), name="add", correlation=2),
    ]
    counted = summarise(activities, {1}, calls=2)
    assert (counted.busy_ms, counted.kernels) == (4.0, 2)
    assert counted.facts["kernels_in_graphs"] == 1
    gemm = {
        "name": "gemm",
        "count": 1.0,
        "ms": 3.0,
        "share": 0.75,
    }
    add = {
        "name": "add",
        "count": 1.0,
        "ms": 1.0,
        "share": 0.25,
    }
    assert counted.facts["top"] == [gemm, add]


def test_the_fingerprint_is_of_the_different_kernels_and_their_launches():
    def kernel(name="triton_poi_fused_add_0", grid="[4, 1, 1]", shared=0, stream=7):
        metadata = f'"stream": {stream}, "shared memory": {shared}, "grid": {grid}, "warps": 0.3'
        return Activity(name, stream, 5, stream, metadata)

    copy = Activity("Memcpy HtoD (Pageable -> Device)", 0, 5, 1, '"bytes": 64')
    gemm = kernel("gemm 0x7f3a")
    known = fingerprint([kernel(), gemm])
    again = kernel(stream=9)
    assert fingerprint([copy, kernel("gemm 0x8e11", stream=8), again, again]) == known
    changed = [kernel("triton_poi_fused_add_1"), kernel(grid="[8, 1, 1]"), kernel(shared=1024)]
    assert len({known, *(fingerprint([other, gemm]) for other in changed)}) == 4
    assert fingerprint([copy]) is None
    assert len(known) == 16
    assert fingerprint([kernel("triton_tem_fused_mm_0")]).endswith("-tuned")
