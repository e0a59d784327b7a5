"""One self-contained HTML page of a sweep: `dashboards/index.html`, no network, no second file."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from effbench.analysis.swept import ABSENT, plain, plain_rows
from effbench.cell import SEVERITY
from effbench.metrics import METRICS
from effbench.report import summary
from effbench.report.colors import DIVERGING, THEMES, style_of
from effbench.report.embed import command_line, figure_json, plotly_js, without_password
from effbench.report.figures import Figure, all_figures
from effbench.report.frame import prepare
from effbench.report.speedup_table import speedup_table
from effbench.report.why_table import why_table

TEMPLATES = Path(__file__).parent / "templates"
#: What the page asks of a sweep; any of it may be missing.
SWEEP_FACTS = ("id", "name", "label", "started_at", "state", "command", "protocol", "git_revision", "baseline_mode")
#: Names of an environment's facts, in reading order.
FACTS = {
    "gpu_name": "GPU",
    "gpu_memory_bytes": "GPU memory",
    "driver_version": "driver",
    "cuda_version": "CUDA",
    "torch_version": "torch",
    "triton_version": "triton",
    "python": "Python",
    "cpu_name": "CPU",
    "platform": "platform",
    "flags": "flags",
}


@dataclass(frozen=True)
class Table:
    """Texts under headings; `numeric[i]` says that column i is aligned as numbers."""

    headings: list[str]
    rows: list[list[str]]
    numeric: list[bool]


@dataclass(frozen=True)
class Panel:
    """One drawn figure; `title` is empty where the section has only one."""

    title: str
    json: Markup
    height: int


@dataclass(frozen=True)
class Section:
    figure: Figure
    panels: list[Panel]
    modes: list[str]
    table: Table | None


def write_report(
    frame: pd.DataFrame, sweep: dict[str, Any], environments: list[dict[str, Any]], out: Path, database: str
) -> Path:
    """Write `index.html` into the folder `out` (made if need be) and return its path.

    `frame`: rows of the view `results` of one sweep; `sweep` and `environments`: their rows as plain dicts;
    `database`: the URL shown to the reader, a password in it is masked. The file is replaced in one step.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "index.html"
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(render_page(frame, sweep, environments, database), encoding="utf-8", errors="replace")
    draft.replace(path)
    return path


def render_page(frame: pd.DataFrame, sweep: dict[str, Any], environments: list[dict[str, Any]], database: str) -> str:
    """The page's HTML."""
    sweep = dict.fromkeys(SWEEP_FACTS) | sweep
    tidy = prepare(frame)
    baseline = str(sweep.get("baseline_mode") or "eager")
    best = summary.fastest(tidy, baseline)
    modes = summary.by_mode(tidy) if len(tidy) else pd.DataFrame()
    return _templates().get_template("page.html.j2").render(
        nonce=secrets.token_urlsafe(16),
        plotly_js=plotly_js(),
        style=Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),
        script=Markup((TEMPLATES / "page.js").read_text(encoding="utf-8")),
        looks={"themes": THEMES, "diverging": {name: [list(stop) for stop in DIVERGING[name]] for name in DIVERGING}},
        themes=THEMES,
        title=str(sweep.get("name") or sweep.get("label") or f"sweep {sweep['id'] or ''}").strip(),
        sweep=sweep,
        protocol={"name": None, "rounds": sweep.get("rounds")} | _dict(sweep["protocol"]),
        baseline=baseline,
        has_interval=bool(tidy["latency_ci_low_ms"].notna().any()) if len(tidy) else False,
        counts=summary.counts(tidy),
        fastest=best,
        sizes=sorted({bs for row in best.values() for bs in row}),
        headline=summary.headline(best, modes) if len(tidy) else ("", 0, 0),
        modes=modes.to_dict("records"),
        speedups=speedup_table(frame, "speedup", baseline) if len(tidy) else None,
        sections=[_section(figure, tidy) for figure in all_figures()] if len(tidy) else [],
        why=why_table(frame) if len(tidy) else None,
        not_ok=_not_ok(tidy),
        environments=[_environment(environment) for environment in environments],
        command=command_line(_list(sweep.get("command"))),
        database=without_password(database),
    )  # fmt: skip


def _templates() -> jinja2.Environment:
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters["metric"] = lambda value, name: METRICS[name].format(plain(value))
    env.filters["when"] = _when
    env.globals["style_of"] = style_of
    return env


def _section(figure: Figure, tidy: pd.DataFrame) -> Section:
    data = figure.data(tidy)
    if data.empty:
        return Section(figure, [], [], None)
    parts = [("", data)]
    if figure.small_multiples:
        parts = [(str(case), part) for case, part in data.groupby("case", sort=False)]
    panels = []
    for title, part in parts:
        drawn = figure.draw(part)
        panels.append(Panel(title, figure_json(drawn), int(drawn.layout.height)))
    ranks = dict(zip(data["series"], data["series_rank"], strict=True))
    modes = sorted(ranks, key=lambda name: ranks[name]) if figure.small_multiples else []
    return Section(figure, panels, modes, _numbers(figure, data))


def _numbers(figure: Figure, data: pd.DataFrame) -> Table:
    names = list(figure.numbers)
    numeric = [pd.api.types.is_numeric_dtype(data[name]) for name in names]
    rows = [[_cell(name, plain(row[name])) for name in names] for row in data.to_dict("records")]
    return Table(list(figure.numbers.values()), rows, numeric)


def _cell(name: str, value: Any) -> str:
    """A value of the numbers table; a unit stands in the heading, save for bytes, which choose their own."""
    if value is None:
        return ABSENT
    if name in METRICS and METRICS[name].unit == "bytes":
        return METRICS[name].format(value)
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e9 else f"{value:.4g}"
    return str(value)


def _not_ok(tidy: pd.DataFrame) -> list[dict[str, Any]]:
    """All that is not ok, worst first."""
    rank = {str(status): index for index, status in enumerate(SEVERITY)}
    bad = tidy[tidy["status"] != "ok"]
    rows = plain_rows(bad[["status", "case", "bs", "series", "reason", "trials"]])
    return sorted(rows, key=lambda row: rank.get(str(row["status"]), -1))


def _environment(environment: dict[str, Any]) -> dict[str, Any]:
    facts = []
    for name, title in FACTS.items():
        value = environment.get(name)
        if name == "flags":
            value = ", ".join(f"{key}={item}" for key, item in _dict(value).items()) or None
        elif name == "gpu_memory_bytes" and value is not None:
            value = METRICS["process_gpu_bytes"].format(value)
        facts.append((title, ABSENT if value is None else str(value)))
    details = _dict(environment.get("details"))
    text = json.dumps(details, indent=2, ensure_ascii=False, default=str) if details else ""
    return {"id": environment.get("id", ""), "facts": facts, "details": text}


def _dict(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        value = json.loads(value)
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[str]:
    if isinstance(value, str):
        value = json.loads(value)
    return list(value or [])


def _when(value: Any) -> str:
    """A UTC time for a reader, from text or a datetime; an em dash for none."""
    value = plain(value)
    if value is None:
        return ABSENT
    time = pd.to_datetime(str(value), utc=True, errors="coerce")
    return str(value) if pd.isna(time) else f"{time:%Y-%m-%d %H:%M} UTC"
