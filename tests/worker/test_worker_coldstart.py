"""Cold starts: real fresh processes on the CPU, their parts, caches and failures."""

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from own_cells import EAGER, PhasePipe, cpu_cell

from effbench.core.cell import Status, Trial
from effbench.core.folders import cache_home
from effbench.core.message import TrialRequest
from effbench.core.metrics import COLD_PARTS
from effbench.measure.host import CoreUse
from effbench.models.build import build_module
from effbench.worker import coldstart
from effbench.worker.cold_caches import ColdCaches, Made, Versions
from effbench.worker.coldstart import (
    filling_cell,
    measured_cell,
    steady_call,
    targets_of,
    without_servers,
)
from effbench.worker.context import TrialContext
from effbench.worker.fresh_messages import CacheUse, FreshRequest, FreshResult
from effbench.worker.fresh_process import FreshProcess, FreshRun, run_together

DEFAULT = {"name": "default", "_target_": "effbench.modes.compiled.Compiled"}
AOT_INDUCTOR = {"name": "aot-inductor", "_target_": "effbench.modes.exported.AotInductor"}
MLP = {
    "name": "mlp",
    "module": {"_target_": "effbench.models.mlp.LinearStack", "sizes": [16, 16, 4]},
    "inputs": [{"name": "x", "shape": [16]}],
}
LINEAR = {
    "name": "linear",
    "module": {"_target_": "torch.nn.Linear", "in_features": 16, "out_features": 8},
    "inputs": [{"name": "input", "shape": [16]}],
}


def cold_cell(mode=EAGER, cache="none", model=LINEAR, **settings):
    """A cell of phase=coldstart; `settings` are those of `coldstart`."""
    coldstart = {"change": "none", "processes": 1, "sizes": 1} | settings
    return cpu_cell(4, model, mode, phase="coldstart", coldstart=coldstart, cache=cache)


def cold_start(cell, folder, hear_phase=str):
    """Measure a cold start, and return what it records."""
    request = TrialRequest(cell.params(), {}, cache_dir=str(folder))
    return Trial.from_json(coldstart.run_task(request.to_json(), PhasePipe(hear=hear_phase)))


def parts_of(trial):
    """The seconds of the parts of a cold start."""
    return {name: getattr(trial, name) for name in COLD_PARTS if getattr(trial, name) is not None}


# --- without a compiler


COUNTING = """
import torch


class Counting(torch.nn.Linear):
    def __init__(self):
        super().__init__(16, 8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, input):
        self.calls += 1
        return super().forward(input) * self.calls
"""


@pytest.fixture(scope="module")
def eager(tmp_path_factory):
    """A cold start of a user's module whose answers depend on how often it was called, and its
    phases."""
    folder = tmp_path_factory.mktemp("users")
    (folder / "counting.py").write_text(COUNTING)
    model = {**LINEAR, "module": {"_target_": "counting.py:Counting"}}
    phases = []
    with contextlib.chdir(folder):
        trial = cold_start(cold_cell(model=model), folder / "caches", phases.append)
    return trial, phases


def test_the_parts_add_up_to_the_cold_start(eager):
    trial, _ = eager
    assert trial.status is Status.OK, trial.reason
    parts = parts_of(trial)
    assert parts.keys() == {
        "cold_interpreter_s",
        "cold_imports_s",
        "cold_build_s",
        "cold_first_call_s",
    }
    assert min(parts.values()) > 0
    assert sum(parts.values()) == pytest.approx(trial.cold_s, rel=0.03)


def test_what_a_cold_start_records(eager):
    trial, phases = eager
    assert trial.samples["latency_ms"]
    assert trial.latency_ms < 1e3 * trial.cold_first_call_s
    assert len(trial.extra["coldstart"]["calls_ms"]) == 9
    assert trial.extra["coldstart"]["sizes"][0]["bs"] == 4
    assert trial.rel_error == 0
    assert trial.cache_reuse is None
    longer = [phase for phase in phases if phase != "build"]
    assert longer[-4:] == ["interpreter", "imports", "first_call", "check"]


