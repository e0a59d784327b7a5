"""Targets: what is found, what is refused and what is said."""

import sys

import pytest
import torch

from effbench.core.errors import ConfigError
from effbench.core.python_files import FILE
from effbench.models.build import build_module, resolve_target, set_numerics

NET = """
from torch import nn
import torch

class Net(nn.Module):
    def __init__(self, width=4, act=None):
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.act = act
        self.register_buffer("steps", torch.arange(3))
        self.register_buffer("turns", torch.full((3,), 2j))
    class Inner(nn.Linear):
        pass

def make(width):
    return Net(width)

def exported():
    return torch.export.export(nn.Linear(4, 4).eval(), (torch.zeros(2, 4),)).module()

class Stubborn(nn.Linear):
    def train(self, mode=True):
        raise NotImplementedError("always trains")

def nothing():
    return 3

value = 3
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with my_net.py; import paths and modules are put back afterwards."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_net.py").write_text(NET)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith((FILE, "my_")):
            del sys.modules[name]


def build(target, dtype=torch.float32, seed=0, **kwargs):
    return build_module(
        {"_target_": target, **kwargs},
        dtype,
        "cpu",
        seed,
    )


def test_import_paths_and_files(here):
    (here / "my_pkg").mkdir()
    (here / "my_pkg" / "__init__.py").write_text("")
    (here / "my_pkg" / "net.py").write_text("from my_beside import width\n" + NET)
    (here / "my_pkg" / "my_beside.py").write_text("width = 5")
    net = resolve_target("my_pkg/net.py:Net")
    assert resolve_target(f"{here}/my_pkg/net.py:Net") is net
    assert resolve_target("my_pkg/net.py:Net.Inner") is net.Inner
    assert resolve_target("my_pkg.net.Net.Inner").__name__ == "Inner", "nobody imported it yet"
    assert build("my_pkg/net.py:make", width=7).layer.in_features == 7


def test_a_file_that_leaves_the_folder_when_it_is_imported(here):
    (here / "my_moves.py").write_text(f"import os\nos.chdir('..')\n{NET}")
    assert build("my_moves.py:Net", width=2).layer.in_features == 2


def test_seed_dtype_and_mode(here):
    a, b, c = (build("my_net.py:Net", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(a.layer.weight, b.layer.weight)
    assert not torch.equal(a.layer.weight, c.layer.weight)
    half = build("my_net.py:Net", dtype=torch.bfloat16, seed=1)
    assert torch.equal(half.layer.weight, a.layer.weight.bfloat16())
    assert half.steps.dtype == torch.int64
    assert half.turns[0] == 2j
    assert not half.training


def test_another_module_that_cannot_leave_training_is_an_error(here):
    with pytest.raises(NotImplementedError, match="always trains"):
        build("my_net.py:Stubborn", in_features=4, out_features=4)


def test_an_exported_program_whose_eval_torch_forbids(here):
    x = torch.ones(2, 4, dtype=torch.float64)
    assert build("my_net.py:exported", dtype=torch.float64)(x).dtype == torch.float64


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("my_missing.Net", "no module named my_missing in the working directory"),
        ("torch.nn.Linera", "there is no Linera: did you mean Linear"),
        ("my_net.value", "_target_=my_net.value is of type int, not callable"),
        ("my_broken.py:Net", "importing it raised ValueError: at import"),
        ("my_needs.Net", "imports my_absent, which is not installed"),
        ("Net", "no module named Net in the working directory or the environment; allowed: my_pkg"),
        ("nets/mine.py", "no module named nets/mine"),
        ("torch", "is of type module, not callable"),
        ("absent.py:Net", "FileNotFoundError"),
        ("my_net.py:Ner", "there is no Ner: did you mean Net"),
    ],
)
def test_bad_target(here, target, text):
    (here / "my_broken.py").write_text("raise ValueError('at import\\nsecond line')")
    (here / "my_needs.py").write_text("import my_absent")
    with pytest.raises(ConfigError) as caught:
        resolve_target(target)
    assert text in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_what_is_no_module_is_refused(here):
    with pytest.raises(ConfigError, match="returned the type int; it must return a"):
        build("my_net.nothing")


def test_arguments_of_a_model(here):
    assert build("my_net.Net", width=3, act={"names": ["relu"]}).act == {"names": ["relu"]}


@pytest.mark.parametrize(
    ("precision", "tf32", "expected"),
    [("highest", False, "highest"), ("highest", True, "high"), ("medium", True, "medium")],
)
def test_the_precision_of_matrix_products_can_be_read(precision, tf32, expected):
    try:
        set_numerics({"matmul_precision": precision, "tf32": tf32})
        assert torch.get_float32_matmul_precision() == expected
        assert torch.backends.cuda.matmul.allow_tf32 is tf32
    finally:
        set_numerics({})
