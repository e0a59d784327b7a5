"""The seconds of torch's compiler, from its records."""

from types import SimpleNamespace

import pytest
import torch
import torch._dynamo.utils as dynamo

from effbench.measure.cold_parts import CaptureClock, CompilerSeconds, read

#: As torch records compiling a graph for a GPU; the time of a kernel's choice is in Inductor's.
COMPILED = {
    "_compile.compile_inner": [6.0],
    "create_aot_dispatcher_function": [5.5],
    "compile_fx_inner": [4.0],
    "compile_file": [1.0, 1.0],
}
TUNED = SimpleNamespace(
    compile_time_autotune_time_us=1_500_000, runtime_triton_autotune_time_us=None
)
CALLED = SimpleNamespace(runtime_triton_autotune_time_us=250_000)


@pytest.mark.parametrize(
    ("recorded", "compilations", "seconds"),
    [
        (COMPILED, [], CompilerSeconds(trace=2.0, compile=4.0)),
        (COMPILED, [TUNED, CALLED], CompilerSeconds(trace=2.0, compile=2.5, autotune=1.75)),
        (
            {"_compile.compile_inner": [2.0], "AOTAutogradCache.inductor_load": [1.5]},
            [],
            CompilerSeconds(trace=0.5, compile=1.5),
        ),
        (
            {"create_aot_dispatcher_function": [0.5], "compile_fx_inner": [4.0]},
            [],
            CompilerSeconds(trace=0.5, compile=4.0),
        ),
        ({}, [], CompilerSeconds()),
    ],
    ids=["compiled", "autotuned", "cached", "exported", "nothing"],
)
def test_seconds_of_the_compiler_do_not_overlap(monkeypatch, recorded, compilations, seconds):
    monkeypatch.setattr(dynamo, "compilation_time_metrics", recorded)
    monkeypatch.setattr(dynamo, "get_compilation_metrics", lambda: compilations)
    assert read() == seconds


def test_captures_are_timed_from_their_beginning_to_their_end(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda.graph, "__enter__", lambda graph: calls.append("begin"))
    monkeypatch.setattr(torch.cuda.graph, "__exit__", lambda graph, *error: calls.append("end"))
    begin = torch.cuda.graph.__enter__
    graph = object.__new__(torch.cuda.graph)
    clock = CaptureClock()
    with clock.running(), graph:
        calls.append("captured")
    assert calls == ["begin", "captured", "end"]
    assert clock.seconds > 0
    assert torch.cuda.graph.__enter__ is begin
