"""Table and sentences about cells that use several devices, against one device."""

from __future__ import annotations

from collections.abc import Sequence

from effbench.analysis.scaling import Scaling
from effbench.core.labels import grouped
from effbench.core.metrics import METRICS
from effbench.core.quantities import percent, ratio_text
from effbench.core.table import Column, Table
from effbench.render.marks import Estimate, signed
from effbench.render.tables import label_columns
from effbench.stats.intervals import Interval

CAPTION = "Several devices against one (parallel=none): period, or latency without one"
#: Metrics of the table that explain the efficiency.
CAUSES = ("rank_spread_ms", "collective_ms", "exposed_collective_ms")


def sentences(scalings: Sequence[Scaling]) -> list[str]:
    """Return a sentence for each value of `parallel`: how its most and its least efficient cell
    compare with one device."""
    by_name = grouped(scalings, lambda scaling: scaling.name)
    return [sentence(name, of_name) for name, of_name in by_name.items()]


def sentence(name: str, scalings: Sequence[Scaling]) -> str:
    """Return `tp2 takes 0.58 of the time of one device (86 % efficiency) for mlp · bs=64 with
    eager, at worst 1.10 for mlp · bs=1 with eager`."""
    unmarked = [scaling for scaling in scalings if scaling.disturbance is None]
    in_order = sorted(unmarked or scalings, key=lambda scaling: scaling.efficiency.value)
    worst, best = in_order[0], in_order[-1]
    work = "one device"
    if best.parallel.batches > 1:
        work += f" for {best.parallel.batches} times the batches"
    efficiency = percent(best.efficiency.value)
    text = f"{name} takes {time_text(best)} of the time of {work} ({efficiency} efficiency)"
    text += f" for {cell_of(best)}"
    if worst is not best:
        text += f", at worst {time_text(worst)} for {cell_of(worst)}"
    return text


def time_text(scaling: Scaling) -> str:
    return marked(scaling, f"{scaling.time_ratio.value:.2f}")


def cell_of(scaling: Scaling) -> str:
    """Return the name of the cell without `parallel`."""
    return f"{scaling.several.curve('parallel')} with {scaling.several.mode_label}"


def scaling_table(scalings: Sequence[Scaling]) -> Table:
    """Return a table with a row for each comparison, of which there must be one."""
    labels = [name for name in scalings[0].several.labels if name != "parallel"]
    columns = [
        *label_columns(labels, once=True),
        Column("mode"),
        Column("parallel"),
        Column("single", "one device", numeric=True),
        Column("several", "several", numeric=True),
        Column("time_ratio", "time ratio", numeric=True),
        Column("efficiency", numeric=True),
    ]
    for metric in CAUSES:
        columns.append(Column(metric, METRICS[metric].title, numeric=True, optional=True))
    records = []
    for scaling in scalings:
        several = scaling.several
        record = several.labels | {metric: Estimate.of(several, metric).shown for metric in CAUSES}
        record["mode"] = several.mode_label
        record["single"] = Estimate.of(scaling.single, scaling.metric).text
        record["several"] = Estimate.of(several, scaling.metric).text
        record["time_ratio"] = figure_text(scaling, scaling.time_ratio)
        record["efficiency"] = figure_text(scaling, scaling.efficiency)
        records.append(record)
    return Table(columns, records, caption=CAPTION)


def figure_text(scaling: Scaling, figure: Interval) -> str:
    """Return a figure of a comparison with its interval: `0.862 (0.850–0.874)`."""
    return marked(scaling, ratio_text(figure.value, figure.low, figure.high))


def marked(scaling: Scaling, text: str) -> str:
    return signed(text, scaling.disturbance is not None)
