"""TorchScript, AOTInductor, graphed callables, the backend cudagraphs: what of them can be seen
without CUDA."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo.utils
from torch import nn

from effbench.errors import ConfigError, UnsupportedError
from effbench.measure import counters
from effbench.modes import exported
from effbench.modes.backends import CudaGraphsBackend
from effbench.modes.base import Positional
from effbench.modes.callables import GraphedCallables, calls_of
from effbench.modes.exported import AotInductor
from effbench.modes.scripted import JitScript, JitTrace

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class Scaled(nn.Module):
    """Tensors by position and by name, a value that is no tensor, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("shift", torch.randn(4))

    def forward(self, x, times: int, *, scale):
        return {"y": self.layer(x) * times * scale + self.shift}


@pytest.mark.parametrize(
    "settings", [{}, {"freeze": True}, {"optimize_for_inference": True}], ids=str
)
@pytest.mark.parametrize("mode", [JitTrace, JitScript])
def test_torchscript_follows_its_inputs(mode, settings, recwarn):
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU()).eval()
    with torch.inference_mode():
        prepared = mode(**settings).prepare(module, (torch.randn(1, 2, 5, 5),), {})
        for _ in range(4):
            x = torch.randn(1, 2, 5, 5)
            torch.testing.assert_close(prepared.step(x), module(x), rtol=1e-4, atol=1e-5)
    assert prepared.compile_cache == "cold"
    assert any("deprecated" in words for words in prepared.facts["deprecations"])
    assert not [w for w in recwarn if "torch.jit.trace`" in str(w.message)], "recorded, not shown"


@pytest.mark.filterwarnings("ignore")  # TorchScript is deprecated
def test_the_reason_of_an_output_that_cannot_be_traced_names_its_type():
    class Wrapped(nn.Module):
        def forward(self, x):
            return SimpleNamespace(x=x)

    with pytest.raises(
        TypeError, match=r"^torch.jit.trace does not support this output: Only .*SimpleNamespace"
    ):
        JitTrace().prepare(Wrapped(), (torch.randn(2, 4),), {})


def test_a_graphed_step_takes_the_modules_own_arguments():
    module = Scaled().eval()
    args, kwargs = (torch.randn(2, 4), 3), {"scale": torch.randn(2, 1)}
    wrapper = Positional(module, args, kwargs)  # as torch would give it back
    torch.testing.assert_close(wrapper.calling(wrapper)(*args, **kwargs), module(*args, **kwargs))
    plain = Positional(module.layer, args[:1], {})
    assert plain.calling(plain) is plain
    shared = nn.Linear(4, 4)
    with pytest.raises(ConfigError, match=r"mode.only: 0 is called 2 times per call of the module"):
        calls_of(nn.Sequential(shared, nn.ReLU(), shared), {"0": shared}, (torch.randn(2, 4),), {})


@pytest.fixture
def graphed(monkeypatch):
    """torch.cuda.make_graphed_callables without CUDA: it replaces `forward` alike, and what it was
    given is noted."""
    made: list[tuple[int, int]] = []  # (callables, warm-ups) of each call

    def replay(wrapper):
        inner = wrapper.inner
        # a graph knows nothing of what replaces inner.forward
        call = inner if wrapper.hooks else partial(type(inner).forward, inner)
        wrapper.forward = lambda *given: call(*given)

    def make(callables, sample_args, num_warmup_iters):
        modules = callables if isinstance(callables, tuple) else (callables,)
        made.append((len(modules), num_warmup_iters))
        for module in modules:
            replay(module)
        return callables

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", make)
    return made


@pytest.mark.parametrize(
    ("settings", "made", "graphs"),
    [
        ({}, [(1, 3)], 1),
        ({"num_warmup_iters": 11}, [(1, 11)], 1),
        ({"only": ["0", "2.*"]}, [(3, 3)], 3),
        ({"only": ["0", "2.*"], "share_pool": False}, [(1, 3)] * 3, 3),
    ],
)
def test_the_whole_or_its_parts_are_graphed(graphed, settings, made, graphs):
    module = nn.Sequential(
        nn.Linear(4, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    ).eval()
    with torch.inference_mode():
        prepared = GraphedCallables(**settings).prepare(module, (torch.randn(2, 4),), {})
        assert graphed == made
        assert prepared.facts["graphs"] == graphs
        for _ in range(3):
            x = torch.randn(2, 4)
            torch.testing.assert_close(prepared.step(x), module(x))
    if settings.get("only"):
        assert all("forward" in vars(part) for part in (prepared.step[0], *prepared.step[2])), (
            "replaced in the copy"
        )
    assert not [part for part in module.modules() if "forward" in vars(part)], (
        "the module itself stays"
    )


@pytest.mark.parametrize("only", [None, ["0"]])
def test_hooks_of_a_graphed_module_and_its_parts_run_once(graphed, only):
    module, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4)
    for part in (module, module[0]):
        part.register_forward_hook(lambda part, given, output: 2 * output)
        part.register_forward_pre_hook(lambda part, given: (given[0] + 1,))
    torch.testing.assert_close(
        GraphedCallables(only=only).prepare(module, (x,), {}).step(x), module(x)
    )


