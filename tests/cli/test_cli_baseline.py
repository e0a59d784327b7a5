from made_sweeps import a_cell, environment

A100 = environment(gpu_name="NVIDIA A100")


def test_set_ls_rm(made, effbench):
    first = made.sweep([a_cell()], label="v1")
    done = effbench("baseline", "set", "main", "--note", "[red]good")
    assert (done.code, done.err) == (0, "")
    assert done.out == f"baseline main on NVIDIA H200: sweep {first}\n"
    listed = effbench("baseline", "ls").out
    for text in ("main", "NVIDIA H200", first, "v1", "[red]good"):
        assert text in listed
    second = made.sweep([a_cell()], name="nightly")
    assert f"sweep {second}, before {first}" in effbench("baseline", "set", "main", "nightly").out
    assert "before" not in effbench("baseline", "set", "main", second).out
    assert "(nightly)" in effbench("baseline", "ls").out
    assert effbench("baseline", "rm", "main").out == f"baseline main on NVIDIA H200 forgotten; sweep {second} stays\n"
    assert second in effbench("ls").out


def test_on_one_of_two_gpus(made, effbench):
    here, there = made.sweep([a_cell()]), made.sweep([a_cell()], env=A100)
    for sweep in (here, there):
        assert effbench("baseline", "set", "main", sweep).code == 0
    done = effbench("baseline", "rm", "main", "--on", "NVIDIA L4")
    assert done.code == 3 and "set on NVIDIA A100, NVIDIA H200, not on NVIDIA L4" in done.err
    effbench("baseline", "rm", "main", "--on", "NVIDIA A100")
    listed = effbench("baseline", "ls").out
    assert here in listed and there not in listed


def test_what_it_does_not_guard_is_said(made, effbench):
    broken = {"status": "error", "reason": "boom"}
    made.sweep({a_cell(): {}, a_cell("default"): broken, a_cell("x"): None}, state="interrupted")
    done = effbench("baseline", "set", "main")
    assert done.code == 0
    assert "that sweep is interrupted" in done.out
    assert "not all of its cells are ok (1 error)" in done.out


def test_names_and_notes_neither_break_a_line_nor_steer_a_terminal(made, effbench):
    sweep = made.sweep([a_cell()], name="night\nly", label="v1\x1b[31m")
    effbench("baseline", "set", "main", "last", "--note", "one\ntwo")
    for listed in (effbench("baseline", "ls").out, effbench("ls").out):
        assert "\x1b" not in listed
        assert len(listed.splitlines()) == 2
        (row,) = [line for line in listed.splitlines() if sweep in line]
        assert "night ly" in row
        assert "v1 [31m" in row
    assert "one two" in effbench("baseline", "ls").out


def test_sweeps_are_marked_in_the_list_of_sweeps(made, effbench):
    first, second = made.sweep([a_cell()]), made.sweep([a_cell()])
    assert "baseline" not in effbench("ls").out
    for name, sweep in (("main", first), ("v1", first)):
        effbench("baseline", "set", name, sweep)
    made.sweep([a_cell()], env=A100, into=first)
    effbench("baseline", "set", "main", first)  # on two kinds of hardware, and named once
    heading, *rows = effbench("ls").out.splitlines()
    assert heading.split()[:3] == ["sweep", "name", "baseline"]
    marked = {row.split()[0]: row[heading.index("baseline") : heading.index("started")].strip() for row in rows}
    assert marked == {first: "main, v1", second: ""}


REFUSALS = [
    ((), 2, "set|ls|rm"),
    (("put", "main"), 2, "invalid choice"),
    (("set",), 2, "name"),
    (("set", "a b"), 2, "cannot name a baseline"),
    (("set", "main", "nowhere"), 3, "no sweep 'nowhere'"),
    (("rm", "main"), 3, "`effbench baseline set main last` sets it"),
    (("ls",), 3, "has no baseline"),
]


def test_refusals(made, effbench):
    made.sweep([a_cell()])
    for words, code, said in REFUSALS:
        done = effbench("baseline", *words)
        assert (done.code, done.out, done.err.count("\n")) == (code, "", 1)
        assert said in done.err


def test_no_database(tmp_path, monkeypatch, effbench):
    monkeypatch.chdir(tmp_path)
    for words in (("set", "main"), ("ls",), ("rm", "main")):
        done = effbench("baseline", *words)
        assert done.code == 2
        assert "no database at" in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_baseline_whose_sweep_is_gone(made, effbench):
    sweep = made.sweep([a_cell()])
    effbench("baseline", "set", "main", sweep)
    made.delete_sweep(sweep)
    assert "gone" in effbench("baseline", "ls").out
    said = f"baseline main on NVIDIA H200 forgotten; sweep {sweep} is gone from this database\n"
    assert effbench("baseline", "rm", "main").out == said
