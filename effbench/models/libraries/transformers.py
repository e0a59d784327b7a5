"""Networks of transformers by name, for a task: whole sequences, or new tokens with a static
key-value cache.

B batch, T tokens, S slots of the cache, G key-value heads, K width of a head, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from effbench.core.errors import ConfigError, UnsupportedError
from effbench.models import build, catalog, libraries
from effbench.models.cache import CacheSize, KeyValueCache
from effbench.models.presets import PRESETS, Preset
from effbench.models.weights import wake

if TYPE_CHECKING:
    from effbench.models.parallel import Plan

transformers = libraries.load("transformers")
from transformers.cache_utils import Cache, StaticLayer  # noqa: E402
from transformers.models.auto import modeling_auto as auto  # noqa: E402

#: Classes with a head: the first mapping that has one for a configuration counts.
HEADS = (
    auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING,
    auto.MODEL_FOR_MASKED_LM_MAPPING,
    auto.MODEL_FOR_CAUSAL_LM_MAPPING,
    auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    auto.MODEL_FOR_CTC_MAPPING,
    auto.MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING,
)
#: A configuration of transformers, whose classes have nothing in common that we could name.
Config = Any
#: Descriptions of inputs, as in `model.inputs`.
Described = dict[str, dict[str, Any]]


def check(arch: str, config: Mapping[str, Any] | None = None, **_: Any) -> None:
    """Raise ConfigError for an unknown name or value of the configuration. This also imports the
    network's classes, which `configure` does not."""
    task_calls(configure(arch, config or {}))


def network(
    arch: str,
    task: str | None = None,
    seq: int = 128,
    config: Mapping[str, Any] | None = None,
    max_batch: int = 1,
) -> nn.Module:
    """Return a preset, or a model type of transformers with its default configuration.

    `task`: encode, logits, prefill or decode; None: `default_task`. `seq`: tokens of a sequence, or
    slots of the cache. `config` replaces values of the configuration. Raises ConfigError for
    settings that the network does not have, UnsupportedError for a task that does not suit it.
    """
    settings = configure(arch, config or {})
    calls = task_calls(settings)
    task = task or default_task(settings, calls)
    if task not in calls:
        supported = ", ".join(calls) or "none of them"
        raise UnsupportedError(f"{arch} does not support the task {task}; it supports {supported}")
    call = calls[task]
    # on the CPU, drawing the weights of a billion parameters takes 15 s
    with torch.device(build.DEVICE.get()):
        model = call.kind._from_config(settings)
    wake(model)
    # or it looks for padding in the inputs, which waits for the device
    model.config.pad_token_id = None
    if task == "decode":
        return make_decoder(
            model,
            settings,
            seq,
            max_batch,
        )
    has_decoder = settings.is_encoder_decoder
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
        return getattr(self.model(**inputs, **self.options), self.output)


def task_calls(config: Config) -> dict[str, TaskCall]:
    """Return the call for each task that suits a network."""
    kind = type(config)
    calls = {}
    if kind in auto.MODEL_MAPPING:
        calls["encode"] = TaskCall(auto.MODEL_MAPPING[kind], "last_hidden_state")
    heads = next((mapping for mapping in HEADS if kind in mapping), None)
    if heads is None:
        return calls
    head = heads[kind]
    is_decoder = heads is auto.MODEL_FOR_CAUSAL_LM_MAPPING
    without_cache = {"use_cache": False} if is_decoder or config.is_encoder_decoder else {}
    calls["logits"] = TaskCall(head, options=without_cache)
    if is_decoder:
        calls["prefill"] = TaskCall(head, options={**without_cache, "logits_to_keep": 1})
        calls["decode"] = TaskCall(head)
    return calls


def default_task(config: Config, calls: Mapping[str, TaskCall]) -> str:
    """Return `prefill` for a decoder, `logits` for an encoder-decoder and for images, else
    `encode`."""
    if "prefill" in calls:
        return "prefill"
    takes_images = "encode" in calls and calls["encode"].kind.main_input_name == "pixel_values"
    if takes_images or config.is_encoder_decoder:
        return "logits"
    return "encode"


def configure(arch: str, changes: Mapping[str, Any]) -> Config:
    """Return the configuration of a preset or of a model type, with the values of `changes`. Raises
    ConfigError for an unknown name, and for a setting that the configuration does not have."""
    known = [*PRESETS, *transformers.CONFIG_MAPPING]
    if arch not in known:
        raise catalog.unknown("architecture of transformers", arch, known)
    preset = PRESETS.get(arch) or Preset(arch, "")
    kind = transformers.CONFIG_MAPPING[preset.model_type]
    default = kind()
    values: dict[str, Any] = {}
    for name, value in (preset.dimensions | dict(changes)).items():
        if not hasattr(default, name) and name != "attn_implementation":
            advice = f"transformers documents the settings of {kind.__name__}"
            raise catalog.unknown(
                "setting of model.config",
                name,
                default.to_dict(),
                advice,
            )
        # hidden_size of GPT-2 is called n_embd, too
        values[kind.attribute_map.get(name, name)] = value
    return kind(**values)


# --- inputs ---


