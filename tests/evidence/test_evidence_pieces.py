"""Every piece on the CPU: plain facts, or a clear word on what is missing; and the claims that are covered."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from effbench.errors import UnsupportedError
from effbench.evidence import base, pieces
from effbench.models.build import resolve_target
from effbench.modes.base import needs_compiler

CPU = torch.device("cpu")
PIECES = {piece.name: piece for piece in pieces()}
ON_CPU = [name for name, piece in PIECES.items() if base.CUDA not in piece.needs]
ON_CUDA = [name for name, piece in PIECES.items() if base.CUDA in piece.needs]
#: Those that compile or start interpreters have tests of their own and are run once, there.
SLOW = {
    "recompiling.recompilation",
    "warmup.first_calls",
    "inductor.without_triton",
    "control_flow.capture_methods",
}


def call(name, **settings):
    return resolve_target(PIECES[name].target)(CPU, **settings)


def test_the_claims_are_covered():
    covered = {claim for piece in PIECES.values() for claim in piece.claims}
    assert covered == {*(f"S{n}" for n in range(1, 19) if n != 13), "O9", "O10", "P8"}


def test_a_piece_says_what_it_shows():
    for piece in PIECES.values():
        assert piece.shows.endswith("."), piece
        assert len(piece.shows) > 30, piece


def test_the_order_is_that_of_the_ledger():
    firsts = [piece.claims[0] for piece in pieces()]
    assert firsts[:3] == ["O9", "O10", "P8"]
    assert firsts[3:] == sorted(firsts[3:], key=lambda claim: int(claim[1:]))


@pytest.mark.parametrize("name", ON_CUDA)
def test_what_needs_cuda_says_so(name):
    with pytest.raises(UnsupportedError, match="needs CUDA, and this runs on cpu"):
        call(name)


@pytest.mark.parametrize("name", sorted(set(ON_CPU) - SLOW))
def test_facts_are_plain(name):
    facts = call(name)
    assert facts
    assert json.loads(json.dumps(facts, allow_nan=False)).keys() == facts.keys()


def test_without_a_compiler_a_piece_that_compiles_is_unsupported(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert needs_compiler(CPU)
    with pytest.raises(UnsupportedError, match=r"C\+\+ compiler"):
        call("inductor.without_triton")


def test_what_a_call_raises_is_an_observation():
    def fails():
        raise ValueError("first\nsecond")

    assert base.attempt(fails).facts() == {"succeeded": False, "error_type": "ValueError", "error": "first"}
    done = base.attempt(lambda: 3)
    assert (done.value, done.facts()) == (3, {"succeeded": True, "error_type": None, "error": None})
    with pytest.raises(KeyboardInterrupt):  # Ctrl-C is none
        base.attempt(lambda: (_ for _ in ()).throw(KeyboardInterrupt()))


def test_small_tensors_as_lists():
    assert base.listed(torch.arange(6).view(2, 3)) == [0, 1, 2]
    assert base.listed(torch.tensor([1.5, float("nan"), float("inf")])) == [1.5, "nan", "inf"]
    assert base.listed(torch.tensor(2.0)) == [2.0]
    assert len(base.listed(torch.zeros(100), most=5)) == 5


def test_close_means_the_same_values_and_shape():
    x = torch.randn(3)
    assert base.close(x, x + 1e-7)
    assert not base.close(x, x + 0.01)
    assert not base.close(x, x[:1])
    assert not base.close(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
