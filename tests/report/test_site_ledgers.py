"""What the pages of history, claims, failures and environments say is what the database holds."""

from __future__ import annotations

import json
import math

import ledger_sweeps as sweeps
import pytest
from browsing import EVIL
from made_sweeps import a_cell, copied, environment, template

from effbench.commands import ledgers
from effbench.commands.material import gather
from effbench.comparison.compare import compare_sweeps
from effbench.comparison.settings import read
from effbench.comparison.verdicts import Verdict
from effbench.report import comparison
from effbench.report.history_table import read as read_history
from effbench.report.site import past as past_module
from effbench.report.site.build import environment as templates
from effbench.report.site.build import write_site
from effbench.report.site.changed import Changes, changed
from effbench.report.site.pages import claims, environments, failures, history
from effbench.report.site.past import Lines, files_of, line_id, number, places_of, state_of
from effbench.store import Store


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return sweeps.fill(tmp_path_factory.mktemp("ledgers"))


@pytest.fixture(scope="module")
def material(made):
    with Store.open(made[0].path) as store:
        return gather(store, str(made[0].path))


@pytest.fixture(scope="module")
def results(made):
    with Store.open(made[0].path) as store:
        return store.results()


def text(cell):
    return cell["t"] if isinstance(cell, dict) else cell


# --- history ---


def test_every_figure_of_every_result_is_in_a_line(material, results):
    past = material.history
    lines = Lines(past)
    ids = [sweep["id"] for sweep in past.series.sweeps]
    found = {}
    for track in past.tracks:
        line = lines.line(track)
        for place, at in enumerate(line["at"]):
            found[ids[at], track.cell_key] = (line, place)
    assert len(found) == len(results)
    for row in results:
        line, place = found[row["sweep_id"], row["cell_key"]]
        assert line["trials"][place] == row["trials"]
        assert line["status"].get(place, ["ok"])[0] == row["status"]
        for name, values in line["values"].items():
            expected = row[name]
            assert values[place] == (expected if expected is None else pytest.approx(expected, rel=1e-6))
        low, high = line["bounds"]["latency_ms"]
        if row["latency_ci_low_ms"] is None:
            assert low[place] is high[place] is None
        else:
            bounds = (row["latency_ci_low_ms"], row["latency_ci_high_ms"])
            assert (low[place], high[place]) == pytest.approx(bounds, rel=1e-6)


def test_a_line_breaks_where_the_environment_changed_and_nowhere_else(material):
    lines = Lines(material.history)
    for track in material.history.tracks:
        assert list(lines.line(track)["breaks"]) == [sweeps.UPDATE]
    assert len(lines.texts) == 1 and "torch 2.12.0 -> 2.13.0" in lines.texts[0]


def test_files_hold_each_line_once(material, monkeypatch):
    monkeypatch.setattr(past_module, "POINTS_A_FILE", 2 * sweeps.SWEEPS)
    parts = list(files_of(material.history))
    assert [len(part) for part in parts] == [2, 2, 2]
    assert [track for part in parts for track in part] == material.history.tracks


def test_changes_are_those_of_the_command(made, material):
    with Store.open(made[0].path) as store:
        table = read_history(store, material.history.metrics, everything=True)
    grid = history.changes_grid(material.history, material.history.table.found.events)
    assert [row[-1] for row in grid.rows] == [table.short[event.id] for event in table.found.events]
    by_id = {row[-1]: [text(cell) for cell in row] for row in grid.rows}
    events = table.found.events
    slower = next(event for event in events if event.series.metric == "latency_ms")
    row = by_id[table.short[slower.id]]
    assert row[0] == "▲ slower" and row[3] == f"{slower.ratio:.3f}×" and slower.ratio == pytest.approx(1.1, rel=1e-3)
    assert row[5].startswith(f"v{sweeps.STEP} ") and row[6] == "open"
    states = sorted(state_of(event) for event in events if event.kind == "broken")
    assert states == ["acknowledged", "open", "open"]


def test_places_are_counted(material):
    (place,) = places_of(material.history)
    assert (place["place"], place["cells"], place["sweeps"]) == ("NVIDIA H200", 6, sweeps.SWEEPS)
    alarms = [event for event in material.history.table.found.events if event.alarms]
    assert place["open"] == len(alarms) > 0


def test_what_is_no_change_of_level_is_listed_too(tmp_path):
    made = copied(template(tmp_path), tmp_path / "flapping.db")
    old, young = a_cell("eager"), a_cell("default")
    for position in range(12):
        plan = {old: {"kernels": 12 + position % 2}}
        made.sweep(plan | ({young: {}} if position > 10 else {}), label=f"v{position}")
    with Store.open(made.path) as store:
        rows = history.other_rows(gather(store, "made").history)
    found = [(row[0], row[2], row[3]) for row in rows]
    assert ("flapping", "NVIDIA H200", "kernels") in found and found[0][0] == "new"


@pytest.mark.parametrize(("value", "expected"), [
    (None, None), (math.nan, None), (math.inf, None), (3, 3), (2**62, 2**62), (1.23456789, 1.234568), (0.0, 0.0),
])  # fmt: skip
def test_numbers_of_a_file(value, expected):
    assert number(value) == expected


