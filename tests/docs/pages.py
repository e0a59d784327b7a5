"""The pages of docs/ as the tests read them: text, links, tables, commands and the files that they
show."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from effbench.cli import main as cli

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
GENERATED = re.compile(r"(<!-- (?:table|options|reference|file) \S+ -->\n).*?<!-- end -->\n", re.S)
FILE = re.compile(r"^# ([\w./+-]+\.(?:py|yaml))\n")


@dataclass(frozen=True)
class Block:
    """A fenced block; `language` as it is written after the fence."""

    page: str
    language: str
    text: str


def pages() -> dict[str, str]:
    """Path below docs/ -> text without generated tables; README.md of the repository is
    `../README.md`."""
    return {page: GENERATED.sub(r"\1", text) for page, text in whole_pages().items()}


def whole_pages() -> dict[str, str]:
    paths = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    return {os.path.relpath(path, DOCS): path.read_text(encoding="utf-8") for path in paths}


def blocks(*languages: str) -> list[Block]:
    return [
        Block(page, language, text)
        for page, whole in pages().items()
        for language, text in FENCE.findall(whole)
        if not languages or language in languages
    ]


def outside_blocks(text: str) -> str:
    return FENCE.sub("", text)


def commands() -> list[tuple[str, str]]:
    """(page, command line) of every `effbench …` in a block or in inline code, without what a pipe
    does with it."""
    found = []
    for block in blocks("sh", "console"):
        lines = block.text.replace("\\\n", " ").splitlines()
        found += [
            (block.page, line.removeprefix("$ "))
            for line in lines
            if re.match(r"(\$ )?effbench ", line)
        ]
    in_blocks = len(found)
    # a refusal is tested as what it is; its block starts with `$ `
    refused = {command for command, _ in refusals()}
    for page, text in pages().items():
        found += [
            (page, " ".join(code.split()))
            for code in re.findall(r"`(effbench [^`]+)`", outside_blocks(text))
        ]
    # `effbench check` in a sentence names the command
    named = {f"effbench {name}" for name in cli.COMMANDS} - {line for _, line in found[:in_blocks]}
    return [
        (page, line)
        for page, line in dict.fromkeys(found)
        if line not in refused | named and "…" not in line
    ]


def refusals() -> list[tuple[str, str]]:
    """Each command of a `console` block with what it says."""
    found = [block.text.partition("\n") for block in blocks("console")]
    return [(first.removeprefix("$ "), said) for first, _, said in found]


def arguments(command: str) -> list[str]:
    """The words after `effbench`."""
    return shlex.split(command.replace("\\|", "|"), comments=True)[1:]


def parse(words: list[str]) -> None:
    """Refuse a subcommand's words as the command would."""
    parser = cli.parser_of(words[0])
    if words[1:] != ["--help"]:
        parser.parse_args(words[1:])


def files() -> dict[str, str]:
    """Path -> text of every file that a page shows: a block whose first line is a comment with its
    path."""
    found: dict[str, str] = {}
    for block in blocks("python", "yaml"):
        if name := FILE.match(block.text):
            assert found.setdefault(name[1], block.text) == block.text, (
                f"{name[1]} differs between pages"
            )
    return found


def write_files(folder: Path) -> None:
    """Those that a user writes, in `folder`; files of effbench itself are left out."""
    for name, text in files().items():
        if not name.startswith("effbench/"):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def rows(page: str) -> dict[str, list[str]]:
    """First cell (without backticks) -> the other cells, of every table of a page."""
    found = {}
    for line in outside_blocks(pages()[page]).splitlines():
        if line.startswith("|"):
            first, *rest = re.split(r"(?<!\\)\|", line.strip().strip("|"))
            for name in re.findall(r"`([^`]+)`", first) or [first.strip()]:
                found[name] = [cell.strip() for cell in rest]
    return found


def tables() -> ModuleType:
    """docs/tables.py as a module."""
    spec = importlib.util.spec_from_file_location("docs_tables", DOCS / "tables.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
