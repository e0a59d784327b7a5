"""Networks of transformers by name, for a task: whole sequences, or new tokens with a static
key-value cache.

B batch, T tokens, S slots of the cache, G key-value heads, K width of a head, V vocabulary.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from effbench.core.errors import ConfigError, UnsupportedError
from effbench.models import build, libraries
from effbench.models.gpt2 import filled_cache
from effbench.models.presets import PRESETS, Preset
from effbench.models.weights import wake

transformers = libraries.load("transformers")
from safetensors import SafetensorError  # noqa: E402
from transformers.cache_utils import Cache, StaticLayer  # noqa: E402
from transformers.models.auto import modeling_auto as auto  # noqa: E402

#: Part of the name of a weight inside a layer.
LAYER = re.compile(r"\.\d+\.")
TASKS = ("encode", "logits", "prefill", "decode")
#: Classes with a head, by the first mapping of transformers that has one for a configuration.
HEADS = (
    auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING,
    auto.MODEL_FOR_MASKED_LM_MAPPING,
    auto.MODEL_FOR_CAUSAL_LM_MAPPING,
    auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    auto.MODEL_FOR_CTC_MAPPING,
    auto.MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING,
)
#: Networks whose positions begin after that of the padding.
PADDED_POSITIONS = ("roberta", "camembert", "xlm-roberta")
#: A configuration of transformers, whose classes have nothing in common that we could name.
Config = Any
#: Descriptions of inputs, as in `model.inputs`.
Described = dict[str, dict[str, Any]]


def check(
    arch: str,
    task: str | None = None,
    config: Mapping[str, Any] | None = None,
    pretrained: bool | str = False,
    seq: int = 1,
    **_: Any,
) -> None:
    """Raise ConfigError for an unknown name, task or value of the configuration, without a source
    of weights, and for a cache of more slots than the network has positions."""
    known = [*PRESETS, *transformers.CONFIG_MAPPING]
    if arch not in known:
        raise libraries.unknown("architecture of transformers", arch, known)
    if task is not None and task not in TASKS:
        raise ConfigError(f"unknown model.task {task!r}; allowed: {', '.join(TASKS)}")
    preset = preset_of(arch)
    source_of(preset, pretrained)
    settings = configure(preset, config or {}, None)
    # else it has no tokens to decode
    if task == "decode" and hasattr(settings.get_text_config(), "vocab_size"):
        describe_tokens(settings, seq)


def network(
    arch: str,
    task: str | None = None,
    seq: int = 128,
    pretrained: bool | str = False,
    config: Mapping[str, Any] | None = None,
    max_batch: int = 1,
) -> nn.Module:
    """Return a preset, or a model type of transformers with its default configuration.

    `task`: one of TASKS; None: `logits` for an encoder-decoder and for images, `prefill` for a
    decoder, else `encode`. `seq`: tokens of a sequence, or slots of the cache. `config` replaces
    values of the configuration. Raises ConfigError for settings that the network does not have,
    UnsupportedError for a task that does not suit it.
    """
    preset = preset_of(arch)
    source = source_of(preset, pretrained)
    settings = configure(preset, config or {}, source)
    calls = task_calls(settings)
    task = task or default_task(settings, calls)
    if task not in calls:
        cannot = f"does not support model.task={task}"
        if task == "decode":  # phase=generate sets the task, too
            cannot = "cannot generate tokens"
        raise UnsupportedError(f"{arch} {cannot}; it supports {', '.join(calls) or 'none of them'}")
    call = calls[task]
    model = build_model(call.kind, settings, source)
    # or it looks for padding in the inputs, which waits for the device
    model.config.pad_token_id = None
    if task == "decode":
        return make_decoder(
            model,
            settings,
            seq,
            max_batch,
        )
    has_decoder = is_encoder_decoder(settings)
    if has_decoder and task == "encode":
        model = model.get_encoder()
    inputs = describe_inputs(model, settings, seq)
    if has_decoder and task != "encode":
        inputs["decoder_input_ids"] = describe_tokens(settings, seq)
    return Network(model, inputs, call)


@dataclass(frozen=True)
class TaskCall:
    """How a task calls a network: its class, the `output` that is returned, and `options`."""

    kind: Any
    output: str = "logits"
    options: dict[str, Any] = field(default_factory=dict)


class Network(nn.Module):
    """A network of transformers that returns a tensor. `inputs`: descriptions of its inputs, as in
    `model.inputs`."""

    def __init__(self, model: nn.Module, inputs: Described, call: TaskCall):
        super().__init__()
        self.model, self.inputs = model, inputs
        self.output, self.options = call.output, call.options

    def forward(self, **inputs: Tensor) -> Tensor:
        output: Tensor = getattr(self.model(**inputs, **self.options), self.output)
        return output


def is_encoder_decoder(config: Config) -> bool:
    return bool(getattr(config, "is_encoder_decoder", False))


def task_calls(config: Config) -> dict[str, TaskCall]:
    """Return the call for each task that suits a network."""
    kind = type(config)
    base = auto.MODEL_MAPPING.get(kind, None)
    head: Any = next((mapping[kind] for mapping in HEADS if kind in mapping), None)
    calls = {}
    if base is not None:
        calls["encode"] = TaskCall(base, "last_hidden_state")
    if head is None:
        return calls
    # not `in mapping.values()`, which would import every architecture
    is_decoder = head is auto.MODEL_FOR_CAUSAL_LM_MAPPING.get(kind, None)
    if is_encoder_decoder(config):
        calls["logits"] = TaskCall(head, options={"use_cache": False})
    elif is_decoder:
        last_only = {"use_cache": False, "logits_to_keep": 1}
        calls["logits"] = TaskCall(head, options={"use_cache": False})
        calls["prefill"] = TaskCall(head, options=last_only)
        calls["decode"] = TaskCall(head)
    else:
        calls["logits"] = TaskCall(head)
    return calls


def default_task(config: Config, calls: Mapping[str, TaskCall]) -> str:
    if "prefill" in calls:
        return "prefill"
    takes_images = "encode" in calls and calls["encode"].kind.main_input_name == "pixel_values"
    if takes_images or is_encoder_decoder(config):
        return "logits"
    return "encode"


def preset_of(arch: str) -> Preset:
    return PRESETS.get(arch) or Preset(arch, "")


def source_of(preset: Preset, pretrained: bool | str) -> str | None:
    """Return the repository or folder to load weights from; None: random weights. Raises
    ConfigError."""
    if not pretrained:
        return None
    if pretrained is True and preset.repository:
        return preset.repository
    if pretrained is not True and Path(pretrained).is_dir():
        return pretrained
    raise ConfigError(
        f"model.pretrained={pretrained}: give a folder with config.json and model.safetensors"
    )


def configure(preset: Preset, changes: Mapping[str, Any], source: str | None) -> Config:
    """Return the configuration: the source's own, or the preset's dimensions, with the values of
    `changes`."""
    kind = transformers.CONFIG_MAPPING[preset.model_type]
    check_names(kind, changes)
    if source is None:
        # hidden_size of GPT-2 is called n_embd, too
        values: dict[str, Any] = {}
        for name, value in (preset.dimensions | dict(changes)).items():
            values[kind.attribute_map.get(name, name)] = value
        config = kind(**values)
    else:
        config = from_source(transformers.AutoConfig, source, **changes)
        if not isinstance(config, kind):
            raise ConfigError(
                f"model.pretrained={source} holds {config.model_type}, but model.arch is of the"
                f" type {preset.model_type}"
            )
    padding = getattr(config, "pad_token_id", None)
    vocabulary = getattr(config.get_text_config(), "vocab_size", math.inf)
    if isinstance(padding, int) and padding >= vocabulary:
        config.pad_token_id = None
    return config


def check_names(kind: type[Config], changes: Mapping[str, Any]) -> None:
    """Raise ConfigError for a setting that this class of configurations does not have."""
    default = kind()
    for name in changes:
        if not hasattr(default, name) and name != "attn_implementation":
            advice = f"transformers documents the settings of {kind.__name__}"
            raise libraries.unknown(
                "setting of model.config",
                name,
                default.to_dict(),
                advice,
            )


def build_model(kind: type[nn.Module], config: Config, source: str | None) -> nn.Module:
    if source is not None:
        return load_model(kind, config, source)
    # on the CPU, drawing the weights of a billion parameters takes 15 s
    with torch.device(build.DEVICE.get()):
        model = kind._from_config(config)
    wake(model)
    return model


def load_model(kind: type[nn.Module], config: Config, source: str) -> nn.Module:
    """Return the network with the source's weights. transformers draws those that the source lacks:
    it may lack a head or a pooler, but no layer. Raises ConfigError."""
    model, report = from_source(
        kind,
        source,
        config=config,
        use_safetensors=True,
        dtype=torch.float32,
        # its error does not name the weights
        output_loading_info=True,
        ignore_mismatched_sizes=True,
    )
    inner = ""
    if hasattr(model, model.base_model_prefix):
        inner = f"{model.base_model_prefix}."
    lacking = [name for name, *_ in report["mismatched_keys"]]
    for name in report["missing_keys"]:
        if name.startswith(inner) and LAYER.search(name):
            lacking.append(name)
    if lacking:
        raise ConfigError(
            f"model.pretrained={source} does not fit {kind.__name__}: it has no {min(lacking)} of"
            " this shape"
        )
    return model


def from_source(kind: Any, source: str, **settings: Any) -> Any:
    """Call `from_pretrained` without running code or unpickling files of the source."""
    try:
        return kind.from_pretrained(source, trust_remote_code=False, **settings)
    except (OSError, SafetensorError) as error:
        raise libraries.not_loaded(source, error) from error


# --- inputs ---


def describe_tokens(config: Config, length: int) -> dict[str, Any]:
    """Describe the input of token ids. Raises ConfigError if the network has fewer positions."""
    text = config.get_text_config()
    limits = [
        getattr(text, name, None) for name in ("max_position_embeddings", "max_target_positions")
    ]
    most = min((limit for limit in limits if isinstance(limit, int)), default=length)
    if getattr(text, "model_type", "") in PADDED_POSITIONS:
        most -= 2
    if length > most:
        raise ConfigError(
            f"model.seq={length} exceeds the {most} positions of {config.model_type};"
            " phase=generate sets model.seq to generate.prompt + generate.new_tokens"
        )
    return {"shape": [length], "dtype": "int64", "low": 0, "high": text.vocab_size, "keyword": True}


def describe_inputs(model: nn.Module, config: Config, seq: int) -> Described:
    """Return the description of the network's main input. Raises UnsupportedError for an unknown
    kind of input."""
    name = getattr(model, "main_input_name", "input_ids")
    if name == "input_ids" and hasattr(config.get_text_config(), "vocab_size"):
        return {name: describe_tokens(config, seq)}
    return {name: {"shape": shape_of_input(name, config), "keyword": True}}


def shape_of_input(name: str, config: Config) -> list[int]:
    """Return the shape of images, speech or its spectrum. Raises UnsupportedError."""
    if name == "pixel_values":
        size = getattr(config, "image_size", 224)
        sides = list(size) if isinstance(size, list | tuple) else [size, size]
        return [getattr(config, "num_channels", 3), *sides]
    has_frames = hasattr(config, "max_source_positions") and hasattr(config, "num_mel_bins")
    if name == "input_features" and has_frames:
        return [config.num_mel_bins, 2 * config.max_source_positions]  # 30 s of speech
    if name == "input_values":
        return [16_000]  # one second of speech
    raise UnsupportedError(
        f"effbench cannot make the input {name} of {config.model_type}; use model=custom"
    )


# --- decoding with a static cache ---


class Slots(StaticLayer):
    """The keys and values [B, G, S, K] of a layer, in buffers of the Decoder. `position`: the slots
    [T] of the new tokens."""

    def __init__(self, keys: Tensor, values: Tensor, position: Tensor):
        # without StaticLayer's own, which makes tensors
        self.keys, self.values, self.position = keys, values, position
        self.max_cache_len, self.is_initialized = keys.shape[2], True
        self.dtype, self.device = keys.dtype, keys.device

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        keys = self.keys.index_copy_(2, self.position, key_states)
        values = self.values.index_copy_(2, self.position, value_states)
        return keys, values

    def get_seq_length(self) -> Tensor:
        return self.position[0]


class Decoder(nn.Module):
    """A decode step: the new tokens, one or a whole prompt, take the slots at `position` of
    `slots`, and attend to the slots up to theirs. All slots but the last one are filled.

    The cache consists of buffers, so that Dynamo and CUDA graphs have static addresses; a call with
    the same token and position gives the same output however often it runs. `layers`: keys and
    values [1, G, T, K] of each layer, whose shapes the cache has.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Described,
        batch: int,
        layers: Sequence[Any],
        slots: int,
    ):
        super().__init__()
        self.model, self.inputs, self.layers = model, inputs, len(layers)
        for number, layer in enumerate(layers):
            for part, states in (("keys", layer.keys), ("values", layer.values)):
                _, heads, _, width = states.shape
                cache = filled_cache(batch, heads, slots, width, slots - 1)
                self.register_buffer(f"own_{part}_{number}", cache, persistent=False)

    def cache(self, batch: int, position: Tensor) -> Cache:
        layers = []
        for number in range(self.layers):
            keys = getattr(self, f"own_keys_{number}")[:batch]
            values = getattr(self, f"own_values_{number}")[:batch]
            layers.append(Slots(keys, values, position))
        return Cache(layers=layers)

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        # token [B, T], position [T] -> logits of the last token [B, 1, V]
        output = self.model(
            input_ids=token,
            past_key_values=self.cache(token.shape[0], position),
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits
        return logits


def make_decoder(
    model: nn.Module,
    config: Config,
    slots: int,
    batch: int,
) -> Decoder:
    """Return the decode step of a network. A run of two tokens shows the shapes of its cache.
    Raises UnsupportedError if the network has no such cache, or other logits with a static one, for
    example because it attends to empty slots.
    """
    token = describe_tokens(config, slots) | {"shape": [1], "keyword": False}
    position = {"shape": [1], "dtype": "int64", "value": slots - 1, "batch_dim": None}
    inputs = {"token": token, "position": position}
    ids = torch.tensor([[0, 1]], device=model.device)
    with torch.no_grad():
        output = model.eval()(input_ids=ids, use_cache=True)
    layers = getattr(getattr(output, "past_key_values", None), "layers", [None])
    if not all(isinstance(getattr(layer, "keys", None), Tensor) for layer in layers):
        raise UnsupportedError(
            f"{config.model_type} has no key-value cache that effbench can make static"
        )
    few_slots = min(max(slots, 3), 1024)
    alone = Decoder(
        model,
        inputs,
        1,
        layers,
        few_slots,
    ).to(model.device)
    with torch.no_grad():
        logits = alone(ids, torch.tensor([0, 1], device=model.device))[:, -1:]
    wanted = output.logits[:, -1:]
    difference = (logits - wanted).norm()
    if not difference < 0.01 * wanted.norm():
        raise UnsupportedError(
            f"{config.model_type} has other logits with a static key-value cache than without"
        )
    return Decoder(
        model,
        inputs,
        batch,
        layers,
        slots,
    )
