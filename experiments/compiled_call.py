"""Where does the host time of a small compiled call go, and which setting removes most of it?

B batch, D width. Times are host times per call in µs: from an idle device until the call returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import count
from types import FunctionType
from typing import Any

import numpy as np
import torch
from effbench.claims._processes import in_fresh_process
from effbench.claims._timing import disturbed_fraction, figure, host_us, in_turn
from effbench.claims._tools import Recorded, attempt, error_facts, fresh_compile_cache, record
from torch import nn
from torch._dynamo.utils import get_compilation_metrics

from effbench.claims import Answer, Claim
from effbench.claims.checks import COMPILER, Facts, check
from effbench.modes.base import Example
from effbench.modes.compiled import marking_steps
from effbench.modes.exported import AotInductor
from effbench.modes.graphs import capture
from effbench.modes.inductor import mode_options

GPU_SECONDS = 110

DEFAULT, REDUCED = "default", "reduce-overhead"
SKIP_GUARDS = "skip_guard_eval_unsafe"
#: Setting -> options of torch.compile; a string is the name of a guard filter in torch.compiler.
OPTIONS: dict[str, dict[str, Any]] = {
    "size_asserts and alignment_asserts off": {"size_asserts": False, "alignment_asserts": False},
    "freezing": {"freezing": True},
    "cpp_wrapper": {"cpp_wrapper": True},
    "skip_all_guards_unsafe": {"guard_filter_fn": "skip_all_guards_unsafe"},
    "cudagraph_trees off": {"triton.cudagraph_trees": False},
    "slow_path_cudagraph_asserts off": {"triton.slow_path_cudagraph_asserts": False},
}
_numbers = count()


class Layers(nn.Module):
    """(B, D) -> (B, D). All instances share their layers, but each has its own code object: Dynamo
    keeps compiled code by code object, and would check the guards of several variants in each
    call."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        shared = Layers.run
        code = shared.__code__.replace(co_name=f"run_{next(_numbers)}")
        own = FunctionType(code, shared.__globals__, code.co_name)
        self.forward = own.__get__(self)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


