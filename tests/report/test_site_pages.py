"""What the pages of history, claims, failures and environments show is what the database holds."""

from __future__ import annotations

import claim_sweeps as sweeps
import pytest
from browsing import EVIL, content, report_of
from made_sweeps import a_cell, copied, environment, template

from effbench.comparison.compare import compare_sweeps
from effbench.comparison.limits import read as read_limits
from effbench.comparison.verdicts import Verdict
from effbench.report import comparison, data, summary
from effbench.report.history_table import read as read_history
from effbench.report.site.build import environment as templates
from effbench.report.site.build import write_site
from effbench.report.site.pages import claims, environments, failures, history, index
from effbench.report.site.pages.history import Lines, files_of, line_id, places_of, state_of
from effbench.store import Store
from effbench.table import exact


@pytest.fixture
def made(claims_site):
    return claims_site[:2]


@pytest.fixture
def report(claims_site):
    return claims_site[2]


def texts(row):
    return {key: getattr(value, "text", value) for key, value in row.items()}


# --- history ---


def test_every_figure_of_every_result_is_in_a_line(made, report):
    past = report.history
    lines, ids = Lines(past), [sweep["id"] for sweep in past.series.sweeps]
    found = {}
    for track in past.tracks:
        line = lines.line(track)
        assert list(line["breaks"]) == [sweeps.UPDATE], "the environment changed there and nowhere else"
        found |= {(ids[at], track.cell_key): (line, place) for place, at in enumerate(line["at"])}
    assert len(lines.texts) == 1 and "torch 2.12.0 -> 2.13.0" in lines.texts[0]
    with Store.open(made[0].path) as store:
        results = store.results()
    assert len(found) == len(results)
    for row in results:
        line, place = found[row["sweep_id"], row["cell_key"]]
        assert line["trials"][place] == row["trials"] and line["status"].get(place, ["ok"])[0] == row["status"]
        shown = {name: values[place] for name, values in line["values"].items()}
        assert shown == {name: pytest.approx(row[name], rel=1e-6) if row[name] is not None else None for name in shown}
        known = [row["latency_ci_low_ms"], row["latency_ci_high_ms"]]
        bounds = [side[place] for side in line["bounds"]["latency_ms"]]
        assert bounds == known if None in known else bounds == pytest.approx(known, rel=1e-6)


def test_files_hold_each_line_once(report, monkeypatch):
    monkeypatch.setattr(history, "POINTS_A_FILE", 2 * sweeps.SWEEPS)
    parts = list(files_of(report.history))
    assert [len(part) for part in parts] == [2, 2, 2]
    assert [track for part in parts for track in part] == report.history.tracks


def test_changes_are_those_of_the_command(made, report):
    with Store.open(made[0].path) as store:
        table = read_history(store, report.history.metrics, everything=True)
    events = table.found.events
    rows = [texts(row) for row in history.changes_table(report.history, report.history.table.found.events).rows]
    assert [row["id"] for row in rows] == [table.short[event.id] for event in events]
    slower = next(event for event in events if event.series.metric == "latency_ms")
    row = next(row for row in rows if row["id"] == table.short[slower.id])
    assert row["change"] == "▲ slower" and row["after ÷ before"] == f"{slower.ratio:.3f}×"
    assert slower.ratio == pytest.approx(1.1, rel=1e-3)
    assert row["first sweep after"].startswith(f"v{sweeps.STEP} ") and row["state"] == "open"
    assert sorted(state_of(event) for event in events if event.kind == "broken") == ["acknowledged", "open", "open"]
    (place,) = places_of(report.history)
    assert (place["place"], place["cells"], place["sweeps"]) == ("NVIDIA H200", 6, sweeps.SWEEPS)
    assert place["open"] == sum(event.alarms for event in events) > 0


