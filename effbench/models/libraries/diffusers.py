"""Denoisers of diffusers by class, with random weights: what a pipeline calls for each step of an
image or a video.

Their inputs follow from the signature of forward and from the configuration.

B batch, N tokens of the prompt, F frames of the latents, S side of the latents, C channels.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from effbench.core.errors import ConfigError, UnsupportedError
from effbench.core.printable import one_line
from effbench.models import build, catalog, libraries
from effbench.models.presets import DENOISERS, DenoiserPreset
from effbench.models.weights import wake

diffusers = libraries.load("diffusers")
# here, or each trial would import them
for _kind in ("transformers", "unets"):
    importlib.import_module(f"diffusers.models.{_kind}")

#: Descriptions of inputs, as in `model.inputs`.
Described = dict[str, dict[str, Any]]
#: Settings that may hold the width of a prompt's encoding: the first one of a network counts.
TEXT_WIDTHS = (
    "joint_attention_dim",
    "text_dim",
    "text_embed_dim",
    "caption_channels",
    "cap_feat_dim",
    "cross_attention_dim",
)
#: Inputs of a UNet that are passed in `added_cond_kwargs`.
CONDITIONS = ("text_embeds", "time_ids")
#: Numbers in `time_ids`: sizes of the original and of the target, and the place of the crop.
TIME_IDS = 6
#: A number of each image, such as its step.
NUMBER = {"shape": [], "low": 0, "high": 1}


def check(arch: str, config: Mapping[str, Any] | None = None, **_: Any) -> None:
    """Raise ConfigError for an unknown class, and for a setting that it does not have."""
    catalog.check_name("diffusers", arch)
    settings = inspect.signature(getattr(diffusers, arch).__init__).parameters
    for name in config or {}:
        if name not in settings:
            advice = f"diffusers documents the settings of {arch}"
            raise catalog.unknown("setting of model.config", name, settings, advice)


def network(
    arch: str,
    resolution: int | None = None,
    frames: int | None = None,
    seq: int | None = None,
    steps: int | None = None,
    config: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Return a denoiser: the published network in `DENOISERS`, else the defaults of its class.

    `resolution`: height and width in pixels; `seq`: tokens of the prompt; None: as its pipeline.
    `steps` does not change a call. `config` replaces values of the configuration. Raises
    ConfigError for sizes that do not fit, UnsupportedError if effbench cannot make an input.
    """
    preset = DENOISERS.get(arch, DenoiserPreset())
    try:
        # on the CPU, drawing the weights of a billion parameters takes 15 s
        with torch.device(build.DEVICE.get()):
            model = getattr(diffusers, arch)(**preset.dimensions | dict(config or {}))
    except (TypeError, ValueError) as error:  # many classes have no defaults
        raise UnsupportedError(
            f"{arch} cannot be built with this model.config: {one_line(error, 200)}"
        ) from error
    wake(model)
    inputs = InputMaker(
        model,
        preset,
        resolution or preset.resolution,
        frames or preset.frames,
        seq or preset.tokens,
    )
    return Denoiser(model, inputs.described(), inputs.options())


class Denoiser(nn.Module):
    """A network of diffusers that returns a tensor. `inputs`: descriptions of its inputs, as in
    `model.inputs`; `options`: further arguments of each call."""

    def __init__(self, model: nn.Module, inputs: Described, options: dict[str, Any]):
        super().__init__()
        self.model, self.inputs, self.options = model, inputs, options

    def forward(self, **inputs: Tensor) -> Tensor:
        conditions = {name: inputs.pop(name) for name in CONDITIONS if name in inputs}
        if conditions:
            return self.model(**inputs, added_cond_kwargs=conditions, **self.options)[0]
        return self.model(**inputs, **self.options)[0]


