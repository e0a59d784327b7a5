"""All sweeps of a database are on the site: the newest on the overview, every one in the picker of
the pages."""

import json

import pytest
from browsing import Visit, content, report_of, until
from made_sweeps import DEFAULT, EAGER, Made, a_cell, environment

from effbench.report import data
from effbench.report.site.build import PICKER, write_site
from effbench.store.sweeps import CONFIRMING


@pytest.fixture
def made(tmp_path):
    return Made(tmp_path / "r.db")


def sweep(made, number, **more):
    return made.sweep(
        {EAGER: {}, DEFAULT: {}}, rounds=2, name=f"nightly {number}", label=f"v{number}", **more
    )


def picked(folder):
    return content(folder / PICKER)


def test_every_sweep_is_in_the_picker_newest_first_with_pages_of_its_own(made, tmp_path):
    ids = [sweep(made, number) for number in range(3)]
    ids.append(sweep(made, 3, env=environment(gpu_name="A100")))
    made.sweep({EAGER: {}}, name=f"{CONFIRMING}x")
    report = report_of(made.path)
    assert [one.sweep.id for one in report.device_sweeps] == [
        ids[3],
        ids[2],
    ], "the newest of each GPU"
    write_site(report, tmp_path / "site")
    sweeps = picked(tmp_path / "site")
    assert [(name, label, hardware) for _, name, label, _, hardware in sweeps] == [
        ("nightly 3", "v3", "A100"),
        *((f"nightly {number}", f"v{number}", "NVIDIA H200") for number in (2, 1, 0)),
    ]
    for slug, *_ in sweeps:
        assert (tmp_path / "site" / slug / "speedups.html").is_file()
    html = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert html.count('<section class="answer"') == 2
    assert "not included: confirm:x." in html, "which is no sweep of its own"


def test_chosen_sweeps_are_the_only_ones(made, tmp_path):
    ids = [sweep(made, number) for number in range(3)]
    report = report_of(made.path, [ids[0], ids[2]])
    write_site(report, tmp_path / "site")
    assert [name for _, name, *_ in picked(tmp_path / "site")] == ["nightly 2", "nightly 0"]
    assert "1 other sweep is not included: nightly 1" in report.omitted()


def test_a_site_has_at_most_so_many_older_sweeps(made, monkeypatch):
    for number in range(4):
        sweep(made, number)
    for name, most in (("MOST_OLDER", 2), ("MOST_OLDER_CELLS", 4)):
        with monkeypatch.context() as changed:
            changed.setattr(data, name, most)
            report = report_of(made.path)
            assert [one.info.name for one in report.older] == ["nightly 2", "nightly 1"]
            assert "nightly 0" in report.omitted()


def test_pages_of_older_sweeps_are_written_again_only_if_something_changed(made, tmp_path):
    ids = [sweep(made, number) for number in range(3)]
    out = tmp_path / "site"

    def write():
        write_site(report_of(made.path), out)
        return {slug: (out / slug / "speedups.html").stat().st_mtime_ns for slug, *_ in picked(out)}

    first = write()
    newest, middle, oldest = first
    second = write()
    assert [slug for slug in first if first[slug] == second[slug]] == [middle, oldest]
    made.sql(f"UPDATE sweep SET label = 'renamed' WHERE id = '{ids[1]}'")
    third = write()
    assert [slug for slug in first if second[slug] == third[slug]] == [oldest]
    assert picked(out)[1][2] == "renamed"
    (out / oldest / "cell.html").unlink()
    fourth = write()
    assert fourth[oldest] != third[oldest] and (out / oldest / "cell.html").is_file(), (
        "a file was missing"
    )
    listed = json.loads((out / "site.json").read_text(encoding="utf-8"))
    listed["sweeps"][ids[0]] = "not effbench's"
    (out / "site.json").write_text(json.dumps(listed), encoding="utf-8")
    assert write()[oldest] != fourth[oldest]
    assert {path.parent.name for path in out.glob("*/speedups.html")} == {newest, middle, oldest}


def test_choosing_a_sweep_opens_the_same_page_of_it(made, tmp_path, chromium):
    for number in range(3):
        sweep(made, number)
    out = tmp_path / "site"
    write_site(report_of(made.path), out)
    newest, middle, oldest = (slug for slug, *_ in picked(out))
    with Visit(chromium, out / newest / "charts.html") as one:
        until(one.page, "document.querySelectorAll('#subjects option').length === 3")
        assert one.texts("#subjects option")[0].startswith("nightly 2 · v2 · ")
        one.page.locator("#subjects").select_option(oldest)
        one.page.wait_for_url(f"**/{oldest}/charts.html")
        assert "nightly 0" in one.page.locator(".facts").first.inner_text()
        one.assert_quiet()
    with Visit(chromium, out / "index.html") as one:
        until(one.page, "document.querySelectorAll('#subjects option').length === 4")
        one.page.locator("#subjects").select_option(middle)
        one.page.wait_for_url(f"**/{middle}/speedups.html")
        one.assert_quiet()


def test_a_history_without_a_series_is_one_line(made, tmp_path):
    cells = [a_cell(model=f"m{number}") for number in range(12)]
    made.sweep({cell: {} for cell in cells[:8]}, rounds=2)
    made.sweep({cell: {} for cell in cells[7:]}, rounds=2)
    report = report_of(made.path)
    assert report.history.changes == []
    write_site(report, tmp_path / "site")
    html = (tmp_path / "site" / "history.html").read_text(encoding="utf-8")
    assert "No series to judge yet" in html
    assert (
        "What changed" not in html
        and "not measured again" not in html
        and "too short to judge" not in html
    )
