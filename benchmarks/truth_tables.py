"""The tables of benchmarks/truth.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from truth_judge import GPU_BOUND_GRAPH, Row

if TYPE_CHECKING:
    from truth import Held, Slope, Spin


def ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2%}"


def off(measured: float, expected: float) -> tuple[str, str]:
    """In percent and in microseconds."""
    return percent(measured / expected - 1), f"{(measured - expected) * 1e3:+.2f}"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], markdown: bool) -> str:
    """Aligned text or markdown. A column of figures is aligned to the right."""
    figures = [all(row[at][:1] in "+-–0123456789" for row in rows) for at in range(len(headers))]
    if markdown:
        marks = ["---:" if right else "---" for right in figures]
        cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
        return "\n".join(f"| {' | '.join(row)} |" for row in (headers, marks, *cells))
    widths = [max(len(row[at]) for row in (headers, *rows)) for at in range(len(headers))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, figures, strict=True)
        ).rstrip()
        for row in (headers, *rows)
    )


def spin_tables(spins: Sequence[Spin], found: Sequence[Slope], launch: float, markdown: bool) -> str:
    if not spins:
        return "NVML does not say the SM clock here: cycles are not time, and nothing was compared."
    rows = [
        (
            f"{one.cycles}",
            f"{one.clock_mhz:.0f}",
            ms(one.expected_ms),
            ms(one.period_ms),
            *off(one.period_ms, one.expected_ms),
            off(one.period_ms - launch, one.expected_ms)[1],
            ms(one.cupti_ms),
            one.verdict,
        )
        for one in spins
    ]
    headers = ("cycles", "SM MHz", "expected ms", "period ms", "off", "µs off", "less a launch", "CUPTI ms", "verdict")
    between = [
        (
            one.timer,
            f"{one.lengths[0]:.2f} to {one.lengths[1]:.2f} ms",
            ms(one.expected_ms),
            ms(one.measured_ms),
            *off(one.measured_ms, one.expected_ms),
            f"{one.clock_mhz:.1f}",
            one.verdict,
        )
        for one in found
    ]
    slope_headers = ("slope of", "from, to", "expected ms", "measured ms", "off", "µs off", "clock implied", "verdict")
    return "\n\n".join(
        (
            table(headers, rows, markdown),
            f"A launch by itself, 500 empty ones queued behind a spin: {launch * 1e3:.2f} µs each.",
            table(slope_headers, between, markdown),
        )
    )


def cupti_table(held: Sequence[Held], markdown: bool) -> str:
    headers = ("callable", "kernels", "busy ms", "span ms", "period ms", "off span", "µs off")
    headers = (*headers, "period traced ms", "off span", "effbench's busy ms", "verdict")
    rows = []
    for one in held:
        traced, truth = one.traced, one.traced.span_ms or one.profile_ms
        rows.append(
            (
                one.callable,
                f"{traced.kernels}",
                ms(traced.busy_ms),
                ms(traced.span_ms),
                ms(one.period_ms),
                *off(one.period_ms, truth),
                ms(traced.period_ms),
                off(traced.period_ms, truth)[0],
                ms(one.profile_ms),
                one.verdict,
            )
        )
    return table(headers, rows, markdown)


def peer_table(found: Sequence[Row], markdown: bool) -> str:
    headers = ("callable", "peer", "its ms", "its mean ms", "our timer", "ours ms", "difference", "95 %", "verdict")
    rows = [
        (
            row.callable,
            row.peer,
            ms(row.peer_ms),
            ms(row.peer_mean_ms),
            row.asks,
            ms(row.ours_ms),
            percent(row.difference),
            "–" if row.ratio is None else f"{row.ratio.low - 1:+.2%} to {row.ratio.high - 1:+.2%}",
            f"{row.verdict}: {row.why}" if row.why else row.verdict,
        )
        for row in found
    ]
    return table(headers, rows, markdown)


def summary(verdicts: Sequence[str], found: Sequence[Row]) -> tuple[str, int]:
    """The last line, and the exit code."""
    count = {name: sum(row.verdict == name for row in found) for name in ("agrees", "explained", "not explained")}
    good = sum(verdict.startswith("pass") for verdict in verdicts)
    bad = [row for row in found if row.verdict == "not explained" and row.tolerance == GPU_BOUND_GRAPH]
    skipped = sum(row.verdict == "skipped" for row in found)
    line = (
        f"Of {len(verdicts)} comparisons with the truth {good} hold. Of {len(found) - skipped} with peers "
        f"{count['agrees']} hold, {count['explained']} are explained, {count['not explained']} not explained "
        f"({len(bad)} of them GPU-bound graphs); {skipped} skipped."
    )
    return line, int(good < len(verdicts) or bool(bad))


def report(parts: dict[str, str], environment: dict[str, Any], last: str, markdown: bool) -> str:
    head = ", ".join(f"{name} {value}" for name, value in environment.items())
    sections = [f"{'### ' if markdown else ''}{title}\n\n{text}" for title, text in parts.items()]
    return "\n\n".join((head, *sections, last))
