import json

import pytest
from made_sweeps import A100, DEFAULT, EAGER, FAST, SLOW, a_cell, steps


def rows(done):
    """(mode, metric) -> verdict of `--format json`."""
    assert (done.code, done.err) == (0, "")
    return {
        (one["cell"].split()[-2], one["metric"]): one["verdict"]
        for one in json.loads(done.out)["changes"]
    }


@pytest.fixture
def two(made):
    first = made.sweep({EAGER: FAST, DEFAULT: FAST}, label="v1", name="first")
    return first, made.sweep({EAGER: FAST, DEFAULT: SLOW}, label="v2")


def test_the_table_says_what_changed_and_counts_the_rest(two, effbench):
    done = effbench("compare", *two)
    assert (done.code, done.err) == (0, "")  # a regression is an answer here; `check` is the gate
    for text in ("▲ slower", "1.100", "1 slower, 23 same (the table omits 23 same; --all shows"):
        assert text in done.out
    assert "\x1b" not in done.out
    assert effbench("compare", *two, "--all").out.count("= same") == 23


@pytest.mark.parametrize("more", [1, 11])
def test_many_cells_of_one_side_are_only_counted(made, effbench, more):
    before = made.sweep({EAGER: FAST})
    after = made.sweep({EAGER: FAST} | {a_cell(bs=100 + n): FAST for n in range(more)})
    done = effbench("compare", before, after)
    assert done.out.count("+ new") == (1 if more == 1 else 0)
    assert ("the table omits 11 new, 12 same" in done.out) is (more == 11)


@pytest.mark.parametrize(
    ("words", "verdicts"),
    [
        (["--only", "slower, broken"], {("default", "latency_ms"): "slower"}),
        (["--metric", "kernels", "--cell", "default"], {("default", "kernels"): "same"}),
        (["--metric", "kernels", "--cell", "mlp bs=8 e*"], {("eager", "kernels"): "same"}),
        (["--metric", "kernels", "--cell", EAGER.key[:12]], {("eager", "kernels"): "same"}),
        (["--metric", "latency_ms", "--floor", "11%", "--only", "slower"], {}),
    ],
)
def test_which_rows(two, effbench, words, verdicts):
    assert rows(effbench("compare", *two, "--format", "json", *words)) == verdicts


def test_metrics_that_no_cell_has_are_nothing_to_compare(two, effbench):
    done = effbench("compare", *two, "--metric", "tpot_ms")
    assert (done.code, done.err, "nothing to compare" in done.out) == (3, "", True)


def test_cells_that_are_asked_for_have_the_verdicts_of_the_whole(made, effbench):
    """A p of 0.04 is nothing among a hundred others, whichever rows are shown."""
    faint, quiet = {"latency_ms": steps(1.0, 0.03)}, [a_cell(bs=size) for size in range(1, 8)]
    before = made.sweep({EAGER: faint} | dict.fromkeys(quiet, faint))
    after = made.sweep({EAGER: {"latency_ms": steps(1.075, 0.03)}} | dict.fromkeys(quiet, faint))
    words = ("compare", before, after, "--format", "json", "--metric", "latency_ms")
    (alone,) = json.loads(effbench(*words, "--cell", EAGER.key[:12]).out)["changes"]
    assert 0.01 < alone["p_value"] < 0.05 and alone["verdict"] == "ambiguous"


@pytest.mark.parametrize(
    ("by", "cells"),
    [
        ("dtype", {"mlp bs=8 eager", "mlp bs=8 default"}),
        ("mode", {"mlp bs=8 bfloat16", "mlp bs=8 float16"}),
    ],
)
def test_what_by_compares_is_no_part_of_a_cells_name(made, effbench, by, cells):
    modes, dtypes = ("eager", "default"), ("bfloat16", "float16")
    made.sweep([a_cell(mode, dtype=dtype) for mode in modes for dtype in dtypes])
    done = effbench("compare", "last", "--by", by, "--format", "json")
    assert {one["cell"] for one in json.loads(done.out)["changes"]} == cells


@pytest.mark.parametrize(
    ("after", "facts", "name", "said"),
    [
        (a_cell(dtype="float16"), {}, "dtype", "differ in dtype bfloat16 → float16"),
        (a_cell(numerics={"tf32": True}), {}, "numerics", "numerics.tf32 False → True"),
        (EAGER, {"env": A100}, "hardware", "NVIDIA H200 and NVIDIA A100"),
    ],
)
def test_across(made, effbench, after, facts, name, said):
    sweeps = made.sweep({EAGER: FAST}), made.sweep({after: SLOW}, **facts)
    refused = effbench("compare", *sweeps)
    assert (refused.code, refused.out) == (3, "")
    assert said in refused.err and f"; --across {name}" in refused.err
    found = rows(effbench("compare", *sweeps, "--across", name, "--format", "json"))
    assert found["eager", "latency_ms"] == "slower"


def test_sweeps_without_a_common_cell_say_what_differs(made, effbench):
    before = made.sweep([a_cell(bs=8)])
    after = made.sweep([a_cell(bs=16, mode="default"), a_cell(bs=16)])
    done = effbench("compare", before, after)
    assert (done.code, done.out) == (3, "")
    assert done.err.endswith("; the first cell and the most similar one differ in bs 8 → 16\n")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("", 2, "required: SWEEP"),
        ("last", 2, "compare takes two sweeps"),
        ("last last --by dtype", 2, "name one sweep, not 2"),
        ("last --by dtype", 2, "has only dtype=bfloat16: sweep two values, or compare two"),
        ("last --by colour", 2, "parameter 'colour'; use a parameter, such as bs or model.module."),
        ("last --by dtype --across dtype", 2, "--across needs two sweeps"),
        ("last last --values a b", 2, "needs --by"),
        ("first last --only slow", 2, "choose from"),
        ("last last --floor nan", 2, "--floor: expected a number of at least 0"),
        ("last last --metric latency", 2, "choose from latency_ms"),
        ("last last", 2, "both sides are sweep "),
        ("last --by mode --values eager eager", 2, "choose two of them with --values"),
        ("first last --on B200", 3, "on 'B200'; trials ran on NVIDIA H200"),
        ("first last --cell gpt2", 3, "is selected"),
        ("first empty", 3, "has no trial yet"),
    ],
)
def test_what_is_refused(made, two, effbench, words, code, said):
    made.sweep({EAGER: None}, name="empty")
    made.sweep({EAGER: FAST, DEFAULT: SLOW})  # the last one
    done = effbench("compare", *words.split())
    assert (done.code, done.out) == (code, "")
    assert said in done.err
