"""Versions, compilers and variables."""

from __future__ import annotations

import pytest

from effbench.doctor import software


def attention(findings):
    return [finding.what for finding in findings if finding.needs_attention]


def test_all_there(answer):
    found = list(software.findings(answer, {}))
    assert attention(found) == []
    assert found[0].what == "torch 2.13.0+cu130, CUDA 13.0, cuDNN 9.15.0, Triton 3.7.0, Python 3.12.4"
    assert "numpy 2.4.6" in found[1].what
    assert found[-1].what == "compilers: gcc, g++, nvcc"


def test_on_the_cpu(cpu_answer):
    found = list(software.findings(cpu_answer, {}))
    assert attention(found) == []
    assert found[0].what == "torch 2.13.0+cpu, no CUDA, cuDNN none, Triton none, Python 3.12.4"


@pytest.mark.parametrize("number, said", [(91002, "9.10.2"), (8902, "8.9.2"), (None, "none"), (0, "none")])
def test_cudnn(number, said):
    assert software.cudnn(number) == said


def test_missing_packages(answer):
    del answer["details"]["packages"]["torchvision"]
    assert [finding.what for finding in software.versions(answer) if finding.mend] == ["torchvision is not installed"]


def test_packages_that_do_not_fit_torch(answer):
    answer["errors"] = ["_target_=effbench.models.vision.torchvision_model: operator torchvision::nms does not exist"]
    (finding,) = (finding for finding in software.versions(answer) if finding.needs_attention)
    assert "torchvision 0.28.0" in finding.what and "torchvision::nms" in finding.what
    assert "resnet50" in finding.effect


def test_missing_compilers(answer):
    answer["details"]["compilers"] = dict.fromkeys(("gcc", "g++", "clang", "nvcc"), False)
    answer["environment"]["triton_version"] = None
    assert attention(software.findings(answer, {})) == ["no C++ compiler (g++)", "no C compiler", "no Triton"]
    answer["gpus"] = []
    assert attention(software.findings(answer, {})) == ["no C++ compiler (g++)"]
    found = list(software.compilers(answer, {"CXX": "/opt/g++"}))
    assert [finding.what for finding in found] == ["compilers: CXX=/opt/g++"]


@pytest.mark.parametrize("name", software.SPOILS)
def test_variables_that_spoil(name):
    (on,) = software.variables({}, {name: "1"})
    assert (on.level, on.what, on.mend) == ("warning", f"{name}=1 is set", f"unset {name}")
    (off,) = software.variables({name: "0"}, {name: "0"})
    assert off.level == "note"


def test_other_variables():
    (finding,) = software.variables({"OMP_NUM_THREADS": "4"}, {"OMP_NUM_THREADS": "4", "HOME": "/root"})
    assert (finding.level, finding.what) == ("note", "OMP_NUM_THREADS=4 is set")
    assert list(software.variables({}, {})) == []


def test_own_caches_and_preloads():
    found = list(software.variables({}, {"TORCHINDUCTOR_CACHE_DIR": "/x", "LD_PRELOAD": "libjemalloc.so"}))
    assert [finding.level for finding in found] == ["note", "note"]
    assert "no effect" in found[0].effect
