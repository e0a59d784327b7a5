import csv
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


def test_many_cells_of_one_side_are_only_counted(made, effbench):
    before = made.sweep({EAGER: FAST})
    for more in (1, 11):
        after = made.sweep({EAGER: FAST} | {a_cell(bs=100 + n): FAST for n in range(more)})
        done = effbench("compare", before, after)
        assert done.out.count("+ new") == (more if more == 1 else 0)
        assert ("the table omits 11 new, 12 same" in done.out) is (more == 11), done.out
    assert effbench("compare", before, after, "--all").out.count("+ new") == 11


def test_times_of_tokens(made, effbench):
    one, two = (
        {"ttft_ms": steps(9.0, 0.001), "tpot_ms": steps(mean, 0.001)} for mean in (1.0, 1.1)
    )
    sweeps = [made.sweep({EAGER: figures | FAST}) for figures in (one, two)]
    found = rows(
        effbench(
            "compare", *sweeps, "--format", "json", "--metric", "ttft_ms", "--metric", "tpot_ms"
        )
    )
    assert found == {("eager", "ttft_ms"): "same", ("eager", "tpot_ms"): "slower"}
    done = effbench("export", "--sweep", sweeps[1], "--format", "csv")
    (row,) = csv.DictReader(done.out.splitlines())
    assert float(row["tpot_ci_low_ms"]) < float(row["tpot_ms"]) < float(row["tpot_ci_high_ms"]), row


def test_which_rows(two, effbench):
    assert set(
        rows(effbench("compare", *two, "--format", "json", "--only", "slower, broken")).values()
    ) == {"slower"}
    found = rows(
        effbench(
            "compare", *two, "--format", "json", "--metric", "period_ms", "--metric", "kernels"
        )
    )
    assert {metric for _, metric in found} == {"period_ms", "kernels"}
    key = DEFAULT.key[:12]
    for text in ("default", "mlp bs=8 default*", "bs=8 default", key):
        assert {
            mode for mode, _ in rows(effbench("compare", *two, "--format", "json", "--cell", text))
        } == {"default"}
    assert (
        "slower"
        not in rows(effbench("compare", *two, "--format", "json", "--floor", "11%")).values()
    )


def test_metrics_that_no_cell_has_are_nothing_to_compare(two, effbench):
    done = effbench("compare", *two, "--metric", "tpot_ms")
    assert (done.code, done.err, "nothing to compare" in done.out) == (3, "", True)


def test_cells_that_are_asked_for_have_the_verdicts_of_the_whole(made, effbench):
    """Which rows are told does not change what is said of them: a p of 0.04 is nothing among a
    hundred others."""
    faint, quiet = {"latency_ms": steps(1.0, 0.03)}, [a_cell(bs=size) for size in range(1, 8)]
    before = made.sweep({EAGER: faint} | dict.fromkeys(quiet, faint))
    after = made.sweep({EAGER: {"latency_ms": steps(1.075, 0.03)}} | dict.fromkeys(quiet, faint))
    words = ("compare", before, after, "--format", "json", "--metric", "latency_ms")
    whole, alone = (
        json.loads(effbench(*words, *more).out)["changes"]
        for more in ((), ("--cell", EAGER.key[:12]))
    )
    assert 0.01 < alone[0]["p_value"] < 0.05
    assert alone == [one for one in whole if one["cell_key"] == EAGER.key]
    assert alone[0]["verdict"] == "ambiguous"


def test_what_by_compares_is_no_part_of_a_cells_name(made, effbench):
    def names(by, sweep, *more):
        done = effbench("compare", sweep, "--by", by, "--format", "json", *more)
        assert done.code == 0, done.err
        whole = json.loads(done.out)
        return {one["cell"] for one in whole["changes"]}, whole["notes"]

    made.sweep(
        [
            a_cell(mode, dtype=dtype)
            for mode in ("eager", "default")
            for dtype in ("bfloat16", "float16")
        ],
        name="dtypes",
    )
    assert names("dtype", "dtypes") == ({"mlp bs=8 eager", "mlp bs=8 default"}, [])
    assert (
        names("mode", "dtypes")[0]
        == names("mode.name", "dtypes")[0]
        == {"mlp bs=8 bfloat16", "mlp bs=8 float16"}
    )
    settings = [
        a_cell("default", bs=size, settings={"fullgraph": v})
        for v in (False, True)
        for size in (1, 8)
    ]
    made.sweep([*settings, EAGER], name="settings")
    assert names("fullgraph", "settings") == names("mode.fullgraph", "settings")
    found, (note,) = names("mode.fullgraph", "settings")
    assert found == {"mlp bs=1 default bfloat16", "mlp bs=8 default bfloat16"}
    assert note == "omitted, because they have no mode.fullgraph: mlp bs=8 eager bfloat16"
    told = names("mode", "settings", "--values", "default (fullgraph=true)", "eager")
    assert told[1] == ["not compared: mode=default (fullgraph=false)"]


def test_across(made, effbench):
    before = made.sweep({EAGER: FAST})
    for after, name, said in (
        (
            made.sweep({a_cell(dtype="float16"): SLOW}),
            "dtype",
            "differ in dtype bfloat16 → float16",
        ),
        (
            made.sweep({a_cell(numerics={"tf32": True}): SLOW}),
            "numerics",
            "differ in numerics.tf32 False → True",
        ),
        (made.sweep({EAGER: SLOW}, env=A100), "hardware", "NVIDIA H200 and NVIDIA A100"),
    ):
        refused = effbench("compare", before, after)
        assert (refused.code, refused.out) == (3, "")
        assert (
            said in refused.err
            and f"; --across {name}" in refused.err
            and refused.err.count("\n") == 1
        )
        found = rows(effbench("compare", before, after, "--across", name, "--format", "json"))
        assert found["eager", "latency_ms"] == "slower"


def test_what_is_refused(made, two, effbench):
    empty = made.sweep({EAGER: None}, name="empty")
    made.sweep({EAGER: FAST, DEFAULT: SLOW})  # the last one
    for words, said in (
        ("", "required: SWEEP"),
        ("last", "compare takes two sweeps"),
        ("last last --by dtype", "name one sweep, not 2"),
        ("last --by dtype", "has only dtype=bfloat16: sweep two values, or compare two"),
        (
            "last --by colour",
            (
                "has a parameter 'colour'; use a parameter, such as bs or model.module.width, or"
                " python"
            ),
        ),
        ("last --by dtype --across dtype", "--across needs two sweeps"),
        ("last last --values a b", "needs --by"),
        ("first last --only slow", "choose from"),
        ("last last --floor nan", "--floor=nan: expected a number"),
        ("last last --metric latency", "choose from latency_ms"),
        ("last last", "both sides are sweep "),
        ("last --by mode --values eager eager", "choose two of them with --values"),
        ("first last --on B200", "on 'B200'; trials ran on NVIDIA H200"),
        ("first last --cell gpt2", "is selected"),
        (f"first {empty}", "has no trial yet"),
    ):
        done = effbench("compare", *words.split())
        code = 3 if words.endswith(("B200", "gpt2", empty)) else 2
        assert (done.code, done.out) == (code, ""), words
        assert said in done.err and done.err.count("\n") <= 4 - code
