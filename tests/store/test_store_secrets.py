"""Passwords are not kept, and do not leave."""

from __future__ import annotations

import pytest
import whole_sweeps as whole
from whole_sweeps import CARRIERS, carried, outcomes

from effbench import cli
from effbench.store import Store
from effbench.store.secrets import masked, masked_db


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("db=postgresql://me:s3cret@host:5432/x", "db=postgresql://me:***@host:5432/x"),
        ("'db=\"postgresql+psycopg://me:s3c@ret@host/x?a=b\"'", "'db=\"postgresql+psycopg://me:***@host/x?a=b\"'"),
        ("db=postgresql://:s3cret@host/x", "db=postgresql://:***@host/x"),
        ("db=postgresql://host/x?user=me&password=s3cret&a=b", "db=postgresql://host/x?user=me&password=***&a=b"),
        ("db='postgresql://host/x?password=s3 cret'", "db='postgresql://host/x?password=***'"),
        ("db=postgresql://me:s3 c'r\"et@host/x", "db=postgresql://me:***@host/x"),
        ("db=postgresql://me@host:5432/x", "db=postgresql://me@host:5432/x"),
        ("db=/tmp/a@b:c.db", "db=/tmp/a@b:c.db"),
        ("bs=1,8", "bs=1,8"),
    ],
)
def test_passwords_are_masked(word, said):
    assert masked([word, word]) == [said, said]
    if not word.startswith("'"):
        assert masked_db([word]) == [said]
    kept = "model.module.url=https://me:token@host/weights"
    assert masked_db([kept]) == [kept]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@localhost:1/x",
        "postgresql://me:s3cr%40t@localhost:1/x?sslpassword=s3cret&password=s3cret",
        "postgresql://me:@s3cret@localhost:1/x",
        "postgresql://localhost:1/x?user=me&password=s3cret",
        "postgresql://me:s3cret@localhost:port/x",
        "mysql://me:s3cret@localhost/x",
        "sqlite:///x.db?password=s3cret",
    ],
)
@pytest.mark.parametrize(
    "words", [["export", "--to"], ["import"], ["history", "--db"], ["ls", "--db"], ["db", "check", "--db"]]
)
def test_no_message_shows_a_password(url, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    whole.odd_database("results.db", 1)
    more = ["--db", "results.db"] if words[0] in ("export", "import") else []
    assert cli.run([*words, url, *more]) == 2
    said = "".join(capsys.readouterr())
    assert "s3c" not in said and "***" in said


@pytest.mark.parametrize("carrier", CARRIERS)
def test_no_password_leaves_the_database(carrier, tmp_path, target):
    path = tmp_path / "secret.db"
    word = "db=postgresql://me:s3cret@host/x"
    with Store.open(path, mode="write") as store:
        whole.sweep(store, command=["-m", word], overrides=["bs=1", word])
    assert outcomes(carried(carrier, path, tmp_path), target) == ["imported"]
    with Store.open(target) as store:
        said = "db=postgresql://me:***@host/x"
        assert (store.find_sweep("last").command, store.find_sweep("last").overrides) == (["-m", said], ["bs=1", said])
    assert outcomes(target, path) == ["present"], "masked and unmasked are the same sweep"
