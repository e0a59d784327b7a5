"""Explanations of modules whose cause is known, through real sweeps on the CPU."""

import pytest

from effbench.analysis.explain import ON_CPU, Explanation, Part
from effbench.analysis.kernel_classes import KernelClass
from effbench.store import Store

MODEL = (
    "model=custom",
    "model.module._target_=known_causes.Known",
    "model.inputs.x.shape=[128,32]",
    "bs=4",
    "threads=1",
    "protocol.profile=true",
)


@pytest.fixture(scope="module")
def place(cli_in, tmp_path_factory):
    folder = tmp_path_factory.mktemp("explained") / "here"
    folder.mkdir()
    return cli_in(folder, imports=False)


def swept(place, variants, *more):
    """Variant -> the traced trials of its cell."""
    done = place.sweep(*MODEL, f"+model.module.variant={variants}", *more)
    assert done.code == 0, done.err
    with Store.open(place.db, mode="read") as store:
        sweep_id = store.find_sweep("last").id
        cells = {cell.key: cell.model["module"]["variant"] for cell in store.planned(sweep_id)}
        return {
            cells[result.cell_key]: store.traces(sweep_id, result.cell_key, result.environment_id)
            for result in store.results(sweep_id)
        }


@pytest.fixture(scope="module")
def eager(place):
    return swept(place, "plain,wide,sleep,copy,flash,math", "mode=eager", "protocol.rounds=2")


@pytest.fixture(scope="module")
def compiled(place):
    more = ("mode=default", "+model.module.large=4194304")
    return swept(place, "fused,broken,uncompiled", *more)


def largest_term(first, second):
    explanation = Explanation.of(first, second, ("old", "new"))
    explained = [term for term in explanation.terms if term.name != Part.REST]
    return max(explained, key=lambda term: term.ms.value), explanation


def assert_adds_up(explanation):
    terms = sum(term.ms.value for term in explanation.terms)
    assert terms == pytest.approx(explanation.latency.ms.value, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("plain", "wide", KernelClass.PRODUCTS),
        ("plain", "sleep", ON_CPU[Part.GAPS]),
        ("plain", "copy", KernelClass.COPIES),
        ("flash", "math", KernelClass.ATTENTION),
    ],
)
def test_the_largest_term_is_the_known_cause(eager, first, second, expected):
    term, explanation = largest_term(eager[first], eager[second])
    assert term.name == expected, explanation.sentence
    assert_adds_up(explanation)


@pytest.mark.slow  # three compilations
@pytest.mark.parametrize(
    ("second", "expected"),
    [("broken", KernelClass.FUSED_LOOPS), ("uncompiled", KernelClass.POINTWISE)],
)
def test_the_largest_term_of_compiled_code_is_the_known_cause(compiled, second, expected):
    term, explanation = largest_term(compiled["fused"], compiled[second])
    assert term.name == expected, explanation.sentence
    assert_adds_up(explanation)


def test_the_faster_side_has_the_same_cause(eager):
    explanation = Explanation.of(eager["copy"], eager["plain"], ("old", "new"))
    fastest = min(explanation.terms, key=lambda term: term.ms.value)
    assert fastest.name == KernelClass.COPIES
