"""Everything that a user can type or read is documented. What exists is asked of the code."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import re

import pages
import pytest

import effbench
from effbench import cli, errors
from effbench.cell import SEVERITY, Status
from effbench.metrics import METRICS
from effbench.models.spec import KEYS
from effbench.store import schema
from effbench.sweeping import client

GENERATE = pages.generator()


def test_generated_tables_are_up_to_date_and_complete():
    used = []
    for page, text in pages.pages().items():
        assert GENERATE.updated(text) == text, f"{page}: run python docs/generate.py"
        for name, body in GENERATE.TABLE.findall(text):
            used.append(name)
            for line in body.splitlines()[2:] if name not in ("models", "modes") else ():  # these may need nothing
                assert GENERATE.cells_of(line)[-1], f"{page}: write the meaning of {GENERATE.cells_of(line)[0]}"
    assert sorted(used) == sorted(GENERATE.TABLES)


def test_hand_written_cells_survive_and_new_rows_appear():
    before = "| table | x |\n| --- | --- |\n| `position` | | | place |\n| `gone` | | | away |\n"
    after = GENERATE.rendered("sweep_cell", before)
    assert "| `position` | integer |  | place |" in after and "| `cell_key` | text |  |  |" in after
    assert "gone" not in after


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_subcommands_and_their_options(command):
    text = pages.pages()["commands.md"]
    section = re.search(rf"^### {command}\n(.*?)(?=^##)", text, re.M | re.S)
    assert section, f"no section for {command}"
    assert f"```sh\neffbench {command}" in section[1], "no example"
    parser = argparse.ArgumentParser()
    importlib.import_module(f"effbench.commands.{cli.COMMANDS[command]}").add_arguments(parser)
    for action in parser._actions:
        for option in action.option_strings:
            if option not in ("-h", "--help"):
                assert f"`{option}" in section[1], f"{command} {option}"
        for choice in action.choices or ():
            if choice not in METRICS:
                assert f"`{choice}`" in section[1], f"{command} {action.dest}={choice}"


def test_exit_codes():
    codes = {0, 1, cli.INTERRUPTED, *(kind.exit_code for kind in exceptions())}
    assert codes == {int(key) for key in pages.rows("commands.md") if key.isdigit()}


def exceptions():
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]


def test_public_names():
    text = pages.pages()["commands.md"]
    assert [name for name in effbench.__all__ if not re.search(rf"`(effbench\.)?{name}\b", text)] == ["__version__"]
    assert {kind.__name__ for kind in exceptions()} <= set(effbench.__all__) | {"MessageError"}


def test_settings():
    rows = pages.rows("settings.md")
    assert set(GENERATE.setting_names()) <= rows.keys()


def test_groups_and_their_options():
    tables = dict(GENERATE.TABLE.findall(pages.pages()["settings.md"]))
    for folder in (path for path in cli.config_folder().iterdir() if path.is_dir()):
        listed = next(line for line in tables["groups"].splitlines() if line.startswith(f"| `{folder.name}` "))
        for path in folder.glob("*.yaml"):
            assert f"`{path.stem}`" in listed


def test_models_modes_and_protocols():
    for group, page in [("model", "models.md"), ("mode", "modes.md"), ("protocol", "measuring.md")]:
        text = pages.pages()[page]
        headings = re.split(r"[, ]+", " ".join(re.findall(r"^## (.*)$", text, re.M)))
        for path in (cli.config_folder() / group).glob("*.yaml"):
            assert f"`{path.stem}`" in text and (group != "mode" or path.stem in headings), path.stem


def test_statuses_in_the_order_of_severity():
    order = [name for name in pages.rows("measuring.md") if name in set(Status)]
    assert order == list(SEVERITY) and set(order) == set(Status)


def test_phases_of_a_trial():
    rows = pages.rows("measuring.md")
    source = (pages.ROOT / "effbench" / "worker" / "trial.py").read_text(encoding="utf-8")
    for phase in re.findall(r'run\.phase\("(\w+)"\)', source):
        assert phase in rows, phase


def test_tables_and_columns():
    rows = pages.rows("results.md")
    for table in schema.Base.metadata.tables.values():
        assert re.search(rf"^### .*\b{table.name}\b", pages.pages()["results.md"], re.M), table.name
        for column in table.columns:
            assert column.name in rows, f"{table.name}.{column.name}"
    for name in schema.RESULT_COLUMNS:
        assert name in rows, name


def test_input_keys():
    assert set(KEYS) <= pages.rows("models.md").keys()


def test_environment_variables():
    rows = pages.rows("settings.md")
    text = pages.pages()["settings.md"]
    for path in (pages.ROOT / "effbench").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        for name in re.findall(r"os\.environ\.get\(\"(\w+)\"", source):
            assert name in rows, f"{name} is read in {path.name}"
        for name in re.findall(r"os\.environ(?:\.setdefault\(|\[)\"(\w+)\"", source):
            assert name == "HYDRA_FULL_ERROR" or name in text, f"{name} is set in {path.name}"
    for name in client.SERVER_ENVIRONMENT:
        assert name in text, name


def test_tolerances():
    from effbench.measure.accuracy import TOLERANCES

    text = pages.pages()["measuring.md"]
    table = re.search(r"^\| dtype of the output \|(.*)\n.*\n\| tolerance \|(.*)$", text, re.M)
    names, values = ([cell.strip() for cell in line.strip().strip("|").split("|")] for line in table.groups())
    found = dict(zip(names, map(float, values), strict=True))
    assert found == {str(dtype).removeprefix("torch."): value for dtype, value in TOLERANCES.items()}


def test_a_metric_has_all_its_places():
    """What extending.md lists is where an existing metric is found."""
    from effbench.cell import Trial

    name = "rel_error"
    assert name in {field.name for field in dataclasses.fields(Trial)}
    for table in (schema.TrialRow.__table__, schema.ResultRow.__table__, schema.RESULTS):
        assert name in table.columns
    assert name in METRICS
    text = pages.pages()["extending.md"]
    for place in re.findall(r"`((?:effbench|docs)/[\w./]+)`", text):
        exists = (pages.ROOT / place).exists() or place in pages.files()
        assert exists, f"{place} is not there"