def test_a_single_sweep_says_what_history_will_show(tmp_path):
    made = copied(template(tmp_path), tmp_path / "one.db")
    made.sweep({a_cell(): {"flops": 1e9, "min_bytes": 1e6}})
    with Store.open(made.path) as store:
        written = write_site(gather(store, "made"), tmp_path / "site")
    html = (tmp_path / "site" / "history.html").read_text(encoding="utf-8")
    assert "There is one sweep, so there is no history yet" in html
    assert not [name for name in written.written if name.startswith("data/history-lines")]


def test_an_empty_database_has_all_pages(tmp_path):
    path = template(tmp_path)
    with Store.open(path) as store:
        write_site(gather(store, "made"), tmp_path / "site")
    pages = {name: (tmp_path / "site" / f"{name}.html").read_text() for name in ("history", "claims", "environments")}
    assert "Nothing has a history yet" in pages["history"]
    assert "Nothing was measured yet" in pages["claims"]
    assert "No environment is recorded yet" in pages["environments"]


# --- claims ---


def test_claims_with_their_verdicts(made, material):
    entries = material.claims
    grid = claims.grid_of(entries, material.subjects)
    assert len(grid.rows) == len(entries) > 20
    counts = claims.counts(entries)
    assert sum(counts.values()) == len(entries) and (counts["confirmed"], counts["refuted"]) == (1, 1)
    judged = {row[0]: row for row in grid.rows if text(row[2]) in ("confirmed", "refuted")}
    assert judged.keys() == {"P1", EVIL[0]}
    measured, experiment = judged["P1"][3], judged["P1"][6]
    assert (measured["t"], measured["v"], measured["s"]) == ("1.50×", 1.5, "[1.40, 1.60]")
    assert experiment["h"] == f"{material.subjects[0].slug}/speedups.html" and made[1][-1] in experiment["s"]
    published = next(entry.claim.published for entry in entries if entry.claim.id == "P1")
    assert judged["P1"][4] == published
    assert judged["P1"][5] == EVIL[0] and judged["P1"][7]["t"] == "NVIDIA H200, torch 2.13.0"


# --- failures ---


def test_failures_are_grouped_by_equal_reason_the_worst_first(material):
    measured, waiting = failures.named(material.subjects[0])
    bad = failures.worst_first(measured)
    keys = [cell.key for cell in sweeps.cells()]
    groups = failures.groups_of(bad)
    assert [(group.status, group.reason) for group in groups] == [("error", sweeps.WHY), ("oom", EVIL[1])]
    links = [f"cell.html#cell={key[:16]}" for key in keys]
    assert {link for link, _ in groups[0].cells} == {links[1], links[4]} and groups[1].cells[0][0] == links[5]
    assert failures.counts(bad) == {"error": 2, "oom": 1}
    rows = failures.bad_grid(bad).rows
    assert [text(row[0]) for row in rows] == ["error", "error", "oom"]
    assert rows[0][1]["h"] == links[1] and rows[0][-1] == sweeps.WHY
    assert [one.row["cell_key"] for one in waiting] == [keys[3]]


def test_what_is_ok_but_odd(made):
    with Store.open(made[0].path) as store:
        subject = gather(store, "made", [made[1][0]]).subjects[0]
    measured, waiting = failures.named(subject)
    assert not waiting and not failures.worst_first(measured)
    assert [(one.row["cell_key"], what, count) for one, what, count in failures.odd_rows(measured)] == [
        (sweeps.cells()[3].key, "recompiles", 2)
    ]


# --- environments ---


def test_environments_with_all_that_is_known(material):
    new, old = environments.places_of(material)
    assert (new.row["torch_version"], old.row["torch_version"]) == ("2.13.0", "2.12.0")
    assert (len(new.sweeps), len(old.sweeps)) == (sweeps.SWEEPS - sweeps.UPDATE, sweeps.UPDATE)
    facts = {(part, name): text(value) for part, name, value in environments.facts_of(new)}
    assert facts["software", "torch"] == "2.13.0" and facts["machine", "GPU"] == "NVIDIA H200"
    assert facts["ceilings", "copy_bytes_per_s"] == "4.20 TB/s" and facts["noise", "launch"] == "0.01"
    assert facts["ceilings", "flops_per_s.bfloat16"] == "700.0 TFLOP/s"
    assert ("flags", EVIL[1], EVIL[0]) in list(environments.facts_of(old))
    table = environments.all_grid([new, old], material)
    assert [text(cell) for cell in table.rows[0]][-3:] == ["4.20 TB/s", "700 TFLOP/s", "measured"]
    assert [text(cell) for cell in table.rows[1]][-3:] == ["—", "—", "—"]


def test_environments_alike_have_names_that_differ():
    rows = [{"id": name * 8, "gpu_name": "G", "torch_version": "2.13"} for name in "ab"]
    assert len(set(environments.titles(rows).values())) == 2


# --- what changed since the sweep before ---