def test_what_is_no_change_of_level_is_listed_too(tmp_path):
    made = copied(template(tmp_path), tmp_path / "flapping.db")
    for position in range(12):
        made.sweep({a_cell(): {"kernels": 12 + position % 2}} | ({a_cell("default"): {}} if position > 10 else {}))
    rows = history.other_rows(report_of(made.path).history)
    assert rows[0][0] == "new" and ("flapping", "NVIDIA H200", "kernels") in [(row[0], row[2], row[3]) for row in rows]


def test_pages_without_history(tmp_path):
    path = template(tmp_path)
    write_site(report_of(path), tmp_path / "empty")
    pages = {name: (tmp_path / "empty" / f"{name}.html").read_text() for name in ("history", "environments")}
    assert "Nothing has a history yet" in pages["history"]
    assert "No environment is recorded yet" in pages["environments"]
    made = copied(path, tmp_path / "one.db")
    made.sweep({a_cell(): {"flops": 1e9, "min_bytes": 1e6}})
    written = write_site(report_of(made.path), tmp_path / "site")
    assert "There is one sweep, so there is no history yet" in (tmp_path / "site" / "history.html").read_text()
    assert not [name for name in written.written if name.startswith("data/history-lines")]


# --- claims, failures, environments ---


def test_claims_with_their_verdicts(made, report):
    rows = claims.grid_of(report.claims, report.device_sweeps).rows
    counts = claims.counts(report.claims)
    assert sum(counts.values()) == len(report.claims) == len(rows) > 20
    assert (counts["confirmed"], counts["refuted"]) == (1, 1)
    judged = {row["claim"]: row for row in rows if texts(row)["verdict"] in ("confirmed", "refuted")}
    assert judged.keys() == {"P1", EVIL[0]}
    row = judged["P1"]
    assert (row["measured"].text, row["measured"].value, row["measured"].sub) == ("1.50×", 1.5, "[1.40, 1.60]")
    assert row["experiment"].link == f"{report.device_sweeps[0].slug}/speedups.html"
    assert made[1][-1] in row["experiment"].sub
    assert row["why"] == EVIL[0] and row["machine"].text == "NVIDIA H200, torch 2.13.0"


def test_failures_are_grouped_by_equal_reason_the_worst_first(made, report):
    own = report.device_sweeps[0]
    measured, waiting = failures.named(own)
    bad = failures.worst_first(measured)
    keys = [cell.key for cell in sweeps.cells()]
    links = [f"cell.html#cell={key[:16]}" for key in keys]
    groups = failures.groups_of(own, bad)
    assert [(group.status, group.reason) for group in groups] == [("error", sweeps.WHY), ("oom", EVIL[1])]
    assert {link for link, _ in groups[0].cells} == {links[1], links[4]} and groups[1].cells[0][0] == links[5]
    rows = failures.bad_table(own, bad).rows
    assert [row["status"].text for row in rows] == ["error", "error", "oom"]
    assert rows[0]["cell"].link == links[1] and rows[0]["reason"] == sweeps.WHY
    assert [row.source["cell_key"] for row in waiting] == [keys[3]]
    first = report_of(made[0].path, [made[1][0]]).device_sweeps[0]
    measured, waiting = failures.named(first)
    assert not waiting and not failures.worst_first(measured)
    odd = [(row.source["cell_key"], what, count) for row, what, count in failures.odd_rows(measured)]
    assert odd == [(keys[3], "recompiles", 2)]


def test_environments_with_all_that_is_known(report):
    new, old = environments.seen_environments(report)
    assert (new.row["torch_version"], old.row["torch_version"]) == ("2.13.0", "2.12.0")
    assert (len(new.sweeps), len(old.sweeps)) == (sweeps.SWEEPS - sweeps.UPDATE, sweeps.UPDATE)
    facts = {(part, name): getattr(value, "text", value) for part, name, value in environments.facts_of(new)}
    assert facts["software", "torch"] == "2.13.0" and facts["machine", "GPU"] == "NVIDIA H200"
    assert facts["ceilings", "copy_bytes_per_s"] == "4.20 TB/s" and facts["noise", "launch"] == "0.01"
    assert facts["ceilings", "flops_per_s.bfloat16"] == "700.0 TFLOP/s"
    assert ("flags", EVIL[1], EVIL[0]) in list(environments.facts_of(old))
    rows = [list(texts(row).values())[-3:] for row in environments.all_table([new, old], report).rows]
    assert rows == [["4.20 TB/s", "700 TFLOP/s", "measured"], ["—", "—", "—"]]
    alike = [{"id": name * 8, "gpu_name": "G", "torch_version": "2.13"} for name in "ab"]
    assert len(set(environments.titles(alike).values())) == 2


