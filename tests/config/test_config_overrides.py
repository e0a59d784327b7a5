"""The words of a command line, and those of a sweep that is resumed."""

import pytest
import whole_sweeps as whole

from effbench.config.overrides import arrange, expand, prints_only
from effbench.store import Store


def test_options_first_overrides_in_their_order():
    words = ["bs=1", "-m", "mode=eager", "--config-dir", "conf", "~env", "+a=b"]
    assert arrange(words) == ["--config-dir=conf", "bs=1", "mode=eager", "~env", "+a=b"]


@pytest.mark.parametrize(
    ("words", "arranged"),
    [
        ("-m --cfg job", ["--cfg=job"]),
        ("-m -i", ["--info=all"]),
        ("bs=2 --hydra-help", ["--hydra-help", "bs=2"]),
    ],
)
def test_options_that_print(words, arranged):
    assert arrange(words.split()) == arranged
    assert prints_only(arranged)


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
    words, _ = expand(["resume=last", db])
    assert words == ["bs=1", "mode=eager", db, f"resume={sweep_id}"]


def test_resume_null_resumes_nothing():
    assert expand(["-m", "resume=null"]) == (["-m", "resume=null"], ["resume=null"])
