"""Shipped models as a sweep composes them, with settings that make them small."""

from pathlib import Path

import torch
from omegaconf import OmegaConf

from effbench.models.build import build_module
from effbench.models.inputs import make_inputs
from effbench.models.spec import parse_inputs

CONF = Path(__file__).parents[2] / "conf" / "model"
OF_EXPERIMENTS = sorted(
    path.stem for path in CONF.glob("*.yaml") if "effbench.claims." in path.read_text()
)


def load(name, bs, image=None, **arguments):
    """The plain node `model`; `image` replaces the shape of the input x."""
    config = OmegaConf.create({"bs": bs, "model": OmegaConf.load(CONF / f"{name}.yaml")})
    config.model.module.update(arguments)
    if image:
        config.model.inputs.x.shape = image
    return OmegaConf.to_container(config, resolve=True)["model"]


def inputs_of(inputs, bs, dtype):
    """A batch of the inputs that a YAML or a module describes."""
    specs = parse_inputs(inputs)
    return make_inputs(
        specs,
        bs,
        dtype,
        "cpu",
        seed=1,
    )


def build(node, dtype=torch.float32):
    return build_module(
        node["module"],
        dtype,
        "cpu",
        seed=0,
    )


def apart(values, others):
    """The relative difference."""
    return float((values.float() - others).norm() / others.norm())


def compiled_whole(module):
    """Traced by Dynamo without a break, or an error."""
    torch._dynamo.reset()
    return torch.compile(module, backend="eager", fullgraph=True)