class InputMaker:
    """Describes what the forward of a network takes. `resolution`, `frames`: of the images or
    videos; `tokens`: of the prompt."""

    def __init__(
        self,
        model: nn.Module,
        preset: DenoiserPreset,
        resolution: int,
        frames: int,
        tokens: int,
    ):
        self.arch = type(model).__name__
        if resolution % preset.patch:
            raise ConfigError(
                f"model.resolution={resolution}: {self.arch} takes multiples of {preset.patch}"
            )
        if frames > 1 and preset.frames == 1 and "3D" not in self.arch:
            raise UnsupportedError(f"model.frames={frames}: {self.arch} makes images")
        self.config: Mapping[str, Any] = model.config
        self.accepted = inspect.signature(model.forward).parameters
        self.layout = preset.layout or self.default_layout()
        self.side = resolution // preset.patch
        self.frames = (frames - 1) // preset.frames_per_latent + 1
        self.resolution, self.tokens = resolution, tokens

    def default_layout(self) -> str:
        if self.accepted.keys() & {"img_ids", "img_shapes"}:
            return "tokens"
        return "volume" if "3D" in self.arch else "grid"

    def described(self) -> Described:
        """Return the description of each input. Raises UnsupportedError if forward requires an
        input that effbench cannot make."""
        options = self.options()
        inputs: Described = {}
        for name, description in self.known().items():
            is_passed = name in self.accepted
            if name in CONDITIONS:
                is_passed = self.config.get("addition_embed_type") == "text_time"
            # a width that the network does not have
            if is_passed and None not in description["shape"]:
                inputs[name] = {**description, "keyword": True}
        for name, parameter in self.accepted.items():
            is_required = parameter.default is parameter.empty
            if is_required and name not in inputs and name not in options:
                raise UnsupportedError(
                    f"effbench cannot make the input {name} of {self.arch}; use model=custom"
                )
        return inputs

    def options(self) -> dict[str, Any]:
        """Return the arguments of forward that are no tensors."""
        options = {
            "return_dict": False,
            "num_frames": self.frames,
            "height": self.side,
            "width": self.side,
            "img_shapes": [[(self.frames, self.side, self.side)]],
        }
        return {name: value for name, value in options.items() if name in self.accepted}

    def known(self) -> Described:
        """Describe all inputs that effbench can make. A shape that contains None is that of an
        input that the network does not have."""
        axes = len(self.config.get("axes_dims_rope", ()))
        places = {"batch_dim": None, "dtype": "int64", "low": 0}
        size = {"shape": [2], "value": self.resolution}
        latents = {"shape": self.latent_shape()}
        inputs: Described = {
            "hidden_states": latents,
            "sample": latents,
            "timestep": NUMBER,
            "timesteps": NUMBER,
            "encoder_hidden_states": {"shape": [self.tokens, self.first(TEXT_WIDTHS)]},
            "pooled_projections": {"shape": [self.config.get("pooled_projection_dim")]},
            "img_ids": {"shape": [self.latents, axes], "high": self.side, **places},
            "txt_ids": {"shape": [self.tokens, axes], "high": 1, **places},
            "original_size": size,
            "target_size": size,
            "crop_coords": {"shape": [2], "value": 0},
            "text_embeds": {"shape": [self.pooled_width()]},
            "time_ids": {"shape": [TIME_IDS], "value": self.resolution},
        }
        if self.config.get("guidance_embeds"):
            inputs["guidance"] = NUMBER
        mask = self.accepted.get("encoder_attention_mask")
        if mask is not None and mask.default is mask.empty:
            inputs[mask.name] = {"shape": [self.tokens], "dtype": "bool", "value": True}
        return inputs

    @property
    def latents(self) -> int:
        """The number of latents."""
        return self.frames * self.side**2

    def latent_shape(self) -> list[int | None]:
        """Return the shape of the latents: [C, S, S], [C, F, S, S], [F, C, S, S] or [F * S * S,
        C]."""
        channels = self.config.get("in_channels")
        match self.layout:
            case "tokens":
                return [self.latents, channels]
            case "volume":
                return [channels, self.frames, self.side, self.side]
            case "frames":
                return [self.frames, channels, self.side, self.side]
        return [channels, self.side, self.side]

    def pooled_width(self) -> int | None:
        """Return the width of a UNet's pooled encoding of the prompt."""
        both: int | None = self.config.get("projection_class_embeddings_input_dim")
        if both is None:
            return None
        times: int = TIME_IDS * (self.config["addition_time_embed_dim"] or 0)
        return both - times

    def first(self, names: tuple[str, ...]) -> int | None:
        """Return the value of the first of these settings that has one."""
        values = [self.config.get(name) for name in names]
        return next((value for value in values if value is not None), None)
