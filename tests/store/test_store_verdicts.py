"""Verdicts of claims: every judgement is kept, the newest of each claim, experiment and machine is shown."""

from __future__ import annotations


def verdict(claim="P1", said="confirmed", experiment="modes", sweep=None, **measured):
    return {
        "claim": claim, "experiment": experiment, "sweep_id": sweep, "verdict": said, "reason": "holds",
        "measured": measured,
    }  # fmt: skip


def said(store):
    return [(row["claim"], row["experiment"], row["gpu_name"], row["verdict"]) for row in store.verdicts()]


def test_the_newest_on_each_machine(store, environment):
    h200, a100 = (store.add_environment(environment(gpu_name=name), {}) for name in ("H200", "A100"))
    newer = store.add_environment(environment(gpu_name="H200", torch_version="2.14.0"), {})
    cpu = store.add_environment(environment(cpu_name="EPYC"), {})
    store.add_verdicts(h200, [verdict(said="refuted"), verdict("P2", "depends", value=1.5)])
    store.add_verdicts(a100, [verdict(said="undecided")])
    store.add_verdicts(newer, [verdict()])
    store.add_verdicts(newer, [verdict(experiment="mine", said="refuted")])
    store.add_verdicts(cpu, [verdict(said="not measurable here")])
    assert said(store) == [
        ("P2", "modes", "H200", "depends"),
        ("P1", "modes", "A100", "undecided"),
        ("P1", "modes", "H200", "confirmed"),
        ("P1", "mine", "H200", "refuted"),
        ("P1", "modes", None, "not measurable here"),
    ]
    rows = store.verdicts()
    assert rows[0]["measured"] == {"value": 1.5}
    assert rows[2]["torch_version"] == "2.14.0"
    assert rows[4]["cpu_name"] == "EPYC"
    assert rows[0]["judged_at"].tzinfo is not None
