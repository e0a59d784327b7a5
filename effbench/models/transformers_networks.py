"""Networks of transformers by name, for a task: whole sequences, or new tokens with a static
key-value cache.

B batch, T tokens, S slots of the cache, G key-value heads, K width of a head, V vocabulary.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from effbench.errors import ConfigError, UnsupportedError
from effbench.models import build, libraries
from effbench.models.gpt2 import filled_cache
from effbench.models.presets import PRESETS, Preset
from effbench.models.weights import wake

transformers = libraries.load("transformers")
from safetensors import SafetensorError  # noqa: E402
from transformers.cache_utils import Cache, EncoderDecoderCache, StaticLayer  # noqa: E402
from transformers.modeling_outputs import BaseModelOutput  # noqa: E402
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


class Network(nn.Module):
    """A network of transformers that returns a tensor. `inputs`: descriptions of its inputs, as in
    `model.inputs`."""

    def __init__(self, model: nn.Module, inputs: dict[str, Any], output: str, **settings: Any):
        super().__init__()
        self.model, self.inputs, self.output, self.settings = model, inputs, output, settings

    def forward(self, **inputs: Tensor) -> Tensor:
        return getattr(self.model(**inputs, **self.settings), self.output)


class Slots(StaticLayer):
    """The keys and values [B, G, S, K] of a layer, in buffers of the Decoder. `position`: the slots
    [T] of the new tokens; None if all slots are filled."""

    def __init__(self, keys: Tensor, values: Tensor, position: Tensor | None):
        # without StaticLayer's own, which makes tensors
        self.keys, self.values, self.position = keys, values, position
        self.max_cache_len, self.is_initialized = keys.shape[2], True
        self.dtype, self.device = keys.dtype, keys.device

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        at = self.position
        return self.keys.index_copy_(2, at, key_states), self.values.index_copy_(
            2, at, value_states
        )

    def get_seq_length(self) -> Tensor | int:
        return self.max_cache_len if self.position is None else self.position[0]


class Decoder(nn.Module):
    """A decode step: the new tokens, one or a whole prompt, take the slots at `position` of
    `slots`, and attend to the slots up to theirs.

    The cache consists of buffers, so that Dynamo and CUDA graphs have static addresses; a call with
    the same token and position gives the same output however often it runs. `cross`: the cache of
    an encoder's output, for the decoder of an encoder-decoder network; otherwise None.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        batch: int,
        own: list,
        slots: int,
        cross: list | None,
    ):
        super().__init__()
        self.model, self.inputs, self.layers = model, inputs, len(own)
        for name, shapes, length, filled in (
            ("own", own, slots, slots - 1),
            ("cross", cross or [], None, None),
        ):
            for number, (keys, values) in enumerate(shapes):
                for part, (heads, tokens, width) in (("keys", keys), ("values", values)):
                    cache = filled_cache(
                        batch, heads, length or tokens, width, tokens if filled is None else filled
                    )
                    self.register_buffer(f"{name}_{part}_{number}", cache, persistent=False)
        self.has_cross = cross is not None
        if self.has_cross:
            # the decoder only looks whether there is an encoder's output: its keys and values are
            # in the cache
            self.register_buffer(
                "encoded", torch.zeros(batch, cross[0][0][1], model.config.hidden_size), False
            )

    def cache(self, name: str, batch: int, position: Tensor | None) -> Cache:
        layers = []
        for number in range(self.layers):
            keys, values = (
                getattr(self, f"{name}_{part}_{number}")[:batch] for part in ("keys", "values")
            )
            layers.append(Slots(keys, values, position))
        return Cache(layers=layers)

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        # token [B, T], position [T] -> logits of the last token [B, 1, V]
        batch = token.shape[0]
        cache = self.cache("own", batch, position)
        if not self.has_cross:
            return self.model(
                input_ids=token, past_key_values=cache, use_cache=True, logits_to_keep=1
            ).logits
        return self.model(
            decoder_input_ids=token,
            encoder_outputs=BaseModelOutput(last_hidden_state=self.encoded[:batch]),
            past_key_values=EncoderDecoderCache(cache, self.cache("cross", batch, None)),
            use_cache=True,
        ).logits


