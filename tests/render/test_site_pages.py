"""What the pages of history and claims and the overview show is what the database holds."""

import json

import claim_sweeps as sweeps
import pytest
import synthetic as make
from browsing import EVIL, device_sweep, page_of, report_of, site
from made_sweeps import a_cell, copied, environment, template

from effbench.analysis.history import read as read_history
from effbench.claims.definition import shipped_verdicts
from effbench.core.metrics import bounds_of
from effbench.render import data
from effbench.render.claims import claims_table
from effbench.render.comparison import table_of
from effbench.render.history_table import lead
from effbench.render.site import cell_data
from effbench.render.site.build import environment as templates
from effbench.render.site.build import write_site
from effbench.render.site.pages import failures
from effbench.render.site.pages.history import line as line_of
from effbench.store import Store


@pytest.fixture
def made(claims_site):
    return claims_site[:2]


@pytest.fixture
def report(claims_site):
    return claims_site[2]


def test_modes_are_in_order_so_that_two_reports_are_equal(report, tmp_path):
    write_site(report, tmp_path)
    text = (tmp_path / "data" / "history-index.js").read_text()
    modes = json.loads(text[text.index("{") : text.rindex("}") + 1])["modes"]
    assert len(modes) > 2
    assert list(modes) == sorted(modes)


def near(figure):
    return None if figure is None else pytest.approx(figure, rel=1e-6)


def test_every_figure_of_every_result_is_in_a_line(made, report):
    past = report.history
    places = {}
    for track in past.tracks:
        line = line_of(past, track, [])
        for place, at in enumerate(line["at"]):
            places[past.sweeps[at].id, track.cell_key] = (line, place)
    with Store.open(made[0].path) as store:
        results = store.results()
    assert len(places) == len(results)
    for row in results:
        line, place = places[row.sweep_id, row.cell_key]
        assert line["trials"][place] == row.trials
        assert line["status"].get(place, {"status": "ok"})["status"] == row.status
        for name, figures in line["figures"].items():
            assert figures["values"][place] == near(row.value(name))
            if "low" in figures:
                bounds = figures["low"][place], figures["high"][place]
                assert bounds == tuple(map(near, bounds_of(row, name)))


def test_the_worst_change_leads(report):
    past = report.history
    worst = past.open_changes[0]
    name = past.names[worst.track.cell_key]
    assert f"{name}: {worst.metric} {worst.word}" in lead(past)


def test_an_error_leaves_no_overview(made, effbench, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cell_data, "entry", fail)
    done = effbench("report", "--db", str(made[0].path), "--out", str(tmp_path / "site"))
    assert done.code == 2
    assert done.out == ""
    assert "No space left on device" in done.err
    assert not (tmp_path / "site" / "index.html").exists()


def test_a_large_database_has_a_history_of_its_newest_sweeps(made, tmp_path, monkeypatch):
    for most, kept in ((0, 1), (16, 2), (17, 3)):
        with Store.open(made[0].path) as store:  # 6 cells, and 5 in the newest sweep
            past = read_history(store, most=most)
        assert {past.sweeps[point.at].id for point in past.points} == set(made[1][-kept:])
        assert past.older == sweeps.SWEEPS - kept
    monkeypatch.setattr(data, "MOST_RESULTS", 30)
    write_site(report_of(made[0].path), tmp_path)
    page = (tmp_path / "history.html").read_text()
    assert (
        "sweeps: 5 · 4 older sweeps are left out; <code>effbench history</code> covers all" in page
    )


def test_pages_without_history(tmp_path):
    made = copied(template(), tmp_path / "one.db")
    for said in (
        "no sweep in this database has a result",
        "no cell was measured in two sweeps",
        "No series to judge yet",
    ):
        write_site(report_of(made.path), tmp_path / "site")
        html = (tmp_path / "site" / "history.html").read_text()
        assert said in html
        assert "What changed" not in html
        made.sweep([a_cell()])


def test_the_page_of_claims_counts_them(claims_site):
    html = (claims_site[3] / "claims.html").read_text(encoding="utf-8")
    published = f"{len(shipped_verdicts())} published claims about CUDA graphs and torch.compile"
    assert f"{published} and 1 of your own" in html


def test_a_claim_that_was_judged_here(made, report):
    newest = made[1][-1]
    table = claims_table(report.claims)
    (row,) = [row for row in table.rows if row["claim"] == "P1"]
    shown = {column.key: column.shown(row) for column in table.columns}
    assert shown["measured"].text == "1.50× [1.40, 1.60]"
    assert shown["measured"].value == 1.5
    assert newest in shown["experiment"].details