def test_what_the_backend_cudagraphs_skips_is_a_reason(fresh_dynamo):
    """On the CPU it skips everything, as it does on CUDA for a graph with a tensor on the CPU."""
    module = nn.Linear(4, 4).eval()
    with torch.inference_mode(), counters.Observer() as observer:
        prepared = CudaGraphsBackend().prepare(module, (torch.randn(2, 4),), {})
        x = torch.randn(2, 4)
        torch.testing.assert_close(prepared.step(x), module(x))
    read = counters.read()
    assert (read.graphs, read.cudagraph_skips, read.cache_state) == (1, 1, "cold")
    assert prepared.compile_cache == "cold"
    words = observer.degraded_reason(read, CUDA)
    assert words.startswith("1 graph(s) ran without a CUDA graph: skipping cudagraphs due to")
    assert "cpu" in words


@pytest.fixture
def packaged(monkeypatch, tmp_path):
    """AOTInductor in an empty folder, with another compiler in the place of torch's."""

    def make(compiler):
        monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", compiler)
        mode = AotInductor()
        mode.cache_dir = str(tmp_path)
        return mode.prepare(nn.Linear(2, 2).eval(), (torch.randn(1, 2),), {})

    return make


def test_aot_inductor_names_what_is_missing(monkeypatch):
    monkeypatch.setattr(exported, "needs_compiler", lambda device: None)
    monkeypatch.setattr(exported, "cuda_home", lambda: None)
    assert AotInductor().missing(CPU) is None
    assert "install the CUDA toolkit" in AotInductor().missing(CUDA)
    monkeypatch.setattr(exported, "cuda_home", lambda: "/usr/local/cuda")
    assert AotInductor().missing(CUDA) is None
    monkeypatch.setattr(exported, "needs_compiler", lambda device: f"no compiler for {device.type}")
    assert AotInductor().missing(CUDA) == "no compiler for cpu"


@pytest.mark.parametrize(
    "words",
    [
        "CUDA_HOME environment variable is not set. Please set it to your CUDA install root.",
        "C++ compile error\n/usr/bin/ld: cannot find -lcuda: No such file or directory",
        (
            "C++ compile error\nutils_cuda.h:15:10: fatal error: cuda_runtime.h: No such file or"
            " directory"
        ),
        "host_config.h:1: fatal error: crt/host_defines.h: No such file or directory",
    ],
)
def test_a_toolkit_that_is_missing_while_compiling(packaged, tmp_path, words):
    def compiler(*_: object, **__: object) -> None:
        raise OSError(words)

    with pytest.raises(UnsupportedError, match="install the CUDA toolkit or set CUDA_HOME"):
        packaged(compiler)
    assert not list(tmp_path.iterdir())


def test_a_package_with_other_weights_is_replaced(monkeypatch, tmp_path):
    made, loaded = [], []

    def compiler(program, package_path, inductor_configs):
        made.append(Path(package_path).name)
        Path(package_path).write_text("package")

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", compiler)
    monkeypatch.setattr(torch._inductor, "aoti_load_package", loaded.append)
    outcomes = []
    for weights in ("a" * 64, "a" * 64, "b" * 64, "b" * 64, None):
        mode = AotInductor()
        mode.cache_dir, mode.weights = str(tmp_path), weights
        prepared = mode.prepare(nn.Linear(2, 2).eval(), (torch.randn(1, 2),), {})
        outcomes.append((prepared.compile_cache, "weights_differ" in prepared.facts))
        assert len(list(tmp_path.iterdir())) == 1, "a package takes as much space as the weights"
    assert outcomes == [
        ("cold", False),
        ("warm", False),
        ("cold", True),
        ("warm", False),
        ("cold", True),
    ]
    assert (len(made), len(loaded)) == (3, 5)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.export's, of its own code
@pytest.mark.slow
def test_a_static_standard_library_is_not_linked(tmp_path):
    """Even with a compiler that links its standard library into what it makes."""
    cxx = tmp_path / "g++"
    cxx.write_text(
        '#!/bin/sh\ncase " $* " in *" -shared "*) set -- -static-libstdc++ "$@";; esac\nexec g++'
        ' "$@"\n'
    )
    cxx.chmod(0o755)
    module, x = nn.Linear(2, 2).eval(), torch.randn(1, 2)
    with torch._inductor.config.patch({"cpp.cxx": (None, str(cxx))}):
        torch.testing.assert_close(AotInductor().prepare(module, (x,), {}).step(x), module(x))
