"""Everything that a user can type or read is documented, and links lead somewhere. What exists is
asked of the code."""

from __future__ import annotations

import re
import subprocess
import sys

import pages
import pytest
import yaml

import effbench
from effbench.cli import main as cli
from effbench.core import errors, streams
from effbench.core.buckets import PRESETS
from effbench.core.cell import SEVERITY, mode_settings
from effbench.models.spec import KEYS
from effbench.run import client
from effbench.store import schema

TABLES = pages.tables()
BUCKETED = mode_settings(
    yaml.safe_load((TABLES.shipped("conf") / "mode" / "bucketed-graph.yaml").read_text())
)


def exceptions():
    return [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ]


def in_source(pattern, below="effbench"):
    """What a pattern finds in the code."""
    sources = [path.read_text(encoding="utf-8") for path in (pages.ROOT / below).rglob("*.py")]
    return {name for source in sources for name in re.findall(pattern, source)}


@pytest.mark.parametrize(
    ("page", "names"),
    [
        (
            "reference/commands.md",
            {"0", "1", str(cli.INTERRUPTED), *(str(kind.exit_code) for kind in exceptions())},
        ),
        ("reference/settings.md", in_source(r"os\.environ\.get\(\"(\w+)\"")),
        ("how-to/your-model.md", set(KEYS)),
        (
            "reference/statuses.md",
            {*SEVERITY, *in_source(r'run\.phase\("(\w+)"\)', "effbench/worker")},
        ),
        ("how-to/serve.md", {*PRESETS, *streams.KINDS, *BUCKETED}),
    ],
)
def test_every_name_is_in_a_table_of_its_page(page, names):
    assert names and names <= pages.rows(page).keys(), names - pages.rows(page).keys()


def test_every_column_of_every_table_is_on_the_page_of_results():
    text = pages.whole_pages()["reference/results.md"]
    for row in schema.METADATA.tables.values():
        assert row.name == "result" or f"### {row.name}" in text
        assert all(f"| `{column.name}` |" in text for column in row.columns)


def test_public_names_and_variables_that_are_set():
    text = pages.pages()["reference/api.md"]
    assert [
        name
        for name in effbench.__all__
        if not re.search(rf"`(effbench\.)?{name}\b|\.{name}$", text, re.M)
    ] == ["__version__"]
    assert {kind.__name__ for kind in exceptions()} <= set(effbench.__all__) | {"MessageError"}
    set_here = in_source(r"os\.environ(?:\.setdefault\(|\[)\"(\w+)\"")
    text = pages.pages()["reference/settings.md"]
    assert all(name in text for name in (*set_here, *client.SERVER_ENVIRONMENT))


def test_the_site_builds_without_a_warning(tmp_path):
    # not --quiet, with which --strict counts no warnings
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    done = subprocess.run(command, cwd=pages.ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "reference" / "results" / "index.html").read_text(encoding="utf-8")
    assert "<td>" in page and "peak_reserved_bytes" in page


def test_every_page_is_in_the_navigation():
    listed = re.findall(
        r": ([\w/-]+\.md)$", (pages.ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M
    )
    assert sorted(listed) == sorted(page for page in pages.pages() if not page.startswith(".."))


def test_pages_name_no_machine_and_no_issue():
    for page, text in pages.pages().items():
        assert not re.search(r"(?<![\w.$~])/(work|home|root|opt|tmp|venvs)\b", text), page
        assert not re.search(r"(^|\s)#\d+\b", text), page


def test_the_documentation_is_short():
    """Reference tables are generated and not counted."""
    words = sum(len(text.split()) for text in pages.pages().values())
    assert words <= 23_000