def cells_of(table):
    return [[column.shown(row) for column in table.columns] for row in table.rows]


def test_failures_by_reason_the_worst_first(report):
    keys = [cell.key[:16] for cell in sweeps.cells()]
    rows = cells_of(failures.failures_table(report.device_sweeps[0], "x/"))
    assert [(status.href, cells.value, reason.value) for status, cells, reason, _ in rows] == [
        ("x/cell.html#status=error", 2, sweeps.WHY),
        ("x/cell.html#status=oom", 1, EVIL[1]),
    ]
    links = [example.href for *_, example in rows]
    assert links == [f"x/cell.html#cell={keys[1]}", f"x/cell.html#cell={keys[5]}"]


def test_the_head_of_a_sweep_has_all_facts_of_its_environment(report, claims_site):
    own = report.device_sweeps[0]
    html = page_of(claims_site[3], own, "cell").read_text(encoding="utf-8")
    assert "NVIDIA H200 · driver" in html
    assert "torch 2.13.0" in html
    assert "<dt>cpu_name</dt>" in html
    assert "<dt>platform</dt>" in html


def test_environments_of_one_interpreter_share_the_plan(tmp_path):
    made = copied(template(), tmp_path / "shared.db")
    here, there, missing = a_cell("mlp"), a_cell("gpt"), a_cell("vit")
    sweep = made.sweep({here: {}, there: None, missing: None})
    made.sweep([there], env=environment(cpu_name="EPYC"), into=sweep)
    unmeasured = [own.unmeasured for own in report_of(made.path).device_sweeps]
    assert unmeasured == [[missing.key]]


def changed(path, sweep_id):
    """Return the changes of a sweep, their table, and their part of the page."""
    changes = report_of(path, [sweep_id]).device_sweeps[0].changes
    table = table_of(changes.significant, "x/cell.html")
    macro = (
        '{% from "changed.html.j2" import show_changes with context %}'
        "{{ show_changes(changes, table, after) }}"
    )
    after = {"id": sweep_id}
    return changes, table, templates().from_string(macro).render(**locals())


def test_changes_since_the_sweep_before_have_links(made):
    path = made[0].path
    before, after = made[1][sweeps.STEP - 1 : sweeps.STEP + 1]
    changes, table, html = changed(path, after)
    assert changes.previous.id == before
    assert [row["metric"] for row in table.rows] == ["latency_ms", "period_ms"]
    assert f'href="x/cell.html#cell={sweeps.cells()[2].key}"' in html
    assert "▲ slower" in html


def test_the_first_sweep_has_no_changes_and_names_are_escaped(made):
    _, _, first = changed(made[0].path, made[1][0])
    assert "No earlier sweep measured any of these cells on NVIDIA H200" in first
    _, _, broken = changed(made[0].path, made[1][sweeps.BREAK])
    assert "<img" not in broken
    assert "&lt;img" in broken


def test_what_cannot_be_compared_has_a_reason(tmp_path):
    made = copied(template(), tmp_path / "two.db")
    places = [environment(flags={"interpreter": f"/{name}/bin/python"}) for name in "ab"]
    for _ in range(2):
        sweep = made.sweep([a_cell()], env=places[0])
        made.sweep([a_cell()], env=places[1], into=sweep)
    _, _, html = changed(made.path, sweep)
    assert "cannot be compared: " in html
    assert "several kinds of hardware or interpreters" in html


ONE_TRIAL = make.row(
    mode="default",
    trials=1,
    speedup_ci_low=None,
    speedup_ci_high=None,
)
FAILED = [make.failed("mlp", 1, mode, "error", "no") for mode in ("eager", "default")]


@pytest.mark.parametrize(
    ("rows", "marks"),
    [
        ([make.row(), make.row(mode="default")], {"★", "Blue"}),
        (FAILED, set()),
        ([make.row(), ONE_TRIAL], {"Blue"}),
    ],
)
def test_captions_explain_the_marks_that_a_page_has(rows, marks, tmp_path):
    one = device_sweep(rows)
    folder = site(tmp_path, one)
    overview = (folder / "index.html").read_text().partition("<details>")[0]
    speedups = page_of(folder, one, "speedups").read_text()
    for page in (overview, speedups):
        assert {mark for mark in ("★", "Blue") if f"{mark}: " in page} == marks
