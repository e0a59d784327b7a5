"""Tables that the code knows, for the documentation: `python docs/tables.py` refreshes them in its
pages.

A table stands between `<!-- table NAME -->`, `<!-- options COMMAND -->` or `<!-- reference NAME
-->` and `<!-- end -->`, and so does a YAML file, after `<!-- file PATH -->`. MkDocs calls
`on_page_markdown`, which replaces `<!-- notebook FILE -->` by a notebook's cells and their output.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import yaml
from msgspec import inspect as inspected

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from effbench.analysis.verdicts import verdict_of_statuses  # noqa: E402
from effbench.claims.definition import find  # noqa: E402
from effbench.cli import main as cli  # noqa: E402
from effbench.core import settings as config  # noqa: E402
from effbench.core.cell import SEVERITY, Cell, Result, Status  # noqa: E402
from effbench.core.labels import label_rows  # noqa: E402
from effbench.core.metrics import METRICS, RESULT_METRICS, TRIAL_METRICS  # noqa: E402
from effbench.core.python_files import module_of  # noqa: E402
from effbench.core.settings import shipped  # noqa: E402
from effbench.render.claims import figure_text  # noqa: E402
from effbench.render.tables import SpeedupTable, speedup_table  # noqa: E402
from effbench.store import schema  # noqa: E402
from effbench.store.values import result_of  # noqa: E402

REFERENCE = ROOT / "results" / "reference"
MARK = re.compile(r"<!-- (table|options|reference|file|notebook) (\S+) -->\n")
STORED = re.compile(r"(<!-- (table|options|reference|file) (\S+) -->\n).*?(<!-- end -->\n)", re.S)
TYPES = (
    (sa.Boolean, "true or false"),
    (sa.JSON, "JSON"),
    (sa.LargeBinary, "bytes"),
    (sa.Integer, "integer"),
    (sa.Float, "float"),
    (schema.UtcDateTime, "time, UTC"),
    (sa.String, "text"),
)
UNITS = {
    "_ms": "ms",
    "_s": "s",
    "_bytes": "bytes",
    "_mj": "mJ",
    "_mhz": "MHz",
    "_c": "°C",
    "_w": "W",
}


def params_meaning() -> str:
    """Return which parameters every cell has, and which only some cells have."""
    fields = dataclasses.fields(Cell)
    always = [f"`{field.name}`" for field in fields if field.default is not None]
    some = [f"`{field.name}`" for field in fields if field.default is None]
    return f"every resolved parameter: {', '.join(always)}; if used, {', '.join(some)}"


#: Columns of the view and of `trial` that are not metrics.
COLUMNS = {
    "bound": "[bottleneck](../explanation/measuring.md#bottlenecks): `launch` or `gpu`",
    "marked": (
        "whether the times come from a disturbed machine ([marks](#marks)); NULL without figures"
    ),
    "disturbance": (
        "what disturbed the machine, if the times are [marked](#marks); NULL if they are not"
    ),
    "id": "number of the trial",
    "sweep_id": "key of `sweep`",
    "sweep_name": "`sweep.name`",
    "label": "`sweep.label`, or `git describe` of the working directory",
    "started_at": "when the sweep or trial began",
    "model": "name of the model",
    "bs": "batch size, in samples",
    "mode": "name of the mode; its settings are in `params`",
    "dtype": "resolved dtype, never `auto`",
    "phase": (
        "`inference`, `training` or `generate`; in `trial` the last"
        " [phase](statuses.md#phases-of-a-trial)"
    ),
    "device": "`cuda` or `cpu`",
    "status": "[status](statuses.md#statuses)",
    "reason": "why the status is not `ok`, in one line",
    "trials": "number of rounds in the figures; marked ones do not count if three others are `ok`",
    "round": "pass over the cells, from 0",
    "attempt": "attempt within the round, from 0",
    "extra": (
        "everything else: `phase_seconds`, `facts` of the mode, `graphs`, `cache`,"
        " `graph_break_reasons`, `cudagraph_skip_reasons`, `profile`, `no_trace`,"
        " `discarded`, `training`, `dropout_off`, `grad_mode`, `grad_mode_reason`,"
        " `harness_retries`, `usual_host_ms`,"
        " `context_error`, `timed_again`; of failures `traceback`, `log`"
    ),
    "recorded_at": "when the trial was committed",
    "gpu_name": "names of the GPUs that torch saw",
    "torch_version": "version of torch",
    "python": "version of Python",
    "environment_id": "key of `environment`",
    "cell_key": "key of `cell`",
    "params": params_meaning(),
}
#: What modes and models need besides torch.
NEEDS = {
    "aot-inductor": "g++; on CUDA also CUDA's headers, Triton and a C compiler",
    **dict.fromkeys(
        ("compile+graph", "default+graph", "default+piecewise"),
        "CUDA, Triton, a C compiler",
    ),
    "default": "a C++ compiler on the CPU; Triton and a C compiler on CUDA",
    **dict.fromkeys(
        ("lite", "max-autotune", "max-autotune-no-cudagraphs", "regional"), "as `default`"
    ),
    "cpp-wrapper": "g++; otherwise as `default`",
    "reduce-overhead": "CUDA, Triton, a C compiler",
    **dict.fromkeys(
        ("bucketed-graph", "cuda-graph", "cudagraphs", "piecewise-graph", "pointer-chase"), "CUDA"
    ),
    **dict.fromkeys(("resnet18", "resnet50", "mobilenetv3", "vit-b"), "torchvision"),
    **{name: name for name in ("torchvision", "timm", "transformers")},
    "bert-base": "transformers",
    **dict.fromkeys(
        ("llama-7b-decode", "llama-7b-prefill"), "27 GB of host memory while it is built"
    ),
}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs' hook: fill in the notebook of a page, and remove the marks of tables."""
    shown = STORED.sub(lambda found: found[0][len(found[1]) : -len(found[4])], markdown)
    return MARK.sub(lambda found: f"{MAKERS[found[1]](found[2])}\n", shown)


