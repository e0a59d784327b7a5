"""FLOPs and least bytes of modules whose work is known by hand."""

import torch
from torch import nn

from effbench.measure import work


def size(*tensors):
    return sum(tensor.nbytes for tensor in tensors)


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(16, 16), nn.Linear(1000, 1000)

    def forward(self, x, *, scale):
        return self.used(x) * scale


def test_linear_layers_and_weights_that_are_not_used():
    module = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
    x = torch.randn(8, 64)
    found = work.count(module, (x,), {})
    assert found.flops == 2 * 8 * 64 * 128 + 2 * 8 * 128 * 32
    assert found.min_bytes == size(*module.parameters(), x) + 8 * 32 * 4
    x, scale, module = torch.randn(2, 16), torch.randn(2, 1), Half()
    found = work.count(module, (x,), {"scale": scale})
    assert found.min_bytes == size(*module.used.parameters(), x, scale) + 2 * 16 * 4


class Cache(nn.Module):
    """Writes one position and reads the first ten."""

    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(4, 100, 8))

    def forward(self, x, position):
        self.k.index_copy_(1, position, x)
        return (self.k[:, :10] * 2).sum(1)


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(48, 16))

    def forward(self, x):
        q, k, v = self.weight.chunk(3)
        return x @ q.t() + x @ k.t() + x @ v.t() + x @ v.t()


class Attend(nn.Module):
    def forward(self, q):
        return nn.functional.scaled_dot_product_attention(q, q, q)


def test_what_is_read_and_written_counts_once():
    index = torch.tensor([[1, 2, 3, 3]])
    assert work.count(nn.Embedding(1000, 16), (index,), {}).min_bytes == 3 * 64 + index.nbytes + 4 * 64, "rows read"
    x, position = torch.randn(4, 1, 8), torch.tensor([3])
    written, read, out = size(x), 4 * 10 * 8 * 4, 4 * 8 * 4
    assert work.count(Cache(), (x, position), {}).min_bytes == written + read + size(x, position) + out
    x = torch.randn(10, 10)
    assert work.count(nn.ReLU(inplace=True), (x,), {}).min_bytes == 2 * x.nbytes, "the output is the input"
    x, module = torch.randn(2, 16), Packed()  # parts of a weight add up, and the same part counts once
    found = work.count(module, (x,), {})
    assert found.min_bytes == size(module.weight, x) + 2 * 16 * 4
    assert found.flops == 4 * 2 * 2 * 16 * 16


def test_attention_is_counted():
    q = torch.randn(2, 4, 32, 16)
    found = work.count(Attend(), (q,), {})
    assert found.flops in (0, 2 * 2 * 2 * 4 * 32 * 32 * 16), "0: a kernel that torch's counter does not know"
    assert found.min_bytes == 2 * q.nbytes
