"""Many models: their small figures some at a time, by the URL, and no page of more bytes than it
may load."""

from pathlib import Path
from urllib.parse import quote, unquote, urlparse

import pytest
import synthetic as make
from browsing import EVIL, Visit, device_sweep, page_of, site, visits

from effbench.render.site.pages.charts import MODELS_A_PAGE

SHARED = "plotly.min.js"
MOST = 6_000_000
NAMES = [f"model-{number}" for number in range(MODELS_A_PAGE * 2)] + [EVIL[0], "model=1&from=9"]
SIZES = tuple(2**power for power in range(8))
FIRST, THIRD = NAMES[:MODELS_A_PAGE], NAMES[2 * MODELS_A_PAGE :]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    one = device_sweep(make.rows(models=NAMES, sizes=SIZES, modes=("eager", "default")))
    return site(tmp_path_factory.mktemp("models"), one), one


@pytest.fixture
def visit(chromium, made):
    with visits(chromium, "true") as opened:
        yield lambda after="": opened(page_of(*made, "charts"), after=after)


def shown(one, section="latency"):
    return one.texts(f"#{section} figure:not([hidden]) figcaption")


def test_some_models_at_a_time(visit):
    one = visit()
    assert shown(one) == FIRST == shown(one, "throughput")
    one.page.locator("#models").select_option(index=2)
    assert shown(one) == THIRD
    assert one.page.url.endswith("from=17")
    one.draw()
    drawn = one.page.locator("#latency figure:not([hidden]) .chart[data-drawn]")
    assert drawn.count() == len(THIRD)


@pytest.mark.parametrize("name", NAMES[-2:])
def test_one_model(visit, name):
    one = visit(f"#shown={quote(name, safe='')}&other=x")
    assert shown(one) == [name] == shown(one, "throughput")
    one.assert_quiet()


def test_no_page_loads_more_than_it_may(chromium, tmp_path):
    """10,000 cells, everything on the page drawn and every table opened."""
    models = [f"llama-decode-{64 * number}" for number in range(159)]
    one = device_sweep(make.rows(models=models, sizes=tuple(2**power for power in range(9))))
    folder = site(tmp_path, one)
    for name in ("charts", "speedups", "cell"):
        with Visit(chromium, page_of(folder, one, name)) as page:
            page.open_all()
            urls = [url for url in page.requests if url.startswith("file:")]
            paths = {Path(unquote(urlparse(url).path)) for url in urls}
            assert sum(path.stat().st_size for path in paths if path.name != SHARED) < MOST, name
            page.assert_quiet()