def test_a_fresh_process_imports_little_of_effbench():
    code = "import effbench.worker.fresh_program, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = {name for name in done.stdout.split() if name.startswith("effbench.")}
    assert "effbench.models.build" in names
    assert "effbench.core.cell" not in names, "its figures take as long as all else"


def fresh_request(tmp_path, **more):
    return FreshRequest(
        module=LINEAR["module"],
        imports=[],
        inputs={"input": {"shape": [16]}},
        mode=EAGER["_target_"],
        settings={},
        batch_sizes=[4],
        dtype="float32",
        device="cpu",
        numerics={},
        grad_mode="inference",
        threads=1,
        cache_dir=str(tmp_path),
        protocol={},
        **more,
    )


def test_how_fresh_processes_fail(tmp_path):
    fails = replace(fresh_request(tmp_path), module={"_target_": "torch.nn.Linear"})
    crashes = replace(fails, module={"_target_": "os.abort"})
    processes = run_together([fails, crashes], {"PATH": "/usr/bin"}, tmp_path, str)
    failed, crashed = (process.failure for process in processes)
    assert failed.status == Status.ERROR
    assert failed.reason.startswith("in build: TypeError: ")
    assert "in build_module" in failed.traceback
    assert crashed.status == Status.CRASHED
    assert crashed.reason == "the fresh process was killed by SIGABRT (in build)"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (3, "the fresh process exited with code 3 (in build)"),
        (-signal.SIGSEGV, "the fresh process was killed by SIGSEGV (in build)"),
        (-63, "the fresh process was killed by signal 63 (in build)"),
    ],
)
def test_how_a_process_without_a_result_ended(code, reason):
    ended = SimpleNamespace(
        process=SimpleNamespace(returncode=code), run=SimpleNamespace(part="build"), oom_kills=0
    )
    assert FreshProcess.failure(ended).reason == reason


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (cold_cell(AOT_INDUCTOR, "package", change="bs"), "the batch size with which"),
        (cold_cell(AOT_INDUCTOR, "package", sizes=2), "a package has one batch size"),
        (cold_cell(DEFAULT, "folder", change="gpu"), "needs a second GPU"),
        (cold_cell(EAGER, "folder"), "eager compiles nothing"),
    ],
    ids=["package, bs", "package, sizes", "gpu", "eager, folder"],
)
def test_cells_without_a_cold_start(cell, reason, tmp_path):
    trial = cold_start(cell, tmp_path)
    assert trial.status is Status.UNSUPPORTED
    assert reason in trial.reason


@pytest.mark.parametrize(
    ("calls_ms", "number"),
    [([90, 5, 1.2, 1.0], 3), ([1.0, 5.0], 1), ([90, 5], None)],
)
def test_the_first_call_as_fast_as_steady_ones(calls_ms, number):
    assert steady_call(calls_ms, [1.0] * 20) == number


# --- what disturbs it, and what it used of a cache


@pytest.fixture
def unstarted():
    """A cold start with a bundle whose processes have not run."""
    request = TrialRequest(cold_cell(DEFAULT, "bundle").params(), {})
    context = TrialContext(request, PhasePipe())
    return coldstart.RunningColdStart(context, context.cell)


@pytest.mark.parametrize(
    ("others_s", "fraction", "is_marked"), [(0.1, 0.05, False), (0.9, 0.45, True)]
)
def test_processes_that_wait_for_each_other_are_not_disturbed(
    unstarted, others_s, fraction, is_marked
):
    unstarted.trial.cold_s = 2.0
    unstarted.use = CoreUse(16.0, others_s, 0.0)
    assert (unstarted.disturbance_of(waited_s=1.0) is not None) is is_marked
    assert unstarted.trial.disturbed_fraction == pytest.approx(fraction)


@pytest.mark.slow
def test_other_processes_mark_it(tmp_path):
    loops = [
        subprocess.Popen(["sh", "-c", "while :; do :; done"], start_new_session=True)
        for _ in os.sched_getaffinity(0)
    ]
    try:
        trial = cold_start(cold_cell(), tmp_path)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    assert trial.status is Status.OK
    assert trial.disturbance.startswith("host busy: ")
    assert trial.latency_median_low_ms == min(trial.samples["latency_ms"])