def test_changes_since_the_sweep_before(made):
    before, after = made[1][sweeps.STEP - 1], made[1][sweeps.STEP]
    with Store.open(made[0].path) as store:
        found = changed(gather(store, "made", [after]).subjects[0].changes)
        compared = compare_sweeps(store, store.find_sweep(before), store.find_sweep(after), read())
    assert found["previous"]["id"] == before and found["why"] is None
    assert found["counts"] == {str(verdict): count for verdict, count in compared.counts.items()}
    sure = [one for one in compared.changes if one.verdict not in (Verdict.SAME, Verdict.AMBIGUOUS)]
    assert [row["metric"] for row in found["rows"]] == ["latency", "period"] and len(sure) == 2
    assert found["rows"][0]["key"] == sweeps.cells()[2].key and found["rows"][0]["ratio"].startswith("1.100 (")
    assert found["command"] == f"effbench compare {before} {after} --on 'NVIDIA H200' --db made"
    assert [line["mode"] for line in found["modes"]] == ["eager", "default", "cuda-graph"]
    for line in compared.modes:
        title = {"latency_ms": "latency", "period_ms": "period"}[line.metric]
        (shown,) = [one["figures"][title] for one in found["modes"] if one["mode"] == line.mode]
        assert shown == comparison.mean_text(line.ratio, line.low, line.high)
    short = changed(Changes({"id": before}, compared, None, after), 1)
    assert len(short["rows"]) == 1 and short["more"] == 1


def test_of_very_many_cells_the_times_alone_are_compared_and_that_is_said(made, monkeypatch):
    monkeypatch.setattr(ledgers, "MOST_CELLS", 5)
    with Store.open(made[0].path) as store:
        found = changed(gather(store, "made", [made[1][sweeps.STEP]]).subjects[0].changes)
    assert found["only"] == ["latency", "period"] and sum(found["counts"].values()) == 12
    assert "only latency, period and statuses were" in drawn(found)


def test_a_first_sweep_has_nothing_before_it(made):
    with Store.open(made[0].path) as store:
        found = changed(gather(store, "made", [made[1][0]]).subjects[0].changes)
    assert found["previous"] is None and "No earlier sweep measured any of these cells on NVIDIA H200" in found["why"]


def test_what_cannot_be_compared_says_why(tmp_path):
    made = copied(template(tmp_path), tmp_path / "two.db")
    places = [environment(flags={"interpreter": f"/{name}/bin/python"}) for name in "ab"]
    for _ in range(2):
        sweep = made.sweep([a_cell()], env=places[0])
        made.sweep([a_cell()], env=places[1], into=sweep)
    with Store.open(made.path) as store:
        found = changed(gather(store, "made").subjects[0].changes)
    assert found["previous"] is not None and "2 kinds of hardware or interpreters" in found["why"]
    assert found["rows"] == []


def drawn(found):
    macro = templates().from_string(
        '{% import "parts.html.j2" as parts %}{% from "changed.html.j2" import changes %}'
        '{{ changes(found, "x/cell.html", parts) }}'
    )
    return macro.render(found=found)


def test_changes_as_html(made):
    with Store.open(made[0].path) as store:
        subjects = [gather(store, "made", [made[1][at]]).subjects[0] for at in (0, sweeps.STEP, sweeps.BREAK)]
    first, slower, broken = (drawn(changed(one.changes)) for one in subjects)
    assert "No earlier sweep measured" in first
    assert f'href="x/cell.html#cell={sweeps.cells()[2].key}"' in slower and "▲ slower" in slower
    assert "✗ broken" in broken and "<img" not in broken and "&lt;img" in broken


def test_a_mode_without_a_cell_to_compare_has_its_line(tmp_path):
    made = copied(template(tmp_path), tmp_path / "modes.db")
    eager, graph = a_cell(), a_cell("cuda-graph")
    made.sweep([eager, graph])
    made.sweep({eager: {}, graph: {"status": "degraded", "reason": "CUDA graphs skipped"}})
    with Store.open(made.path) as store:
        found = changed(gather(store, "made").subjects[0].changes)
    line = {one["mode"]: one for one in found["modes"]}["cuda-graph"]
    assert (line["cells"], line["figures"]["latency"]) == (0, "–")
    row = drawn(found).split("cuda-graph</")[-1].split("</tr>")[0]
    assert '<td class="num">—</td>' in row and '<td class="num">0</td>' in row


def test_the_files_are_whole_scripts(tmp_path, material):
    written = write_site(material, tmp_path)
    index = json.loads(script(tmp_path / "data" / "history-index.js"))
    track = material.history.tracks[0]
    facts = index["lines"][line_id(track.cell_key, track.place)]
    assert facts[1] == material.history.table.names[track.cell_key] and facts[6] == len(track.rows)
    line = json.loads(script(tmp_path / "data" / f"history-lines-{facts[0]}.js"))[line_id(track.cell_key, track.place)]
    assert line["at"] == track.positions
    assert all(size < 5e6 for name, size in written.written.items() if not name.startswith("assets/"))


def script(path):
    return path.read_text(encoding="utf-8").removeprefix("effbench.put(").rstrip().removesuffix(");")
