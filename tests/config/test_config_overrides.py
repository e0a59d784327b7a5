"""The words of a command line, and those of a sweep that is resumed."""

import pytest
import whole_sweeps as whole

from effbench.config.overrides import expand, parse, read
from effbench.store import Store


def texts(line):
    return [word.text for word in line.words]


@pytest.mark.parametrize(
    ("text", "key", "section", "value"),
    [
        ("+model.module.a='x y'", "model.module.a", "model", "x y"),
        ("++mode@other=b", "mode@other", "mode", "b"),
        ("~env", "env", "env", ""),
        ("hydra/sweeper=basic", "hydra/sweeper", "hydra", "basic"),
    ],
)
def test_parts_of_an_override(text, key, section, value):
    word = parse(text)
    assert (word.text, word.key, word.section, word.value) == (text, key, section, value)


def test_options_and_overrides_in_any_order():
    line = read(["bs=1", "-m", "mode=eager", "--config-dir", "conf", "~env", "+a=b", "bs=2"])
    assert (line.options, line.config_dir, line.prints_only) == ([], "conf", False)
    assert texts(line) == ["bs=1", "mode=eager", "~env", "+a=b", "bs=2"]
    assert [*line.stored().values()] == ["--config-dir=conf", "bs=2", "mode=eager", "~env", "+a=b"]


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("-m --cfg job", ["--cfg=job"]),
        ("-m -i", ["--info=all"]),
    ],
)
def test_options_that_print(words, options):
    line = read(words.split())
    assert line.options == options
    assert line.prints_only


@pytest.fixture
def stored(tmp_path):
    """Overrides -> the id of a sweep with them; the sweep's database is x.db."""

    def store(*overrides):
        with Store.open(tmp_path / "x.db", mode="write") as database:
            return whole.sweep(
                database, overrides=list(overrides), host={"folder": "/of/the/sweep"}
            )

    return store


def test_a_sweep_continues_in_the_database_where_it_was_found(stored, tmp_path):
    """Not in the stored one: that may be another database, and has no password."""
    sweep_id = stored(
        "bs=1", "db=postgresql://me:***@host/x", "mode=eager", "protocol.max_warmup_calls=9"
    )
    db = f"db={tmp_path / 'x.db'}"
    line = expand(read(["resume=last", db]))
    assert texts(line) == ["bs=1", "mode=eager", db, f"resume={sweep_id}"]


def test_resume_null_resumes_nothing():
    line = read(["-m", "resume=null"])
    assert expand(line) == line
