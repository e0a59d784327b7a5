"""Figures of cells that use several devices."""

import pytest
from made_sweeps import a_cell

from effbench.store import Store


@pytest.mark.parametrize(
    ("parallel", "batches"),
    [(None, 1), ("tp2", 1), ("ddp2", 2), ("fsdp4", 4), ("of-a-later-version", 1)],
)
def test_the_throughput_counts_the_batches_of_all_ranks(made, parallel, batches):
    cell = a_cell(bs=8, parallel=parallel)
    made.sweep({cell: {"period_ms": 2.0}})
    with Store.open(made.path) as store:
        (result,) = store.results()
    assert result.throughput_per_s == pytest.approx(4000 * batches)