def check(
    arch: str,
    task: str | None,
    config: Mapping[str, Any],
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
    preset = PRESETS.get(arch) or Preset(arch, "")
    source_of(preset, pretrained)
    settings = configured(preset, dict(config), None)
    # else it has no tokens to decode
    if task == "decode" and hasattr(settings.get_text_config(), "vocab_size"):
        tokens(settings, seq)


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
    check(arch, task, config or {}, pretrained)
    preset = PRESETS.get(arch) or Preset(arch, "")
    source = source_of(preset, pretrained)
    settings = configured(preset, dict(config or {}), source)
    kind = type(settings)
    heads = [mapping[kind] for mapping in HEADS if kind in mapping]
    encoder_decoder = bool(getattr(settings, "is_encoder_decoder", False))
    # not `in mapping.values()`, which would import every architecture
    is_decoder = (
        not encoder_decoder
        and bool(heads)
        and heads[0] is auto.MODEL_FOR_CAUSAL_LM_MAPPING.get(kind, None)
    )
    base = auto.MODEL_MAPPING.get(kind, None)
    for_images = base is not None and base.main_input_name == "pixel_values"
    task = task or (
        "prefill" if is_decoder else "logits" if encoder_decoder or for_images else "encode"
    )
    decodes = heads and (is_decoder or encoder_decoder)
    suits = {"encode": base, "logits": heads, "prefill": is_decoder, "decode": decodes}
    if not suits[task]:
        has = ", ".join(name for name, fits in suits.items() if fits)
        # phase=generate sets the task, too
        cannot = (
            "cannot generate tokens" if task == "decode" else f"does not support model.task={task}"
        )
        raise UnsupportedError(f"{arch} {cannot}; it supports {has or 'none of them'}")
    model = built(base if task == "encode" else heads[0], settings, source)
    # or it looks for padding in the inputs, which waits for the device
    model.config.pad_token_id = None
    if task == "encode":
        model = model.get_encoder() if encoder_decoder else model
        return Network(model, described(model, settings, seq), "last_hidden_state")
    if task == "decode":
        return decoder(model, settings, seq, max_batch)
    inputs = described(model, settings, seq)
    if encoder_decoder:
        inputs["decoder_input_ids"] = tokens(settings, seq)
    more = {"use_cache": False} if is_decoder or encoder_decoder else {}
    return Network(
        model, inputs, "logits", **more, **({"logits_to_keep": 1} if task == "prefill" else {})
    )


def configured(preset: Preset, given: dict[str, Any], source: str | None) -> Any:
    """Return the configuration: the source's own, or the preset's dimensions, with the values of
    `given`."""
    kind = transformers.CONFIG_MAPPING[preset.model_type]
    default = kind()
    for name in given:
        if not hasattr(default, name) and name != "attn_implementation":
            advice = f"transformers documents the settings of {kind.__name__}"
            raise libraries.unknown("setting of model.config", name, default.to_dict(), advice)
    if source is None:
        # hidden_size of GPT-2 is called n_embd, too
        values = {
            kind.attribute_map.get(name, name): value
            for name, value in (preset.dimensions | given).items()
        }
        config = kind(**values)
    else:
        config = from_source(transformers.AutoConfig, source, **given)
        if not isinstance(config, kind):
            holds = f"model.pretrained={source} holds {config.model_type}"
            raise ConfigError(f"{holds}, but model.arch is of the type {preset.model_type}")
    padding = getattr(config, "pad_token_id", None)
    if isinstance(padding, int) and padding >= getattr(
        config.get_text_config(), "vocab_size", math.inf
    ):
        config.pad_token_id = None
    return config


def source_of(preset: Preset, pretrained: bool | str) -> str | None:
    """Return the repository or folder to load weights from; None: random weights. Raises
    ConfigError."""
    if not pretrained:
        return None
    if pretrained is True and preset.repository:
        return preset.repository
    if pretrained is True or not Path(pretrained).is_dir():
        what = "" if pretrained is True or Path(pretrained).exists() else "no such folder; "
        raise ConfigError(
            f"model.pretrained={pretrained}: {what}give a folder with config.json and"
            " model.safetensors"
        )
    return str(pretrained)


def built(kind: type[nn.Module], config: Any, source: str | None) -> nn.Module:
    if source is not None:
        return loaded(kind, config, source)
    # on the CPU, drawing the weights of a billion parameters takes 15 s
    with torch.device(build.DEVICE.get()):
        model = kind._from_config(config)
    wake(model)
    return model


def loaded(kind: type[nn.Module], config: Any, source: str) -> nn.Module:
    """Return the network with the source's weights. transformers draws those that the source lacks:
    it may lack a head or a pooler, but no layer. Raises ConfigError."""
    model, found = from_source(
        kind,
        source,
        config=config,
        use_safetensors=True,
        dtype=torch.float32,
        # its error does not name the weights
        output_loading_info=True,
        ignore_mismatched_sizes=True,
    )
    inner = f"{model.base_model_prefix}." if hasattr(model, model.base_model_prefix) else ""
    lacking = [
        name for name in found["missing_keys"] if name.startswith(inner) and LAYER.search(name)
    ]
    other = [name for name, *_ in found["mismatched_keys"]]
    for what, names in (("has no", lacking), ("has another shape of", other)):
        if names:
            raise ConfigError(
                f"model.pretrained={source} does not fit {kind.__name__}: it {what} {min(names)}"
            )
    return model


def from_source(kind: Any, source: str, **settings: Any) -> Any:
    """Call `from_pretrained` without running code or unpickling files of the source."""
    try:
        return kind.from_pretrained(source, trust_remote_code=False, **settings)
    except (OSError, SafetensorError) as error:
        raise libraries.not_loaded(source, error) from error


def tokens(config: Any, length: int) -> dict[str, Any]:
    """Describe the input of token ids. Raises ConfigError if the network has fewer positions."""
    text = config.get_text_config()
    names = ("max_position_embeddings", "max_target_positions")
    most = min(
        (value for name in names if isinstance(value := getattr(text, name, None), int)),
        default=length,
    )
    if getattr(text, "model_type", "") in ("roberta", "camembert", "xlm-roberta"):
        most -= 2  # positions begin after the padding's
    if length > most:
        more = "; phase=generate sets model.seq to generate.prompt + generate.new_tokens"
        raise ConfigError(
            f"model.seq={length} exceeds the {most} positions of {config.model_type}{more}"
        )
    return {"shape": [length], "dtype": "int64", "low": 0, "high": text.vocab_size, "keyword": True}


def described(model: nn.Module, config: Any, seq: int) -> dict[str, Any]:
    """Return the description of the network's main input. Raises UnsupportedError for an unknown
    kind of input."""
    name = getattr(model, "main_input_name", "input_ids")
    if name == "input_ids" and hasattr(config.get_text_config(), "vocab_size"):
        return {name: tokens(config, seq)}
    if name == "pixel_values":
        size = getattr(config, "image_size", 224)
        sides = list(size) if isinstance(size, list | tuple) else [size, size]
        shape = [getattr(config, "num_channels", 3), *sides]
    elif (
        name == "input_features"
        and hasattr(config, "max_source_positions")
        and hasattr(config, "num_mel_bins")
    ):
        shape = [config.num_mel_bins, 2 * config.max_source_positions]  # frames of 30 s of speech
    elif name == "input_values":
        shape = [16_000]  # one second of speech
    else:
        raise UnsupportedError(
            f"effbench cannot make the input {name} of {config.model_type}; use model=custom"
        )
    return {name: {"shape": shape, "keyword": True}}


def decoder(model: nn.Module, config: Any, slots: int, batch: int) -> Decoder:
    """Return the decode step of a network. A run of two tokens shows the shapes of its cache.
    Raises UnsupportedError if the network has no such cache, or other logits with a static one, for
    example because it attends to empty slots.
    """
    inputs = {"token": tokens(config, slots) | {"shape": [1], "keyword": False}}
    inputs["position"] = {"shape": [1], "dtype": "int64", "value": slots - 1, "batch_dim": None}
    ids = torch.tensor([[0, 1]], device=model.device)
    given = {"input_ids": ids}
    if config.is_encoder_decoder:
        ((name, described_input),) = described(model, config, slots).items()
        of_ids = name == "input_ids"
        dtype = torch.int64 if of_ids else torch.float32
        given = {name: torch.zeros(1, *described_input["shape"], dtype=dtype, device=model.device)}
        given["decoder_input_ids"] = ids
    with torch.no_grad():
        output = model.eval()(**given, use_cache=True)
        cache = getattr(output, "past_key_values", None)

    def shapes(cache: Any) -> list[tuple[list[int], list[int]]]:
        """Return the shapes [G, T, K] of keys and values of each layer."""
        if not all(
            isinstance(getattr(layer, "keys", None), Tensor)
            for layer in getattr(cache, "layers", [None])
        ):
            raise UnsupportedError(
                f"{config.model_type} has no key-value cache that effbench can make static"
            )
        return [
            tuple([*tensor.shape[1:]] for tensor in (layer.keys, layer.values))
            for layer in cache.layers
        ]

    own, cross = shapes(getattr(cache, "self_attention_cache", cache)), None
    if config.is_encoder_decoder:
        cross = shapes(cache.cross_attention_cache)
    alone = Decoder(model, inputs, 1, own, min(max(slots, 3), 1024), cross).to(model.device)
    with torch.no_grad():
        for number, layer in enumerate(cache.cross_attention_cache.layers if cross else ()):
            alone.get_buffer(f"cross_keys_{number}").copy_(layer.keys)
            alone.get_buffer(f"cross_values_{number}").copy_(layer.values)
        logits, wanted = (
            it[:, -1:]
            for it in (alone(ids, torch.tensor([0, 1], device=model.device)), output.logits)
        )
    if not (logits - wanted).norm() < 0.01 * wanted.norm():
        raise UnsupportedError(
            f"{config.model_type} has other logits with a static key-value cache than without"
        )
    return Decoder(model, inputs, batch, own, slots, cross)
