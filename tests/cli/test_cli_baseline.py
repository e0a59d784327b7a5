from made_sweeps import a_cell, environment


def test_set_ls_rm(made, effbench):
    first = made.sweep([a_cell()], label="v1")
    done = effbench("baseline", "set", "main", "--note", "[red]good")
    assert (done.code, done.err) == (0, "")
    assert done.out == f"baseline main on NVIDIA H200: sweep {first}\n"
    listed = effbench("baseline", "ls").out
    for text in ("main", "NVIDIA H200", first, "v1", "[red]good"):
        assert text in listed
    second = made.sweep([a_cell()], name="nightly")
    assert f"sweep {second} (was {first})" in effbench("baseline", "set", "main", "nightly").out
    assert "before" not in effbench("baseline", "set", "main", second).out
    assert "(nightly)" in effbench("baseline", "ls").out
    assert effbench("baseline", "rm", "main").out == f"removed baseline main on NVIDIA H200 (sweep {second})\n"
    assert second in effbench("ls").out


def test_sweeps_are_marked_in_the_list_of_sweeps(made, effbench):
    first = made.sweep([a_cell()])
    second = made.sweep({a_cell(): {}, a_cell("default"): {"status": "error"}}, state="interrupted")
    assert "baseline" not in effbench("ls").out
    assert "that sweep is interrupted (1 error)" in effbench("baseline", "set", "main").out
    effbench("baseline", "set", "v1", first)
    made.sweep([a_cell()], env=environment(gpu_name="NVIDIA A100"), into=first)
    effbench("baseline", "set", "main", first)  # on two kinds of hardware, and named once
    heading, *rows = effbench("ls").out.splitlines()
    assert heading.split()[:3] == ["sweep", "name", "baseline"]
    marked = {row.split()[0]: row[heading.index("baseline") : heading.index("started")].strip() for row in rows}
    assert marked == {first: "main, v1", second: ""}


def test_refusals(made, effbench):
    made.sweep([a_cell()])
    for words, code, said in (
        ((), 2, "set|ls|rm"),
        (("set", "a b"), 2, "cannot name a baseline"),
        (("set", "main", "nowhere"), 3, "no sweep 'nowhere'"),
        (("rm", "main"), 3, "`effbench baseline set main last` sets it"),
        (("ls",), 3, "has no baseline"),
    ):
        done = effbench("baseline", *words)
        assert (done.code, done.out, done.err.count("\n")) == (code, "", 1)
        assert said in done.err
