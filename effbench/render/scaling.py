"""Table and sentences about cells that use several devices, against one device."""

from __future__ import annotations

from collections.abc import Sequence

from effbench.analysis.scaling import Scaling
from effbench.core.labels import grouped
from effbench.core.metrics import METRICS
from effbench.core.quantities import percent
from effbench.core.table import Column, Table
from effbench.render.marks import Estimate, signed
from effbench.render.tables import label_columns

CAPTION = "Several devices against one (parallel=none): period, or latency without a period"
#: Metrics of the table: the efficiency, then what explains it.
FIGURES = ("scaling_efficiency", "rank_spread_ms", "collective_ms", "exposed_collective_ms")


def sentences(scalings: Sequence[Scaling]) -> list[str]:
    """Return a sentence for each value of `parallel`: how its most and its least efficient cell
    compare with one device."""
    by_name = grouped(scalings, lambda scaling: scaling.name)
    return [sentence(name, of_name) for name, of_name in by_name.items()]


def sentence(name: str, scalings: Sequence[Scaling]) -> str:
    """Return `tp2 takes 0.58× the time of one device (86 % efficiency) for mlp · bs=64 with eager,
    at worst 1.10× for mlp · bs=1 with eager`."""
    unmarked = [scaling for scaling in scalings if not efficiency_of(scaling).is_marked]
    in_order = sorted(unmarked or scalings, key=lambda scaling: scaling.efficiency)
    worst, best = in_order[0], in_order[-1]
    work = "one device"
    if best.parallel.batches > 1:
        work += f" for {best.parallel.batches} times the batches"
    text = f"{name} takes {time_text(best)} the time of {work}"
    text += f" ({percent(best.efficiency)} efficiency) for {cell_of(best)}"
    if worst is not best:
        text += f", at worst {time_text(worst)} for {cell_of(worst)}"
    return text


def efficiency_of(scaling: Scaling) -> Estimate:
    return Estimate.of(scaling.several, "scaling_efficiency")


def time_text(scaling: Scaling) -> str:
    return signed(f"{scaling.time_ratio:.2f}×", efficiency_of(scaling).is_marked)


def cell_of(scaling: Scaling) -> str:
    """Return the name of the cell without `parallel`."""
    return f"{scaling.several.curve('parallel')} with {scaling.several.mode_label}"


def scaling_table(scalings: Sequence[Scaling]) -> Table:
    """Return a table with a row for each comparison, of which there must be one."""
    columns = [
        *label_columns(scalings[0].several.labels, once=True),
        Column("mode"),
        Column("single", "one device", numeric=True),
        Column("several", "several", numeric=True),
    ]
    for metric in FIGURES:
        columns.append(Column(metric, METRICS[metric].title, numeric=True, optional=True))
    records = []
    for scaling in scalings:
        several = scaling.several
        record = several.labels | {metric: Estimate.of(several, metric).shown for metric in FIGURES}
        record["mode"] = several.mode_label
        record["single"] = Estimate.of(scaling.single, scaling.metric).text
        record["several"] = Estimate.of(several, scaling.metric).text
        records.append(record)
    return Table(columns, records, caption=CAPTION)
