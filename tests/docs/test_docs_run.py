"""What the pages show is really done: sweeps of own models and modes, Python, SQL, refusals, a
figure, a command."""

from __future__ import annotations

import re
import sqlite3
import tempfile
from contextlib import closing

import pages
import pytest

import effbench
from effbench.cli import main as cli
from effbench.render.site.pages import charts
from effbench.store import Store

PAGES = ("how-to/your-model.md", "how-to/train.md", "reference/modes.md", "reference/extending.md")
FAST = [
    "protocol.budget_s=0.05",
    "protocol.min_time_s=0",
    "protocol.warmup_s=0.01",
    "protocol.rounds=1",
    "device=cpu",
    "protocol.host_tolerance=1000",
]


@pytest.fixture(scope="module")
def here(tmp_path_factory, inductor_cache, workshop, on_shared_server):
    """A folder with the files that the pages show, as the working directory; the fork server of all
    sweeps finds them too."""
    folder = tmp_path_factory.mktemp("run")
    for place in (folder, workshop.folder):
        pages.write_files(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(tempfile, "tempdir", str(folder))  # locks: no other effbench keeps us waiting
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", inductor_cache)
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        with on_shared_server():
            yield folder


def sweeps(page):
    """The page's sweeps over own files, tiny or torch's modules: those that are quick on a CPU."""
    lines = [line for found, line in pages.commands() if found == page]
    return [
        line for line in lines if re.search(r"model=(tiny|score|custom)\b", line) and " -m " in line
    ]


@pytest.mark.parametrize(
    "line",
    [
        # that compiles
        pytest.param(line, marks=pytest.mark.slow if "mode=default" in line else ())
        for line in (line for page in PAGES for line in sweeps(page))
    ],
)
def test_own_models_and_modes_run(line, here):
    words = [word for word in pages.arguments(line) if not word.startswith("protocol")]
    found = effbench.sweep([*words, *FAST]).results()
    assert set(found["status"]) == {"ok"}, found["reason"].tolist()


def run_sql(query):
    with closing(sqlite3.connect("results/effbench.db")) as connection:
        return connection.execute(query).fetchall()


@pytest.fixture(scope="module")
def results(here):
    """A database with two ok results and a failed one of `tiny` in the working directory. The mode
    of the name `default` compiles nothing."""
    default = "{name:default,_target_:effbench.modes.eager.Eager}"
    effbench.sweep(["model=tiny", f"mode=eager,{default},cuda-graph", "sweep.name=modes", *FAST])
    return here


@pytest.mark.parametrize(
    "query", [block.text for block in pages.blocks("sql") if block.page == "reference/results.md"]
)
def test_sql(query, results):
    assert run_sql(query)


SNIPPETS = [block for block in pages.blocks("python") if not pages.FILE.match(block.text)]


@pytest.mark.parametrize("block", SNIPPETS, ids=lambda block: block.page)
def test_python(block, results, capsys):
    names = {}
    exec(block.text, names)
    assert all(len(value) for name, value in names.items() if name in ("frame", "samples"))


@pytest.mark.parametrize(("command", "said"), pages.refusals())
def test_refusals_say_what_the_page_says(command, said, here, capsys):
    assert cli.run(pages.arguments(command)) == 2
    assert capsys.readouterr().err == said


def test_the_figure_is_on_the_site(results, tmp_path, monkeypatch, capsys):
    (block,) = [block for block in SNIPPETS if "FIRST_CALL" in block.text]
    names = {}
    exec(block.text, names)
    monkeypatch.setattr(charts, "PLOTS", (*charts.PLOTS, names["FIRST_CALL"]))
    assert cli.run(["report", "--out", str(tmp_path / "site")]) == 0
    (page, *_) = (tmp_path / "site").glob("*/charts.html")
    assert "Preparation and first call together." in page.read_text(encoding="utf-8")


def test_documented_reasons_are_reasons(results):
    rows = pages.rows("how-to/troubleshoot.md")
    with Store.open("results/effbench.db") as store:
        rated = {row.reason: row.status for row in store.results() if row.reason}
    assert rated, "the sweep has an unsupported cell"
    for reason, status in rated.items():
        assert rows[reason][0] == f"`{status}`"