def describe_tokens(config: Config, length: int) -> dict[str, Any]:
    """Describe the input of token ids. Raises ConfigError if the network has fewer positions."""
    text = config.get_text_config()
    for name in ("max_position_embeddings", "max_target_positions"):
        most = getattr(text, name, None)
        if isinstance(most, int) and length > most:
            raise ConfigError(
                f"model.seq={length} exceeds the {most} positions of {config.model_type};"
                " phase=generate sets model.seq to generate.prompt + generate.new_tokens"
            )
    return {"shape": [length], "dtype": "int64", "low": 0, "high": text.vocab_size, "keyword": True}


def describe_inputs(model: nn.Module, config: Config, seq: int) -> Described:
    """Return the description of the network's main input: tokens, images, speech or its spectrum.
    Raises UnsupportedError for another kind."""
    name = getattr(model, "main_input_name", "input_ids")
    match name:
        case "input_ids" if hasattr(config.get_text_config(), "vocab_size"):
            return {name: describe_tokens(config, seq)}
        case "pixel_values":
            size = getattr(config, "image_size", 224)
            sides = list(size) if isinstance(size, list | tuple) else [size, size]
            shape = [getattr(config, "num_channels", 3), *sides]
        case "input_features" if hasattr(config, "max_source_positions"):
            shape = [config.num_mel_bins, 2 * config.max_source_positions]  # 30 s of speech
        case "input_values":
            shape = [16_000]  # one second of speech
        case _:
            raise UnsupportedError(
                f"effbench cannot make the input {name} of {config.model_type}; use model=custom"
            )
    return {name: {"shape": shape, "keyword": True}}


# --- decoding with a static cache ---


class Slots(StaticLayer):
    """A cache of the Decoder as a layer of transformers. `position`: the slots [T] of the new
    tokens."""

    def __init__(self, cache: KeyValueCache, position: Tensor):
        # without StaticLayer's own, which makes tensors
        self.cache, self.position = cache, position
        self.max_cache_len, self.is_initialized = cache.keys.shape[2], True
        self.dtype, self.device = cache.keys.dtype, cache.keys.device

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return self.cache.update(self.position, key_states, value_states)

    def get_seq_length(self) -> Tensor:
        return self.position[0]


class Decoder(nn.Module):
    """A decode step: the new tokens, one or a whole prompt, take the slots at `position` of
    `slots`, and attend to the slots up to theirs. All slots but the last one are filled.

    A call with the same token and position gives the same output however often it runs. `layers`:
    keys and values [1, G, T, K] of each layer, whose shapes the cache has.
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
        self.model, self.inputs = model, inputs
        self.cache_name = cache_name(model)
        self.caches = nn.ModuleList()
        size = CacheSize(batch, slots, slots - 1)
        for layer in layers:
            _, heads, _, key_width = layer.keys.shape
            self.caches.append(KeyValueCache(size, heads, key_width, layer.values.shape[-1]))

    def tensor_parallel_plan(self) -> Plan:
        """Split the heads of the caches if the network splits those of its keys."""
        from effbench.models.parallel import CacheHeads

        for name, style in self.model.tp_plan.items():
            if name.endswith(".k_proj") and style == "colwise":
                return {"caches.*": CacheHeads()}
        return {}

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        # token [B, T], position [T] -> logits of the last token [B, 1, V]
        layers = [Slots(cache, position) for cache in self.caches]
        output = self.model(
            input_ids=token,
            use_cache=True,
            logits_to_keep=1,
            **{self.cache_name: Cache(layers=layers)},
        )
        return output.logits


def cache_name(model: nn.Module) -> str:
    """Return the name of the key-value cache among the inputs and outputs: `cache` from
    transformers 5.24 on, `past_key_values` before."""
    if "cache" in inspect.signature(model.forward).parameters:
        return "cache"
    return "past_key_values"


def make_decoder(
    model: nn.Module,
    config: Config,
    slots: int,
    batch: int,
) -> Decoder:
    """Return the decode step of a network. A run of two tokens shows the shapes of its cache, and
    their logits.

    Raises UnsupportedError if the network has no such cache, or other logits with a static one, for
    example because it attends to empty slots.
    """
    token = describe_tokens(config, slots) | {"shape": [1], "keyword": False}
    position = {"shape": [1], "dtype": "int64", "value": slots - 1, "batch_dim": None}
    inputs = {"token": token, "position": position}
    ids = torch.arange(min(2, slots), device=model.device)
    with torch.no_grad():
        output = model.eval()(input_ids=ids[None], use_cache=True)
    layers = getattr(output.get(cache_name(model)), "layers", [None])
    if not all(isinstance(getattr(layer, "keys", None), Tensor) for layer in layers):
        raise UnsupportedError(
            f"{config.model_type} has no key-value cache that effbench can make static"
        )
    decoder = Decoder(
        model,
        inputs,
        batch,
        layers,
        slots,
    )
    decoder.to(model.device)
    with torch.no_grad():
        logits = decoder(ids[None], ids)
    wanted = output.logits[:, -1:]
    if not (logits - wanted).norm() < 0.01 * wanted.norm():
        raise UnsupportedError(
            f"{config.model_type} has other logits with a static key-value cache than without"
        )
    return decoder
