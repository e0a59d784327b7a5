"""What is wrong with a piece of evidence, said by the worker that would gather it."""

import pytest

from effbench.worker.probe import unfit

EVIDENCE = "effbench.evidence"


@pytest.mark.parametrize(
    ("target", "settings", "said"),
    [
        (f"{EVIDENCE}.registry.operators", {}, None),
        (f"{EVIDENCE}.shapes.recompilations", {"sizes": [2, 3]}, None),
        (f"{EVIDENCE}.recompiling.recompilation", {"layers": 2}, None),
        ("nosuch.thing", {}, "no module named nosuch"),
        (f"{EVIDENCE}.registry.nosuch", {}, "effbench.evidence.registry has no nosuch"),
        (f"{EVIDENCE}.nosuch.operators", {}, "effbench.evidence has no nosuch"),
        (f"{EVIDENCE}.registry.operators", {"foo": 1}, "has no setting 'foo'; it has: none"),
        (f"{EVIDENCE}.capture.warmups_before_capture", {"compile": 1}, "has no setting 'compile'; it has: "),
    ],
)
def test_targets_and_settings(target, settings, said):
    found = unfit(target, settings)
    assert found is None if said is None else said in found
