"""`effbench coldstart` over a database of known figures."""

import json

import pytest
from made_coldstarts import STARTS, a_start, started
from made_sweeps import a_cell

from effbench.cli.coldstart import DEFAULTS, folder_sentence, holds, words_of
from effbench.cli.main import parser_of
from effbench.config.launch import jobs_of
from effbench.config.overrides import read
from effbench.core.cell import Status, Trial


@pytest.fixture
def swept(made):
    made.sweep(STARTS)
    return made


def test_the_sentence_comes_first(swept, effbench):
    done = effbench("coldstart")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].startswith("With a bundle (2.00 MiB) default answers after 6.40 s instead of")
    assert lines[-1].startswith("sweep ")


def test_json_has_exact_figures(swept, effbench):
    document = json.loads(effbench("coldstart", "--format", "json").out)
    assert len(document["sentences"]) == 1
    bundle = document["rows"][-1]
    assert (bundle["mode"], bundle["cache"], bundle["cache_reuse"]) == (
        "default",
        "bundle",
        "whole",
    )
    assert bundle["cold_s"] == pytest.approx(6.4)
    assert bundle["cold_imports_s"] == 1.5
    assert bundle["requests"] == pytest.approx(4000, abs=1)


def test_markdown_has_the_sentence_and_both_tables(swept, effbench):
    text = effbench("coldstart", "--format", "markdown").out
    assert text.startswith("With a bundle")
    assert text.count("| model | bs | mode | cache |") == 2


def test_what_failed_is_a_line(made, effbench):
    made.sweep(STARTS | {a_start("default", "folder"): {"status": "error", "reason": "why"}})
    lines = effbench("coldstart").out.splitlines()
    assert "default" in lines[-2] and lines[-2].endswith("error: why")


def test_changes(made, effbench):
    made.sweep({a_start("default", "bundle", "bs"): started(20.0, 3.0, cache_reuse="none")})
    done = effbench("coldstart", "--changes")
    assert done.code == 0 and "the batch size" in done.out and "none, 20.0 s" in done.out


def test_show_has_cold_starts_by_default(swept, effbench):
    done = effbench("show")
    assert "22.4 s" in done.out and "cold start" in done.out
    assert "With a bundle (2.00 MiB) default answers after 6.40 s" in done.out


@pytest.mark.parametrize(
    ("cells", "options", "expected"),
    [
        ({a_cell(): {}}, (), "no such cold starts: effbench coldstart MODEL measures some"),
        ({a_start(): {"status": "error", "reason": "why"}}, (), "error: why"),
        ({a_start(): started(2.4, 4.0)}, ("--changes",), "no such cold starts"),
    ],
)
def test_nothing_to_show(made, effbench, cells, options, expected):
    made.sweep(cells)
    done = effbench("coldstart", *options)
    assert done.code == 3 and expected in done.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("tiny mlp", "measures one model"),
        ("bs=8", "measures one model"),
        ("tiny --sweep last", "measures one model"),
        ("tiny --make there --try there", "not allowed with"),
        ("tiny --try there", "there holds no cache; effbench coldstart MODEL --make there"),
        ("tiny bs=1,8 --make there", "--make and --try take one mode"),
        ("tiny cache=none --make there", "cache=bundle or cache=package"),
        ("tiny cache=folder --make there", "cache=bundle or cache=package"),
        ("tiny coldstart.change=constant --make there", "no coldstart.change=constant"),
    ],
)
def test_refusals(effbench, monkeypatch, tmp_path, words, expected):
    monkeypatch.chdir(tmp_path)
    done = effbench("coldstart", *words.split())
    assert (done.code, done.out) == (2, "") and expected in done.err
    assert not (tmp_path / "there").exists()


def test_a_cache_is_not_replaced(effbench, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "made.json").write_text("{}")
    done = effbench("coldstart", "tiny", "--make", "there")
    assert done.code == 2 and "there already holds a cache; name a new folder" in done.err


@pytest.mark.parametrize(
    ("words", "cells"),
    [
        ("tiny", {("eager", "none"), ("default", "none"), ("default", "folder")}),
        ("tiny mode=eager,default", {("eager", "none"), ("default", "bundle")}),
        ("tiny mode=default", {("default", "none"), ("default", "folder")}),
        ("tiny mode=eager,default cache=none", {("eager", "none"), ("default", "none")}),
    ],
)
def test_the_sweep(monkeypatch, tmp_path, words, cells):
    monkeypatch.chdir(tmp_path)
    args = parser_of("coldstart").parse_args(words.split())
    overrides = words_of(args, DEFAULTS)
    jobs = jobs_of(read(overrides))
    assert {job.config.phase for job in jobs} == {"coldstart"}
    assert {job.config.protocol.rounds for job in jobs} == {3}
    assert cells <= {(job.config.mode["name"], job.config.cache) for job in jobs}
    is_left_out = words in ("tiny", "tiny mode=eager,default")
    assert any("exclude" in word for word in overrides) is is_left_out


def test_a_given_protocol_has_its_own_rounds():
    args = parser_of("coldstart").parse_args(["tiny", "protocol=standard"])
    assert not any(word.startswith("protocol.rounds") for word in words_of(args, DEFAULTS))


CPP = ["3 C++ files (a bundle has no compiled C++ code)"]


@pytest.mark.parametrize(
    ("reuse", "misses", "missed", "begins"),
    [
        ("whole", 0, [], "The cache holds"),
        ("whole", None, [], "The cache holds"),
        ("part", 0, CPP, "The cache holds"),
        ("part", 1, ["why"], "A part of the cache was used"),
        ("none", 2, ["why"], "The cache was not used"),
    ],
    ids=["whole", "a package", "a bundle on the CPU", "a graph misses", "all graphs miss"],
)
def test_a_cache_holds_if_nothing_that_it_has_misses(reuse, misses, missed, begins):
    trial = Trial("cell", 0, Status.OK, cold_s=9.0, cache_bytes=1024, cache_reuse=reuse)
    trial.cache_misses = misses
    sentence = folder_sentence(trial, missed)
    assert sentence.startswith(f"{begins} (1.00 KiB): the first answer came after 9.00 s")
    assert sentence.endswith("".join(missed))
    assert holds(trial) is (begins == "The cache holds")


def test_reasons_of_misses_that_a_sentence_omits_are_counted():
    trial = Trial("cell", 0, Status.OK, cold_s=9.0, cache_reuse="none")
    assert folder_sentence(trial, list("abcdefghi")).endswith("missed: a, b, c, d, e and 4 more")


def test_the_seconds_of_a_disturbed_start_are_marked():
    trial = Trial("cell", 0, Status.OK, cold_s=9.0, cache_reuse="whole", disturbance="host busy")
    assert folder_sentence(trial, []).endswith("came after ~9.00 s")
