"""Bring the generated tables of the pages in line with the code: `python docs/generate.py` (`--check` only looks).

A table stands between `<!-- table NAME -->` and `<!-- end -->`. The columns that the code knows are rewritten; the ones
that it does not (what a column means, a unit) are written by hand in the page and kept, row by row. A row that the code
has and the page has not appears with empty cells for you to fill.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import yaml

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from effbench import config  # noqa: E402
from effbench.cli import config_folder  # noqa: E402
from effbench.metrics import METRICS  # noqa: E402
from effbench.store import schema  # noqa: E402

TABLE = re.compile(r"<!-- table (\S+) -->\n(.*?)<!-- end -->", re.S)
TYPES = ((sa.Boolean, "true or false"), (sa.JSON, "JSON"), (sa.LargeBinary, "bytes"), (sa.Integer, "integer"),
         (sa.Float, "float"), (schema.UtcDateTime, "time, UTC"), (sa.String, "text"))  # fmt: skip
UNITS = {"_ms": "ms", "_s": "s", "_bytes": "bytes", "_mj": "mJ", "_mhz": "MHz", "_c": "°C", "_w": "W"}


@dataclasses.dataclass(frozen=True)
class Row:
    """`key` is the first cell; `facts` are cells of the code; `given` replaces what is written by hand (None: kept)."""

    key: str
    facts: list[str]
    given: list[str | None]


@dataclasses.dataclass(frozen=True)
class Table:
    """`headings`: of the key, the facts and the cells that are kept."""

    headings: list[str]
    rows: list[Row]


def unit_of(name: str) -> str:
    if name in METRICS:
        return METRICS[name].unit
    if name.startswith("speedup_"):
        return METRICS["speedup"].unit
    return next((unit for suffix, unit in UNITS.items() if name.endswith(suffix)), "")


def type_of(column: sa.Column) -> str:
    name = next(name for kind, name in TYPES if isinstance(column.type, kind))
    return f"{name}, or NULL" if column.nullable else name


def not_measured() -> list[str]:
    """Metrics that have their column in the view already and nothing that fills it."""
    return [name for name in METRICS if name not in schema.RESULT.columns]


def view() -> Table:
    rows = []
    for column in schema.RESULTS.columns:
        metric = METRICS.get(column.name)
        text = f"{metric.help}" if metric else None
        if column.name in not_measured():
            text = f"{text} (not measured yet: always NULL)"
        kind = next(name for kind, name in TYPES if isinstance(column.type, kind))
        rows.append(Row(column.name, [kind, unit_of(column.name)], [text]))
    return Table(["column", "type", "unit", "definition"], rows)


def table_of(table: sa.Table) -> Callable[[], Table]:
    def make() -> Table:
        rows = [Row(c.name, [type_of(c), unit_of(c.name)], [None]) for c in table.columns]
        return Table(["column", "type", "unit", "meaning"], rows)

    return make


def result() -> Table:
    rows = []
    for column in schema.RESULT.columns:
        same = column.name in schema.RESULT_COLUMNS
        rows.append(Row(column.name, [type_of(column), unit_of(column.name)], ["as in the view" if same else None]))
    return Table(["column", "type", "unit", "meaning"], rows)


def options(group: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and content of every YAML of a group."""
    for path in sorted((config_folder() / group).glob("*.yaml")):
        yield path.stem, yaml.safe_load(path.read_text(encoding="utf-8"))


def setting_type(hint: Any) -> str:
    if hint is Any:
        return "mapping"
    if typing.get_args(hint):
        return " or ".join("null" if kind is type(None) else setting_type(kind) for kind in typing.get_args(hint))
    if issubclass(hint, str):
        return "text"
    return {bool: "true or false", int: "integer", float: "number"}[hint]