@pytest.mark.parametrize(
    ("use", "recompiled", "reuse", "missed"),
    [
        (CacheUse(hits=2), 0, "whole", []),
        (CacheUse(hits=2), 3, "part", ["3 C++ files (a bundle has no compiled C++ code)"]),
        (CacheUse(hits=2, misses=1), 3, "part", [coldstart.UNKNOWN]),
        (CacheUse(misses=1), 3, "none", [coldstart.UNKNOWN]),
    ],
    ids=["all", "C++ is compiled again", "a graph misses", "every graph misses"],
)
def test_what_is_compiled_again_is_not_reused(unstarted, use, recompiled, reuse, missed):
    unstarted.recompiled = recompiled
    unstarted.record_cache(Made(unstarted.versions(), {"bundle": 7}, []), use)
    assert unstarted.trial.cache_reuse == reuse
    assert unstarted.extra["missed"] == missed


# --- what changes


def scale_of(cell):
    return cell.model["module"]["scale"]


def test_a_change_is_that_of_the_measured_cell_alone():
    cell = cold_cell(DEFAULT, "folder", change="bs")
    assert (filling_cell(cell).bs, measured_cell(cell).bs) == (4, 8)
    cell = cold_cell(DEFAULT, "folder", change="constant")
    assert (scale_of(filling_cell(cell)), scale_of(measured_cell(cell))) == (2.0, 3.0)
    cell = cold_cell(DEFAULT, "folder", change="folder")
    assert filling_cell(cell) == measured_cell(cell) == cell


def test_a_scaled_module_multiplies_its_float_outputs():
    cell = measured_cell(cold_cell(DEFAULT, "folder", change="constant"))
    scaled = build_module(cell.model["module"], torch.float32, "cpu", 0)
    module = build_module(LINEAR["module"], torch.float32, "cpu", 0)
    x = torch.ones(2, 16)
    torch.testing.assert_close(scaled(x), 3 * module(x))


def test_what_a_fresh_process_imports_before_it_builds():
    network = {"_target_": "effbench.models.libraries.network", "library": "timm", "arch": "vit"}
    cell = cold_cell(DEFAULT, "folder", {**LINEAR, "module": network}, change="constant")
    assert targets_of(measured_cell(cell).model["module"]) == [
        "effbench.models.scaled.Scaled",
        "effbench.models.libraries.network",
        "effbench.models.libraries.timm.network",
    ]


