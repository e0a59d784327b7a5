from made_sweeps import a_cell, steps


def test_x(made, effbench):
    c = a_cell()
    a = made.sweep({c: {"latency_ms": steps(1, 0.002)}}, label="v1")
    b = made.sweep({c: {"latency_ms": steps(1.1, 0.002)}}, label="v2")
    d = effbench("compare", a, b)
    print(d.out, d.err)
    effbench("baseline", "set", "main", a)
    d = effbench("check", "--baseline", "main")
    print(d.out, d.err)
    assert d.code == 1
