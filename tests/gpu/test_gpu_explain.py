"""Explanations of modules whose cause is known, through real sweeps on a GPU."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from effbench.analysis.explain import Explanation, Part, Term
from effbench.analysis.kernel_classes import KernelClass
from effbench.store import Store
from effbench.store.trials import TracedTrial

MODEL = (
    "model=custom",
    "model.module._target_=known_causes.Known",
    "model.inputs.x.shape=[512,64]",
    "+model.module.width=64",
    "+model.module.large=134217728",
    "protocol.rounds=3",
)
pytestmark = pytest.mark.alone
#: Variant and mode -> the traced trials of the cell.
Traced = dict[tuple[str, str], list[TracedTrial]]


@pytest.fixture(scope="module")
def swept(run: Any, folder: Any) -> Any:
    """Runs variants in modes, and returns their traces."""

    def sweep(variants: str, modes: str, bs: int) -> Traced:
        variant = f"+model.module.variant={variants}"
        db = f"explain-{variants.partition(',')[0]}.db"
        run(*MODEL, variant, f"mode={modes}", f"bs={bs}", f"db={db}")
        traced: Traced = {}
        with contextlib.chdir(folder), Store.open(db, mode="read") as store:
            sweep_id = store.find_sweep("last").id
            cells = {cell.key: cell for cell in store.planned(sweep_id)}
            for row in store.results(sweep_id):
                variant = cells[row.cell_key].model["module"]["variant"]
                traces = store.traces(sweep_id, row.cell_key, row.environment_id)
                traced[variant, row.mode] = traces
        return traced

    return sweep


@pytest.fixture(scope="module")
def eager(swept: Any) -> Traced:
    """With calls of milliseconds, most of which the GPU works."""
    return swept("plain,wide,sleep,copy,flash,math", "eager", bs=256)


@pytest.fixture(scope="module")
def compiled(swept: Any) -> Traced:
    return swept("fused,broken,uncompiled", "default", bs=1)


@pytest.fixture(scope="module")
def graphed(swept: Any) -> Traced:
    return swept("many", "cuda-graph,eager", bs=1)


def largest_term(first: list[TracedTrial], second: list[TracedTrial]) -> tuple[Term, Explanation]:
    explanation = Explanation.of(first, second, ("old", "new"))
    explained = [term for term in explanation.terms if term.name != Part.REST]
    terms = sum(term.ms.value for term in explanation.terms)
    assert terms == pytest.approx(explanation.latency.ms.value, rel=1e-6, abs=1e-9)
    print(explanation.sentence)
    return max(explained, key=lambda term: term.ms.value), explanation


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("plain", "wide", KernelClass.PRODUCTS),
        ("plain", "sleep", Part.GAPS),
        ("plain", "copy", KernelClass.COPIES),
        ("flash", "math", KernelClass.ATTENTION),
    ],
)
def test_the_largest_term_is_the_known_cause(
    eager: Traced, first: str, second: str, expected: str
) -> None:
    term, explanation = largest_term(eager[first, "eager"], eager[second, "eager"])
    assert term.name == expected, explanation.sentence


@pytest.mark.parametrize("second", ["broken", "uncompiled"])
def test_a_fusion_that_is_prevented_makes_pointwise_kernels_longer(
    compiled: Traced, second: str
) -> None:
    term, explanation = largest_term(compiled["fused", "default"], compiled[second, "default"])
    assert term.name == KernelClass.POINTWISE, explanation.sentence


def test_without_its_graph_the_gpu_waits_for_launches(graphed: Traced) -> None:
    term, explanation = largest_term(graphed["many", "cuda-graph"], graphed["many", "eager"])
    assert term.name == Part.GAPS, explanation.sentence
