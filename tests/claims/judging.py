"""Judge a shipped claim from rows of its sweeps."""

from types import SimpleNamespace

from effbench.claims.definition import find
from effbench.claims.run import Reproduction


def judged(name, gpus=2, **results):
    """The judgement of a claim. `results`: rows by sweep; `gpus`: number of this machine's GPUs."""
    (experiment,) = find([name])
    (claim,) = [claim for claim in experiment.claims if claim.id == name]
    run = Reproduction(
        experiment,
        server=None,
        probed=SimpleNamespace(gpus=["an H200"] * gpus),
        db="",
        overrides={},
        quiet=True,
        results=results,
    )
    judgement = run.judge(claim)
    assert not run.mistakes
    return judgement


def outcomes(judgement):
    """The statements of a claim by outcome."""
    found = {True: [], False: [], None: []}
    for text, holds in judgement.parts.items():
        found[holds].append(text)
    return found
