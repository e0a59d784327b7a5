"""Passwords are not kept, and do not leave."""

import pytest
import whole_sweeps as whole
from whole_sweeps import export, outcomes

from effbench.store import Store
from effbench.store.secrets import masked, masked_db, masked_text


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("db=postgresql://me:s3cret@host:5432/x", "db=postgresql://me:***@host:5432/x"),
        (
            'db="postgresql+psycopg://me:s3c@ret@h/x?a=b"',
            'db="postgresql+psycopg://me:***@h/x?a=b"',
        ),
        (
            "db=postgresql://h/x?user=me&password=s3c&a=b",
            "db=postgresql://h/x?user=me&password=***&a=b",
        ),
        ("db='postgresql://host/x?password=s3 cret'", "db='postgresql://host/x?password=***'"),
        ("db=postgresql://me:s3 c'r\"et@host/x", "db=postgresql://me:***@host/x"),
        ("db=postgresql://:s3cret@host/x", "db=postgresql://:***@host/x"),
        ("db=postgresql://me@host:5432/x", "db=postgresql://me@host:5432/x"),
        ("db=/tmp/a@b:c.db", "db=/tmp/a@b:c.db"),
    ],
)
def test_a_password_is_masked(word, said):
    assert masked([word]) == masked_db([word]) == [said]


def test_other_overrides_stay_because_they_are_replayed():
    kept = "model.module.url=https://me:token@host/weights"
    assert masked_db([kept]) == [kept]


@pytest.mark.parametrize(
    "text",
    [
        "x: postgresql://me:s3c@ret@h/x; do y",
        "x 'db=postgresql://me:s3c%40t@h/x' y",
        "x \"db='postgresql://h/x?user=me&password=s3c'\" y",
        "unrecognized arguments: postgresql://me:s3 c'r\"et@h/x --y",
        "x postgresql://me:s3c@h/x and postgresql://me:s3c@h/y&sslpassword=s3c",
        "no database at postgresql:/me:s3cret@h/x",
        "mysql://me:s3c@h/x; give postgresql://USER@HOST/NAME",
    ],
)
def test_a_password_in_a_sentence_is_masked(text):
    said = masked_text(text)
    assert "s3c" not in said
    assert "***" in said
    assert said.endswith(text[-2:]) or text.endswith("s3c")


@pytest.mark.parametrize(
    "text",
    [
        "x: postgresql://h:5432/x; ask me@h",
        "x postgresql://me@h:5432/x?application_name=a@b",
        "x 'postgresql://[::1]:5432/x' of me@h",
        "model.module._target_=a:b@c and x:y@z",
        "sqlite:////tmp/x:y@z.db",
        "http://localhost:8000/x@1 of me@h, git@github.com:a/b",
    ],
)
def test_a_harmless_sentence_stays(text):
    assert masked_text(text) == text


URLS = [
    "postgresql://me:s3/cret@localhost:1/x",
    "postgresql://localhost:1/x?user=me&password=s3cret",
    "postgresql://me:s3cret@localhost:port/x",
    "sqlite:///x.db?password=s3cret",
]
COMMANDS = [
    *(["import", url] for url in URLS),
    *(["ls", url] for url in URLS),  # argparse: unrecognized arguments
    ["-m", f"db={URLS[0]}", f"bss={URLS[0]}"],
    ["-m", f"db={URLS[1]}&a=b"],  # Hydra takes no = without quotes
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_message_shows_a_password(words, tmp_path, monkeypatch, effbench):
    monkeypatch.chdir(tmp_path)
    done = effbench(*words)
    assert done.code == 2
    assert "s3" not in done.out + done.err


def test_no_password_leaves_the_database(tmp_path, target):
    path = tmp_path / "secret.db"
    word, said = (f"db=postgresql://me:{secret}@host/x" for secret in ("s3cret", "***"))
    key = whole.cells()[0].key
    facts = {"command": ["-m", word], "overrides": ["bs=1", word], "cell_overrides": {key: [word]}}
    with Store.open(path, mode="write") as store:
        sweep = whole.sweep(store, rounds=1, **facts)
    out = export(path, tmp_path / "x.db")
    assert b"s3cret" not in out.read_bytes()
    assert outcomes(out, target) == ["imported"]
    with Store.open(target) as store:
        info = store.find_sweep("last")
        assert (info.command, info.overrides) == (["-m", said], ["bs=1", said])
        assert store.cell_overrides(sweep)[key] == [said]
    assert outcomes(target, path) == ["already there"], "masked and unmasked are the same sweep"