def table(headings: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    headings = list(headings)
    lines = [headings, ["---"] * len(headings), *rows]
    texts = [[" ".join(str(cell).split()).replace("|", "\\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in texts)


# --- the database


def unit_of(name: str) -> str:
    if name in METRICS:
        return METRICS[name].unit
    return next((unit for suffix, unit in UNITS.items() if name.endswith(suffix)), "")


def meaning_of(name: str) -> str:
    for metric in METRICS.values():
        if metric.interval and name in metric.interval:
            bound = "lower" if name == metric.interval[0] else "upper"
            return f"{bound} bound of the 95 % interval of `{metric.name}`"
    helps = {metric.name: metric.help for metric in (*TRIAL_METRICS, *RESULT_METRICS)}
    return COLUMNS.get(name) or helps[name]


def columns(row: Any) -> str:
    kind = {
        name: next(text for type_, text in TYPES if isinstance(column.type, type_))
        for name, column in row.items()
    }
    rows = ([f"`{name}`", kind[name], unit_of(name), meaning_of(name)] for name in row)
    return table(["column", "type", "unit", "meaning"], rows)


def view() -> str:
    rows = (
        [f"`{name}`", f"`{dtype}`", unit_of(name), meaning_of(name)]
        for name, dtype in schema.RESULT_DTYPES.items()
    )
    return table(["column", "dtype", "unit", "meaning"], rows)


# --- settings


def comments(kind: type) -> dict[str, str]:
    """Return field -> the comment behind it, or on the lines above it, of a dataclass."""
    found, above = {}, []
    for line in inspect.getsource(kind).splitlines():
        if match := re.fullmatch(r"    # (.*)", line):
            above.append(match[1])
        elif match := re.match(r"    (\w+): .*?(?:  # (.*))?$", line):
            found[match[1]] = match[2] or " ".join(above)
            above = []
        else:
            above = []
    return found


SETTING_TYPES = {
    inspected.AnyType: "list",
    inspected.BoolType: "true or false",
    inspected.DictType: "mapping",
    inspected.FloatType: "number",
    inspected.IntType: "integer",
    inspected.NoneType: "null",
    inspected.StrType: "text",
}


def setting_type(kind: inspected.Type) -> str:
    if isinstance(kind, inspected.UnionType):
        return " or ".join(sorted(map(setting_type, kind.types), key=lambda name: name == "null"))
    if isinstance(kind, inspected.LiteralType):
        return ", ".join(f"`{choice}`" for choice in kind.values)
    return SETTING_TYPES[type(kind)]


def shown(value: Any) -> str:
    return (
        f"`{json.dumps(value)}`" if value in (None, "") or isinstance(value, bool) else f"`{value}`"
    )


def settings() -> Iterator[list[str]]:
    """Yield name, type, default and meaning of every setting."""
    defaults = config.Config()
    for setting in config.SETTINGS.values():
        section, _, name = setting.name.rpartition(".")
        notes = comments(type(getattr(defaults, section, defaults)))
        kind = setting_type(inspected.type_info(setting.kind))
        yield [f"`{setting.name}`", kind, shown(setting.default), notes[name]]


def group_files(group: str) -> dict[str, dict[str, Any]]:
    paths = sorted((shipped("conf") / group).glob("*.yaml"))
    return {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in paths}


def groups() -> str:
    folders = sorted(path.name for path in shipped("conf").iterdir() if path.is_dir())
    return table(
        ["group", "options"],
        ([f"`{name}`", ", ".join(f"`{o}`" for o in group_files(name))] for name in folders),
    )


def protocols() -> str:
    found = {
        name: dataclasses.asdict(config.Protocol()) | content
        for name, content in group_files("protocol").items()
    }
    names = sorted(found, key=lambda name: found[name]["rounds"])
    fields = [field.name for field in dataclasses.fields(config.Protocol) if field.name != "name"]
    rows = (
        [f"`protocol.{field}`", *(shown(found[name][field]) for name in names)] for field in fields
    )
    return table(["setting", *(f"`{name}`" for name in names)], rows)


def own_settings(content: Mapping[str, Any]) -> str:
    own = {
        key: value
        for key, value in content.items()
        if key not in ("name", "description", "_target_")
    }
    return ", ".join(f"`{key}` {shown(value)}" for key, value in own.items()) or "none"


def modes() -> str:
    rows = (
        [f"`{name}`", one["description"], own_settings(one), NEEDS.get(name, "")]
        for name, one in group_files("mode").items()
    )
    return table(["mode", "description", "settings under `mode`", "needs"], rows)


def models() -> str:
    rows = (
        [f"`{name}`", one["description"], own_settings(one["module"]), NEEDS.get(name, "")]
        for name, one in group_files("model").items()
    )
    return table(["model", "description", "settings under `model.module`", "needs"], rows)


# --- verdicts, checks, commands


def status_changes() -> str:
    """Every status before against every status now; None is a cell that was not measured."""
    every = [*reversed(SEVERITY), None]

    def verdict(before: Status | None, now: Status | None) -> str:
        if before is now is None:
            return "no row"
        found = verdict_of_statuses(before, now) or "compared"
        return str(found) if now is not None or before.is_measured else f"({found})"

    names = ["not measured" if status is None else str(status) for status in every]
    rows = (
        [f"`{name}`", *(verdict(before, now) for now in every)]
        for name, before in zip(names, every, strict=True)
    )
    return table(["before ╲ now", *names], rows)


def checks() -> str:
    rows = []
    for experiment in find(["all"]):
        module = module_of(experiment.path)
        for name in experiment.checks:
            function = getattr(module, name)
            claims = ", ".join(claim.id for claim in experiment.claims if name in claim.inputs)
            shows = (function.__doc__ or "").partition("\n\n")[0]
            rows.append(
                [f"`{experiment.name}`: `{name}`", claims, shows, ", ".join(function.needs)]
            )
    return table(["experiment: check", "claims", "what it shows", "needs"], rows)


def arguments(parser: argparse.ArgumentParser, of: str = "") -> Iterator[list[str]]:
    """Yield what to type and what it does for every argument, those of subcommands with their
    name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from arguments(inner, f"{of}{name} ")
        elif not isinstance(action, argparse._HelpAction):
            value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else "")
            value = " ".join(value) if isinstance(value, tuple) else value
            value = value or (
                action.dest.upper() if action.nargs != 0 or not action.option_strings else ""
            )
            words = f"{', '.join(action.option_strings)} {value}".strip()
            yield [
                f"`{of}{words}`",
                (action.help or "") % {"default": action.default, "prog": parser.prog},
            ]


def options(command: str) -> str:
    return table(["argument", "meaning"], arguments(cli.parser_of(command)))


# --- measured results


def reference_rows() -> list[Result]:
    texts = [(REFERENCE / f"{gpu}.jsonl").read_text(encoding="utf-8") for gpu in ("h200", "h100")]
    return [result_of(json.loads(line)) for text in texts for line in text.splitlines()]


def speedups(sweep: str) -> SpeedupTable:
    return speedup_table(label_rows([row for row in reference_rows() if row.sweep_name == sweep]))


def speedups_of(sweep: str) -> str:
    return speedups(sweep).render("markdown")


def atlas_in_short() -> str:
    made = speedups("atlas-h100")
    made.metrics = ["speedup"]
    made.rows = [row for row in made.rows if row.metric == "speedup" and row.labels["bs"] == 1]
    return made.wide(best=False).render("markdown")


def claims() -> str:
    found = json.loads((ROOT / "experiments" / "verdicts-h200.json").read_text(encoding="utf-8"))
    rows = []
    for row in found:
        measured = row["measured"]
        figure = figure_text(
            measured.get("value"),
            measured.get("low"),
            measured.get("high"),
            measured.get("unit") or "",
        )
        rows.append([row["claim"], row["statement"], row["verdict"], figure])
    return table(["claim", "statement", "verdict on an H200", "measured"], rows)


# --- notebooks


def notebook(name: str) -> str:
    """Return the cells behind the title cell as Markdown."""
    cells = json.loads((ROOT / "docs" / name).read_text(encoding="utf-8"))["cells"][1:]
    return "\n".join(part for cell in cells for part in cell_parts(cell))


def cell_parts(cell: Mapping[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    yield f"{source}\n" if cell["cell_type"] == "markdown" else f"```python\n{source}\n```\n"
    for output in cell.get("outputs", ()):
        if image := output["data"].get("image/png"):
            yield f"![Output of the cell above](data:image/png;base64,{image.strip()})\n"
        else:
            yield f"```\n{''.join(output['data']['text/plain'])}\n```\n"


TABLES: dict[str, Callable[[], str]] = {
    "view": view,
    "trial": lambda: columns(dict(schema.TRIAL.columns)),
    "settings": lambda: table(["setting", "type", "default", "meaning"], settings()),
    "groups": groups,
    "protocols": protocols,
    "models": models,
    "modes": modes,
    "checks": checks,
    "status_changes": status_changes,
}
SWEEPS = (
    "atlas",
    "atlas-h100",
    "autotuned-h100",
    "autotuned-h200",
    "compiled-graphs",
    "graphs-h200",
)
MEASURED: dict[str, Callable[[], str]] = {
    **{name: partial(speedups_of, name) for name in SWEEPS},
    "small-models": partial(speedups_of, "h200"),
    "atlas-in-short": atlas_in_short,
    "claims": claims,
}
MAKERS: dict[str, Callable[[str], str]] = {
    "table": lambda name: TABLES[name](),
    "options": options,
    "reference": lambda name: MEASURED[name](),
    "file": lambda name: f"```yaml\n{(ROOT / 'docs' / name).read_text(encoding='utf-8')}```\n",
    "notebook": notebook,
}


def refreshed(text: str) -> str:
    """Return a page with its tables brought up to date."""
    return STORED.sub(lambda found: f"{found[1]}{MAKERS[found[2]](found[3])}{found[4]}", text)


if __name__ == "__main__":
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        page.write_text(refreshed(page.read_text(encoding="utf-8")), encoding="utf-8")
