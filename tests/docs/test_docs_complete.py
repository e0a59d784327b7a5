"""Everything that a user can type or read is documented, and links lead somewhere. What exists is asked of the code."""

from __future__ import annotations

import re

import pages
import pytest
import yaml

import effbench
from effbench import cli, errors, streams
from effbench.buckets import PRESETS
from effbench.cell import SEVERITY, mode_settings
from effbench.metrics import METRICS
from effbench.models.spec import KEYS
from effbench.store import schema
from effbench.sweeping import client

GENERATE = pages.script("generate")
TABLES = schema.Base.metadata.tables.values()
BUCKETED = mode_settings(yaml.safe_load((cli.config_folder() / "mode" / "bucketed-graph.yaml").read_text()))


def test_generated_tables_are_up_to_date_and_complete():
    used = []
    for page, text in pages.pages().items():
        assert GENERATE.updated(text) == text, f"{page}: run python docs/generate.py"
        for name, body in GENERATE.TABLE.findall(text):
            used.append(name)
            for line in body.splitlines()[2:] if name not in ("models", "modes") else ():  # these may need nothing
                assert GENERATE.cells_of(line)[-1], f"{page}: write the meaning of {GENERATE.cells_of(line)[0]}"
    assert sorted(used) == sorted(GENERATE.TABLES)


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_subcommands_and_their_options(command):
    text = pages.pages()["commands.md"]
    section = re.search(rf"^### {command}\n(.*?)(?=^##)", text, re.M | re.S)
    assert section, f"no section for {command}"
    assert f"```sh\neffbench {command}" in section[1], "no example"
    for action in pages.parser_of(command)._actions:
        for option in action.option_strings:
            if option not in ("-h", "--help"):
                assert f"`{option}" in section[1], f"{command} {option}"
        for choice in action.choices or ():
            if choice not in METRICS:
                assert f"`{choice}`" in section[1], f"{command} {action.dest}={choice}"


def exceptions():
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]


def in_source(pattern, below="effbench"):
    """What a pattern finds in the code."""
    sources = [path.read_text(encoding="utf-8") for path in (pages.ROOT / below).rglob("*.py")]
    return {name for source in sources for name in re.findall(pattern, source)}


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("commands.md", {"0", "1", str(cli.INTERRUPTED), *(str(kind.exit_code) for kind in exceptions())}),
        ("settings.md", {*GENERATE.setting_names(), *in_source(r"os\.environ\.get\(\"(\w+)\"")}),
        ("models.md", set(KEYS)),
        ("measuring.md", {*SEVERITY, *in_source(r'run\.phase\("(\w+)"\)', "effbench/worker")}),
        ("results.md", {*schema.RESULT_COLUMNS, *(column.name for table in TABLES for column in table.columns)}),
        ("streams.md", {*PRESETS, *streams.KINDS, *BUCKETED}),
    ],
)
def test_every_name_is_in_a_table_of_its_page(page, names):
    assert names and names <= pages.rows(page).keys()


def test_public_names_and_variables_that_are_set():
    text = pages.pages()["commands.md"]
    assert [name for name in effbench.__all__ if not re.search(rf"`(effbench\.)?{name}\b", text)] == ["__version__"]
    assert {kind.__name__ for kind in exceptions()} <= set(effbench.__all__) | {"MessageError"}
    set_here = in_source(r"os\.environ(?:\.setdefault\(|\[)\"(\w+)\"") - {"HYDRA_FULL_ERROR"}
    assert all(name in pages.pages()["settings.md"] for name in (*set_here, *client.SERVER_ENVIRONMENT))


LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")


def anchors(text: str) -> set[str]:
    """Anchors of the headings as they are made for Markdown on the web."""
    headings = re.findall(r"^#+ (.*)$", pages.outside_blocks(text), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere_and_the_index_has_every_page():
    assert set(LINK.findall(pages.pages()["README.md"])) == set(pages.pages()) - {"README.md"}
    for page, text in pages.pages().items():
        for link in LINK.findall(pages.outside_blocks(text)):
            assert "://" not in link, "pages link to each other only"
            target, _, anchor = link.partition("#")
            path = pages.DOCS / (target or page)
            assert path.is_file(), path
            assert not anchor or anchor in anchors(path.read_text(encoding="utf-8")), anchor


def test_pages_name_no_machine_and_no_issue():
    for page, text in pages.pages().items():
        assert not re.search(r"(?<![\w.$~])/(work|home|root|opt|tmp|venvs)\b", text), page
        assert not re.search(r"(^|\s)#\d+\b", text), page
