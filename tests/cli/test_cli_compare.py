import json

import pytest
from made_sweeps import A100, DEFAULT, EAGER, FAST, SLOW, a_cell


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


@pytest.mark.parametrize(("more", "omitted"), [(1, "12 same"), (11, "11 new, 12 same")])
def test_many_cells_of_one_side_are_only_counted(made, effbench, more, omitted):
    before = made.sweep([EAGER])
    after = made.sweep([EAGER, *(a_cell(bs=100 + number) for number in range(more))])
    assert f"the table omits {omitted}" in effbench("compare", before, after).out


def test_a_metric_and_a_floor_are_chosen(two, effbench):
    words = ("--metric", "latency_ms", "--set", "floor=11%", "--format", "json")
    found = rows(effbench("compare", *two, *words))
    assert {metric for _, metric in found} == {"latency_ms"}
    assert found["default", "latency_ms"] != "slower"


def test_metrics_that_no_cell_has_are_nothing_to_compare(two, effbench):
    done = effbench("compare", *two, "--metric", "tpot_ms")
    assert (done.code, done.err, "nothing to compare" in done.out) == (3, "", True)


@pytest.mark.parametrize(
    ("by", "other", "cell"),
    [
        ("dtype", a_cell(dtype="float16"), "mlp bs=8 eager"),
        ("mode", DEFAULT, "mlp bs=8 bfloat16"),
    ],
)
def test_what_by_compares_is_no_part_of_a_cells_name(made, effbench, by, other, cell):
    made.sweep([EAGER, other])
    done = effbench("compare", "last", "--by", by, "--format", "json")
    assert {one["cell"] for one in json.loads(done.out)["changes"]} == {cell}


@pytest.mark.parametrize(
    ("after", "env", "name", "said"),
    [
        (a_cell(dtype="float16"), None, "dtype", "differ in dtype bfloat16 → float16"),
        (EAGER, A100, "hardware", "NVIDIA H200 and NVIDIA A100"),
    ],
)
def test_across(made, effbench, after, env, name, said):
    sweeps = made.sweep({EAGER: FAST}), made.sweep({after: SLOW}, env=env)
    refused = effbench("compare", *sweeps)
    assert refused.code == 3
    assert said in refused.err and f"; --across {name}" in refused.err
    found = rows(effbench("compare", *sweeps, "--across", name, "--format", "json"))
    assert found["eager", "latency_ms"] == "slower"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("", 2, "required: SWEEP"),
        ("last", 2, "compare takes two sweeps"),
        ("last last --by dtype", 2, "name one sweep, and omit --across"),
        ("last --by dtype", 2, "has dtype=bfloat16; choose two of them"),
        ("last --by colour", 2, "parameter 'colour'; use a parameter, such as bs or model.module."),
        ("last --by dtype --across dtype", 2, "name one sweep, and omit --across"),
        ("last last --values a b", 2, "needs --by"),
        ("first last --across colour", 2, "unknown name 'colour'; choose from"),
        ("first last --across ,", 2, "unknown name ''; choose from"),
        ("last last --set floor=nan", 2, "floor: expected a number of at least 0"),
        ("last last --metric latency", 2, "did you mean latency_ms?"),
        ("last last", 2, "both sides are sweep "),
        ("last --by mode --values eager eager", 2, "choose two of them with --values"),
        ("first last --on B200", 3, "on 'B200'; trials ran on NVIDIA H200"),
        ("first empty", 3, "has no trial yet"),
    ],
)
def test_what_is_refused(made, two, effbench, words, code, said):
    made.sweep({EAGER: None}, name="empty")
    made.sweep({EAGER: FAST, DEFAULT: SLOW})  # the last one
    done = effbench("compare", *words.split())
    assert (done.code, done.out) == (code, "")
    assert said in done.err
