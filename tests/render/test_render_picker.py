"""All sweeps of a database are on the site: the newest on the overview, every one in the picker of
the pages."""

import pytest
from browsing import Visit, content, report_of, until
from made_sweeps import DEFAULT, EAGER, copied, environment, template

from effbench.render import data
from effbench.render.site.build import PICKER, write_site
from effbench.store.sweeps import CONFIRMING


def sweep(made, number, **more):
    name, label = f"nightly {number}", f"v{number}"
    return made.sweep(
        {EAGER: {}, DEFAULT: {}},
        rounds=2,
        name=name,
        label=label,
        **more,
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A database of three sweeps on one GPU, one on another, and a re-run; the sweeps' ids."""
    database = copied(template(), tmp_path_factory.mktemp("picker") / "r.db")
    ids = [sweep(database, number) for number in range(3)]
    ids.append(sweep(database, 3, env=environment(gpu_name="A100")))
    database.sweep({EAGER: {}}, name=f"{CONFIRMING}x")
    return database, ids


@pytest.fixture(scope="module")
def folder(made, tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    write_site(report_of(made[0].path), out)
    return out


def picked(folder):
    return content(folder / PICKER)


def test_the_overview_has_the_newest_sweep_of_each_gpu(made, folder):
    database, ids = made
    newest = [device_sweep.sweep.id for device_sweep in report_of(database.path).device_sweeps]
    assert newest == [ids[3], ids[2]]
    html = (folder / "index.html").read_text(encoding="utf-8")
    assert html.count('<section class="answer"') == 2


def test_every_sweep_is_in_the_picker_newest_first_with_pages_of_its_own(folder):
    sweeps = picked(folder)
    shown = [(sweep["name"], sweep["label"], sweep["hardware"]) for sweep in sweeps]
    assert shown == [
        ("nightly 3", "v3", "A100"),
        *((f"nightly {number}", f"v{number}", "NVIDIA H200") for number in (2, 1, 0)),
    ]
    assert all((folder / sweep["folder"] / "speedups.html").is_file() for sweep in sweeps)


def test_a_site_has_at_most_so_many_sweeps_by_default(made, monkeypatch):
    monkeypatch.setattr(data, "MOST_SWEEPS", 3)
    report = report_of(made[0].path)
    assert [info.name for info in report.sweeps] == ["nightly 3", "nightly 2", "nightly 1"]
    assert report.omitted == 1


def test_choosing_a_sweep_opens_the_same_page_of_it(folder, chromium):
    _, newest, _, oldest = (sweep["folder"] for sweep in picked(folder))
    with Visit(chromium, folder / newest / "charts.html") as one:
        until(one.page, "document.querySelectorAll('#subjects option').length === 4")
        assert one.texts("#subjects option")[1].startswith("nightly 2 · v2 · ")
        one.page.locator("#subjects").select_option(oldest)
        one.page.wait_for_url(f"**/{oldest}/charts.html")
        assert "nightly 0" in one.page.locator(".facts").first.inner_text()
        one.assert_quiet()