def test_a_fresh_process_has_the_variables_of_a_users_program():
    server = {"TORCH_WARM_POOL": "0", "HOME": "/home/me"}
    assert without_servers(server, {}) == {"HOME": "/home/me"}
    assert without_servers(server, {"TORCH_WARM_POOL": "0"}) == server
    server = {"PYTHONPYCACHEPREFIX": str(cache_home() / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}
    assert without_servers(server, {}) == {"PYTHONDONTWRITEBYTECODE": "1"}
    users = {"PYTHONPYCACHEPREFIX": "/bytecode"}
    assert without_servers(users, {}) == users


def test_versions_that_differ():
    then = Versions("2.11.0", "3.6", "13.0", "H200")
    now = replace(then, torch="2.13.0", gpu="H100")
    assert then.differences(now) == ["torch 2.11.0, now 2.13.0", "gpu H200, now H100"]


# --- what processes tell, and what they leave


def test_the_compilers_seconds_are_taken_out_of_the_first_call():
    parts = ["interpreter", "imports", "build", "first_call"]
    run = FreshRun(parts, Path("answer.pt"), started_ns=0)
    for second, part in enumerate(run.parts, 1):
        run.accept({"part": part, "ns": second * 10**9})
    run.result = FreshResult({"trace": 0.25, "compile": 0.5}, compiler_imports_s=0.125)
    seconds = run.seconds()
    assert run.part == "first_call"
    assert seconds["imports"] == 1.125
    assert seconds["first_call"] == 0.125
    assert sum(seconds.values()) == run.cold_s == 4


def test_a_folder_is_restored_for_each_process(tmp_path):
    caches = ColdCaches(tmp_path)
    with caches.live("none") as live:
        (live / "bs4").mkdir()
        (live / "bs4" / "kernel.so").write_bytes(b"code")
        (live / "bs4" / "aot-inductor-module.pt2").write_bytes(b"package")
        caches.keep(live)
    assert caches.sizes() == {"folder": 4, "package": 7}
    for is_moved in (False, True):
        with caches.live("folder", is_moved) as restored:
            assert [path.name for path in restored.rglob("*.*")] == ["kernel.so"]
            assert (restored == live) != is_moved
            (restored / "bs4" / "kernel.so").unlink()
        assert not restored.exists()
    with caches.live("bundle") as empty:
        assert list(empty.iterdir()) == []


def test_caches_are_complete_once_they_are_recorded(tmp_path):
    caches = ColdCaches(tmp_path)
    made = Made(Versions("2.13.0", None, None, None), {"folder": 4}, [{"gm": "[a]"}])
    assert caches.made() is None
    caches.write(made)
    assert caches.made() == made


def test_caches_that_were_not_completed_are_removed(tmp_path):
    caches = ColdCaches(tmp_path)
    caches.bundle.touch()
    caches.package.touch()
    caches.clear()
    assert caches.sizes() == {"folder": 0}


# --- with a compiler


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    """A folder with the caches of a module that was compiled."""
    folder = tmp_path_factory.mktemp("caches")
    cell = cold_cell(DEFAULT, "folder", MLP)
    assert cold_start(cell, folder).status is Status.OK
    return folder


@pytest.mark.slow
def test_a_compiler_without_a_cache(tmp_path):
    trial = cold_start(cold_cell(DEFAULT, "none", MLP), tmp_path)
    parts = parts_of(trial)
    assert min(parts.values()) >= 0
    assert sum(parts.values()) == pytest.approx(trial.cold_s, rel=0.03)
    assert trial.cold_compile_s > trial.cold_trace_s > 0
    assert trial.cold_first_call_s < 0.3 * trial.cold_compile_s
    assert trial.cache_reuse is None


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["folder", "bundle"])
@pytest.mark.parametrize(
    ("change", "reuse"),
    [
        ("none", "whole"),
        ("folder", "whole"),
        ("rank", "whole"),
        ("bs", "none"),
        ("constant", "none"),
    ],
)
def test_how_much_of_a_cache_is_used(caches, cache, change, reuse):
    trial = cold_start(cold_cell(DEFAULT, cache, MLP, change=change), caches)
    assert trial.status is Status.OK, trial.reason
    if cache == "bundle" and reuse == "whole":  # which has no code of the C++ compiler
        reuse = "part"
    assert trial.cache_reuse == reuse
    assert trial.cache_bytes > 1000
    assert (trial.cold_load_s is not None) == (cache == "bundle")
    missed = trial.extra["coldstart"]["missed"]
    assert bool(missed) is (reuse != "whole")
    if reuse == "part":
        assert "C++ file" in missed[0]


@pytest.mark.slow
def test_why_a_cache_is_not_used(caches):
    trial = cold_start(cold_cell(DEFAULT, "folder", MLP, change="bs"), caches)
    assert any("shape (4, 16), now (8, 16)" in why for why in trial.extra["coldstart"]["missed"])


@pytest.mark.slow
def test_several_processes_and_sizes(caches):
    trial = cold_start(cold_cell(DEFAULT, "folder", MLP, processes=2, sizes=2), caches / "sizes")
    found = trial.extra["coldstart"]
    assert trial.cold_s == max(process["cold_s"] for process in found["processes"])
    assert len(found["processes"]) == 2
    assert [size["bs"] for size in found["sizes"]] == [4, 8]


@pytest.mark.slow
def test_a_package_needs_no_module(tmp_path):
    trial = cold_start(cold_cell(AOT_INDUCTOR, "package"), tmp_path)
    assert trial.status is Status.OK, trial.reason
    assert trial.cold_load_s > 0
    assert trial.cold_compile_s is None
    assert trial.cold_s < trial.extra["phase_seconds"]["fill"]
    assert trial.cache_reuse == "whole"