class AddOne(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Recording:
    """A backend of torch.compile that is Inductor and keeps the parts of a call: `wrapped`,
    AOTAutograd's wrapper, called with `args` by Dynamo; and `inner`, Inductor's code, called with
    the list `inner_args` by the wrapper."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options

    def __call__(
        self, graph: torch.fx.GraphModule, example_inputs: list[Any]
    ) -> Callable[..., Any]:
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner

        def compile_inner(*args: Any, **kwargs: Any) -> Any:
            self.inner = compile_fx_inner(*args, **kwargs)
            return self.inner

        # a hit would not compile the inner part
        with torch._functorch.config.patch(enable_autograd_cache=False):
            self.wrapped = compile_fx(
                graph, example_inputs, inner_compile=compile_inner, config_patches=self.options
            )

        def run(*args: Any) -> Any:
            self.args = args
            return self.wrapped(*args)

        return run

    def record_inner_args(self) -> None:
        """Call the wrapper once and keep the arguments of Inductor's code."""
        original = self.inner.current_callable

        def recording(args: list[Any]) -> Any:
            self.inner_args = list(args)
            return original(args)

        self.inner.current_callable = recording
        try:
            self.wrapped(*self.args)
        finally:
            self.inner.current_callable = original


class Calls:
    """The variants of a call of one stack of layers, as functions without arguments. `missing`:
    variant -> reason."""

    def __init__(self, device: torch.device, width: int, depth: int, batch: int) -> None:
        self.device = device
        self.layers = [
            nn.Linear(width, width, device=device).requires_grad_(False) for _ in range(depth)
        ]
        self.x = torch.randn(batch, width, device=device)
        self.measures: dict[str, Callable[[], float]] = {}
        self.missing: dict[str, Facts] = {}
        self.guards: dict[str, int | None] = {}

    def add(
        self,
        name: str,
        make: Callable[[], Callable[[], Any]],
        grad_mode: Callable[[], AbstractContextManager] = torch.no_grad,
        stance: Callable[[], AbstractContextManager] = nullcontext,
    ) -> None:
        """Add the call that `make` returns, or the reason why it failed. It compiles in `grad_mode`
        alone, and is timed in `grad_mode` and `stance`."""

        def prepare() -> Callable[[], Any]:
            with grad_mode():
                call = make()
                for _ in range(4):
                    call()
                with stance():
                    call()
                return call

        tried = attempt(prepare)
        if tried.raised:
            self.missing[name] = error_facts(tried.raised)
            return
        measure = host_us(tried.value, self.device)

        def measured() -> float:
            with grad_mode(), stance():
                return measure()

        self.measures[name] = measured

    def compiled(
        self,
        mode: str,
        options: dict[str, Any] | None = None,
        in_place: bool = False,
        **settings: Any,
    ) -> Callable[[], Any]:
        """Return a call of a newly compiled module. A guard filter may be given by its name in
        torch.compiler. `in_place`: with `Module.compile()`, which needs no module around the
        module."""
        chosen = mode_options(mode, {})
        for name, value in (options or {}).items():
            chosen[name] = getattr(torch.compiler, value) if name == "guard_filter_fn" else value
        settings = {"dynamic": False, **(settings or {"options": chosen})}
        step: Any = Layers(self.layers)
        if in_place:
            step.compile(**settings)
        else:
            step = torch.compile(step, **settings)
        return partial(marking_steps(step) if mode == REDUCED else step, self.x)

    def add_mode(self, mode: str) -> None:
        """Add a mode of torch.compile: whole, without parts of it, and with each setting."""
        self.add(mode, partial(self.compiled, mode))
        # None: something else was compiled
        counts = [metrics.guard_count for metrics in get_compilation_metrics()]
        self.guards[mode] = next((count for count in reversed(counts) if count is not None), None)
        self.add(f"{mode}, inference_mode", partial(self.compiled, mode), torch.inference_mode)
        without_guards = partial(torch.compiler.set_stance, skip_guard_eval_unsafe=True)
        self.add(f"{mode}, {SKIP_GUARDS}", partial(self.compiled, mode), stance=without_guards)
        self.add_parts(mode)
        for setting, options in OPTIONS.items():
            if mode == REDUCED or "cudagraph" not in setting:
                self.add(f"{mode}, {setting}", partial(self.compiled, mode, options))
        self.add(f"{mode}, Module.compile()", partial(self.compiled, mode, in_place=True))

    def add_parts(self, mode: str) -> None:
        backend = Recording(mode_options(mode, {}))
        new_step = torch.compiler.cudagraph_mark_step_begin if mode == REDUCED else lambda: None

        def wrapped() -> Callable[[], Any]:
            whole = self.compiled(mode, backend=backend)
            for _ in range(4):  # Inductor with CUDA graphs warms up, records and replays
                whole()
            new_step()
            backend.record_inner_args()
            return lambda: (new_step(), backend.wrapped(*backend.args))[0]

        self.add(f"{mode}: AOT wrapper", wrapped)
        self.add(
            f"{mode}: Inductor's code",
            lambda: lambda: (new_step(), backend.inner([*backend.inner_args]))[0],
        )


def add_graphs(calls: Calls) -> None:
    """Add the variants that need CUDA: cudagraph trees with a fixed input, and graphs captured by
    hand."""
    x = calls.x

    def at_fixed_address() -> Callable[[], Any]:
        fixed = x.clone()
        torch._dynamo.mark_static_address(fixed)
        step = torch.compile(Layers(calls.layers), dynamic=False, options=mode_options(REDUCED, {}))
        return partial(marking_steps(step), fixed)

    def without_mark() -> Callable[[], Any]:
        step = torch.compile(Layers(calls.layers), dynamic=False, options=mode_options(REDUCED, {}))
        return partial(step, x)

    calls.add_mode(REDUCED)
    calls.add(f"{REDUCED}, mark_static_address", at_fixed_address)
    calls.add(f"{REDUCED}, no cudagraph_mark_step_begin", without_mark)
    recorded: list[Recorded] = []

    def replay() -> Callable[[], Any]:
        step = torch.compile(Layers(calls.layers), dynamic=False)
        recorded.append(record(step, x))
        return recorded[0].captured.replay

    calls.add("graph by hand: replay", replay)
    calls.add(
        "graph by hand",
        lambda: partial(capture(torch.compile(Layers(calls.layers)), (x,), {}, 3).step, x),
    )


@check(needs=(COMPILER,))
def host_time(
    device: torch.device,
    width: int | None = None,
    depth: int = 8,
    batch: int = 8,
    rounds: int = 200,
) -> Facts:
    """Time the parts of a compiled call and the settings that remove them, all in turn in random
    order.

    A part is the difference between two calls, taken within each round: guards = the call - the
    call with skip_guard_eval_unsafe; Dynamo besides guards = the latter - AOTAutograd's wrapper
    called directly; and so on.
    """
    width = width or (256 if device.type == "cuda" else 32)
    calls = Calls(device, width, depth, batch)
    with fresh_compile_cache():
        calls.add("eager", lambda: partial(Layers(calls.layers), calls.x))
        calls.add("one operator", lambda: partial(AddOne(), calls.x))
        in_eager = partial(torch.compiler.set_stance, "force_eager")
        calls.add(
            "one operator, force_eager",
            lambda: partial(torch.compile(AddOne()), calls.x),
            stance=in_eager,
        )
        calls.add_mode(DEFAULT)
        packaged = AotInductor()
        if reason := packaged.missing(device):
            calls.missing["aot-inductor"] = {"error": reason}
        else:
            calls.add(
                "aot-inductor",
                lambda: partial(
                    packaged.prepare(Layers(calls.layers), Example((calls.x,))).step, calls.x
                ),
            )
        if device.type == "cuda":
            add_graphs(calls)
        measured = in_turn(calls.measures, rounds)
    facts: Facts = {
        "width": width,
        "layers": depth,
        "calls_us": {name: figure(samples) for name, samples in measured.items()},
        "not_available": calls.missing,
        "guards": calls.guards,
        "disturbed_fraction": disturbed_fraction(measured),
    }
    for mode in (DEFAULT, REDUCED):
        if mode in measured:
            facts[mode] = taken_apart(mode, measured)
    settings = {"width": width, "depth": depth, "batch": batch}
    return {**facts, "spawned": in_fresh_process(whole_calls, device, **settings)}


def taken_apart(mode: str, measured: dict[str, list[float]]) -> Facts:
    """Return the parts of a mode's call and what each setting saves, in µs, with the parts'
    fraction of the call."""
    times = {name: np.array(samples) for name, samples in measured.items()}
    needed = (mode, f"{mode}, {SKIP_GUARDS}", f"{mode}: AOT wrapper", f"{mode}: Inductor's code")
    parts = {}
    if all(name in times for name in needed):
        whole, unguarded, wrapper, inner = (times[name] for name in needed)
        around = times["one operator, force_eager"] - times["one operator"]
        parts = {
            "torch.compile's Python wrapper": around,
            "guards": whole - unguarded,
            "Dynamo's bytecode, which fetches the parameters": unguarded - wrapper - around,
            "AOTAutograd's wrapper": wrapper - inner,
        }
        if mode == REDUCED and (replay := times.get("graph by hand: replay")) is not None:
            parts |= {"cudagraph trees": inner - replay, "launch of the graph": replay}
        else:
            parts["Inductor's code with its launches"] = inner
    saved = {
        name.partition(", ")[2]: figure(times[mode] - samples)
        for name, samples in times.items()
        if name.startswith(f"{mode}, ")
    }
    return {
        "parts_us": {name: figure(part) for name, part in parts.items()},
        "parts_fraction": {name: figure(part / times[mode]) for name, part in parts.items()},
        "saved_us": saved,
        "largest_part": max_by_value({name: figure(part) for name, part in parts.items()}),
        "saves_most": max_by_value(saved),
    }


def max_by_value(figures: dict[str, dict[str, float]]) -> str | None:
    return max(figures, key=lambda name: figures[name]["value"], default=None)


def whole_calls(device: torch.device, width: int, depth: int, batch: int) -> Facts:
    """Time whole calls in this process: in a new interpreter, to compare with the check's own,
    which is forked."""
    calls = Calls(device, width, depth, batch)
    for mode in (DEFAULT, REDUCED) if device.type == "cuda" else (DEFAULT,):
        calls.add(mode, partial(calls.compiled, mode))
    return {
        "calls_us": {name: figure(samples) for name, samples in in_turn(calls.measures, 60).items()}
    }


@Claim(
    "O11",
    "Before its kernels, a small compiled call mostly checks Dynamo's guards; skipping them removes"
    " most of its host time.",
    unit="%",
)
def o11(host_time):
    holds, also = {}, {}
    for mode in (DEFAULT, REDUCED):
        if mode not in host_time:
            continue
        parts, shares = host_time[mode].parts_us, host_time[mode].parts_fraction
        others = [shares[name] for name in shares if name != "guards"]
        holds[mode] = shares.guards.above(sum(others))
        also |= {f"{mode}: the call (µs)": host_time.calls_us[mode]}
        also |= {f"{mode}: {name} (µs)": parts[name] for name in parts}
        also |= {f"{mode}: the setting that removes most": host_time[mode].saves_most}
        saved = host_time[mode].saved_us
        also |= {f"{mode}: {name} removes (µs)": saved[name] for name in saved}
        spawned = host_time.spawned.get("calls_us", {}).get(mode)
        also |= {f"{mode}: in a spawned process (µs)": spawned}
        also |= {f"{mode}: guards": host_time.guards[mode]}
    names = [
        name for name in ("graph by hand", "aot-inductor", "eager") if name in host_time.calls_us
    ]
    also |= {f"{name}: the call (µs)": host_time.calls_us[name] for name in names}
    last = host_time[REDUCED if REDUCED in host_time else DEFAULT]
    return Answer(holds, last.parts_fraction.guards, also)