# --- what changed since the sweep before ---


def changed(path, sweep_id):
    return index.changed(report_of(path, [sweep_id]).device_sweeps[0].changes, "x/cell.html")


def drawn(found):
    macro = '{% from "changed.html.j2" import changes %}{{ changes(found) }}'
    return templates().from_string(macro).render(found=found)


def test_changes_since_the_sweep_before(made, monkeypatch):
    path, (before, after) = made[0].path, made[1][sweeps.STEP - 1 : sweeps.STEP + 1]
    found = changed(path, after)
    with Store.open(path) as store:
        compared = compare_sweeps(store, store.find_sweep(before), store.find_sweep(after), read_limits())
    assert found["previous"]["id"] == before
    assert found["counts"] == {str(verdict): count for verdict, count in compared.counts.items()}
    sure = [one for one in compared.changes if one.verdict not in (Verdict.SAME, Verdict.AMBIGUOUS)]
    rows = [texts(row) for row in found["rows"].rows]
    assert [row["metric"] for row in rows] == ["latency", "period"] and len(sure) == 2
    assert rows[0]["ratio"].startswith("1.100 (")
    assert found["command"] == f"effbench compare {before} {after} --on 'NVIDIA H200' --db {path}"
    modes = {exact(row["mode"]): row for row in found["modes"].rows}
    assert list(modes) == ["eager", "default", "cuda-graph"]
    for line in compared.modes:
        shown = modes[line.mode][line.metric]
        assert shown.line == comparison.mean_text(line.ratio, line.low, line.high)
    monkeypatch.setattr(summary, "MOST_CHANGES", 1)
    assert (len(changed(path, after)["rows"].rows), changed(path, after)["more"]) == (1, 1)
    monkeypatch.setattr(data, "MOST_CELLS", 5)
    few = changed(path, after)
    assert few["only"] == ["latency", "period"] and sum(few["counts"].values()) == 12
    assert "only latency, period and statuses were" in drawn(few)


def test_changes_as_html(made):
    first, slower, broken = (drawn(changed(made[0].path, made[1][at])) for at in (0, sweeps.STEP, sweeps.BREAK))
    assert "No earlier sweep measured any of these cells on NVIDIA H200" in first
    assert f'href="x/cell.html#cell={sweeps.cells()[2].key}"' in slower and "▲ slower" in slower
    assert "✗ broken" in broken and "<img" not in broken and "&lt;img" in broken


def test_what_cannot_be_compared_has_a_reason(tmp_path):
    made = copied(template(tmp_path), tmp_path / "two.db")
    places = [environment(flags={"interpreter": f"/{name}/bin/python"}) for name in "ab"]
    for _ in range(2):
        sweep = made.sweep([a_cell()], env=places[0])
        made.sweep([a_cell()], env=places[1], into=sweep)
    found = changed(made.path, sweep)
    assert found["previous"] is not None and "several kinds of hardware or interpreters" in found["why"]
    assert "cannot be compared" in drawn(found)


def test_the_files_are_whole_scripts(tmp_path, report):
    written = write_site(report, tmp_path)
    track = report.history.tracks[0]
    name = line_id(track.cell_key, track.place)
    facts = content(tmp_path / "data" / "history-index.js")["lines"][name]
    assert facts[1] == report.history.table.names[track.cell_key] and facts[6] == len(track.rows)
    assert content(tmp_path / "data" / f"history-lines-{facts[0]}.js")[name]["at"] == track.positions
    assert all(size < 5e6 for name, size in written.written.items() if not name.startswith("assets/"))