def shown(value: Any) -> str:
    if value is None:
        return "`null`"
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`"


def settings() -> Table:
    return Table(["setting", "type", "default", "unit", "meaning"], list(setting_rows(config.Config, "")))


def setting_rows(kind: Any, prefix: str) -> Iterator[Row]:
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        name, hint = f"{prefix}{field.name}", hints[field.name]
        if dataclasses.is_dataclass(hint):
            yield from setting_rows(hint, f"{name}.")
            continue
        made = field.default if field.default is not dataclasses.MISSING else field.default_factory()
        kind = "list" if isinstance(made, list) else setting_type(hint)
        yield Row(name, [kind, shown(made)], [None, None])


def setting_names() -> list[str]:
    return [row.key for row in settings().rows]


def groups() -> Table:
    rows = []
    for folder in sorted(path for path in config_folder().iterdir() if path.is_dir()):
        names = ", ".join(f"`{name}`" for name, _ in options(folder.name))
        rows.append(Row(folder.name, [names], [None]))
    return Table(["group", "options", "what it chooses"], rows)


def protocols() -> Table:
    found = [(name, {**dataclasses.asdict(config.Protocol()), **content}) for name, content in options("protocol")]
    found.sort(key=lambda item: item[1]["rounds"])
    rows = [
        Row(f"protocol.{field.name}", [shown(content[field.name]) for _, content in found], [None])
        for field in dataclasses.fields(config.Protocol)
        if field.name != "name"
    ]
    return Table(["setting", *(f"`{name}`" for name, _ in found), "meaning"], rows)


def models() -> Table:
    rows = []
    for name, content in options("model"):
        inputs = "; ".join(f"`{key}` {described(spec)}" for key, spec in (content["inputs"] or {}).items()) or "yours"
        own = [f"`{key}` {shown(value)}" for key, value in content["module"].items() if key != "_target_"]
        rows.append(Row(name, [content["description"], inputs, ", ".join(own) or "yours"], [None]))
    return Table(["model", "what it is", "inputs", "settings under `model.module` and their defaults", "needs"], rows)


def described(spec: dict[str, Any]) -> str:
    """An input as a person says it."""

    def plain(value: Any) -> str:  # `${model.module.width}` is `width`
        return re.sub(r"\$\{model\.module\.(.+)\}", r"\1", shown(value).strip("`"))

    said = [f"[{', '.join(map(plain, spec['shape']))}]"]
    said += [f"{key}={plain(value)}" for key, value in spec.items() if key != "shape"]
    return " ".join(said)


def modes() -> Table:
    rows = []
    for name, content in options("mode"):
        own = {key: value for key, value in content.items() if key not in ("name", "description", "_target_")}
        said = ", ".join(f"`{key}` {shown(value)}" for key, value in own.items())
        rows.append(Row(name, [content["description"], said or "none"], [None]))
    return Table(["mode", "what it is", "settings under `mode` and their defaults", "needs"], rows)


def status_changes() -> Table:
    """Every status before against every status now; None is a cell that was not measured."""
    from effbench.cell import SEVERITY
    from effbench.comparison.verdicts import gives_figures, verdict_of_statuses

    every = [*reversed(SEVERITY), None]

    def verdict(before: str | None, now: str | None) -> str:
        if before is now is None:
            return "no row"
        found = verdict_of_statuses(before, now)
        if found is None:
            return "compared"
        return str(found) if now is not None or gives_figures(before) else f"({found})"

    def name(status: str | None) -> str:
        return "not measured" if status is None else str(status)

    rows = [Row(name(before), [verdict(before, now) for now in every], []) for before in every]
    return Table(["before ╲ now", *map(name, every)], rows)


def checks() -> Table:
    from effbench.experiments.definition import execute, load, load_all

    rows = []
    for outline in load_all():
        experiment, module = load(outline.path), execute(outline.path)
        for name in experiment.checks:
            function = getattr(module, name)
            shows = " ".join(function.__doc__.split("\n\n")[0].split())
            claims = ", ".join(claim.id for claim in experiment.claims if name in claim.inputs)
            rows.append(Row(f"{experiment.name}: {name}", [claims], [shows, ", ".join(function.needs) or "nothing"]))
    return Table(["experiment: check", "claims", "what it shows", "needs"], rows)


TABLES: dict[str, Callable[[], Table]] = {
    "view": view,
    **{name: table_of(table) for name, table in schema.METADATA.tables.items()},
    "result": result,
    "settings": settings,
    "groups": groups,
    "protocols": protocols,
    "models": models,
    "modes": modes,
    "checks": checks,
    "status_changes": status_changes,
}


def cells_of(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def line_of(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def rendered(name: str, before: str) -> str:
    """The table `name` with the code's facts and the hand-written cells of `before`."""
    table = TABLES[name]()
    kept = {}
    for line in before.splitlines()[2:]:
        key, *rest = cells_of(line)
        kept[key.strip("`")] = rest
    lines = [line_of(table.headings), line_of(["---"] * len(table.headings))]
    for row in table.rows:
        count = len(row.given)
        old = kept.get(row.key, [])[-count:] if count else []
        old = old + [""] * (count - len(old))
        last = [given if given is not None else by_hand for given, by_hand in zip(row.given, old, strict=True)]
        lines.append(line_of([f"`{row.key}`", *row.facts, *last]))
    return "".join(lines)


def updated(text: str) -> str:
    """A page with its tables brought up to date."""
    return TABLE.sub(lambda found: f"<!-- table {found[1]} -->\n{rendered(found[1], found[2])}<!-- end -->", text)


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = []
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if (new := updated(text)) != text:
            stale.append(page.name)
            if not check:
                page.write_text(new, encoding="utf-8")
    print(f"{'out of date' if check else 'rewritten'}: {', '.join(stale) or 'nothing'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
