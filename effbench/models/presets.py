"""Libraries of networks, and published dimensions of those in transformers by name. Used without torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Preset:
    """`model_type`: name of the configuration class in transformers. `repository`: where the weights are published.

    `dimensions`: settings that differ from the class's defaults, or that another release could change."""

    model_type: str
    repository: str
    dimensions: dict[str, Any] = field(default_factory=dict)


def _widths(hidden: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    return {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, **more}


def _llama3(factor: float) -> dict[str, Any]:
    scaling = {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, "original_max_position_embeddings": 8192, **scaling}
    return {"rope_parameters": rope, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "vocab_size": 128256}


def _rope(theta: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}


def _t5(width: int, feed_forward: int, layers: int, heads: int) -> dict[str, Any]:
    sizes = {"d_model": width, "d_ff": feed_forward, "d_kv": 64, "num_layers": layers, "num_decoder_layers": layers}
    return {**sizes, "num_heads": heads, "vocab_size": 32128}


def _whisper(width: int, layers: int, heads: int) -> dict[str, Any]:
    sizes = {"d_model": width, "vocab_size": 51865}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": layers, f"{side}_attention_heads": heads, f"{side}_ffn_dim": 4 * width}
    return sizes


_BERT = {"vocab_size": 30522, "max_position_embeddings": 512}
_ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
_GPT2 = {"vocab_size": 50257, "max_position_embeddings": 1024}
_QWEN = {"vocab_size": 151936, "max_position_embeddings": 131072, "tie_word_embeddings": True, **_rope(1e6)}
_IMAGES = {"image_size": 224, "patch_size": 16}

#: Library -> module of effbench.models with its `check` and `network`.
LIBRARIES = {"torchvision": "vision", "timm": "timm_networks", "transformers": "transformers_networks"}
PRESETS = {
    "bert-base": Preset("bert", "google-bert/bert-base-uncased", _widths(768, 12, 12, intermediate_size=3072, **_BERT)),
    "bert-large": Preset(
        "bert", "google-bert/bert-large-uncased", _widths(1024, 24, 16, intermediate_size=4096, **_BERT)
    ),
    "roberta-base": Preset(
        "roberta", "FacebookAI/roberta-base", _widths(768, 12, 12, intermediate_size=3072, **_ROBERTA)
    ),
    "gpt2": Preset("gpt2", "openai-community/gpt2", _widths(768, 12, 12, **_GPT2)),
    "gpt2-medium": Preset("gpt2", "openai-community/gpt2-medium", _widths(1024, 24, 16, **_GPT2)),
    "gpt2-large": Preset("gpt2", "openai-community/gpt2-large", _widths(1280, 36, 20, **_GPT2)),
    "gpt2-xl": Preset("gpt2", "openai-community/gpt2-xl", _widths(1600, 48, 25, **_GPT2)),
    "llama-1b": Preset(
        "llama",
        "meta-llama/Llama-3.2-1B",
        _widths(2048, 16, 32, num_key_value_heads=8, intermediate_size=8192, tie_word_embeddings=True, **_llama3(32.0)),
    ),
    "llama-8b": Preset(
        "llama",
        "meta-llama/Llama-3.1-8B",
        _widths(4096, 32, 32, num_key_value_heads=8, intermediate_size=14336, **_llama3(8.0)),
    ),
    "mistral-7b": Preset(
        "mistral",
        "mistralai/Mistral-7B-v0.3",
        _widths(
            4096, 32, 32, num_key_value_heads=8, intermediate_size=14336, vocab_size=32768, sliding_window=None,
            max_position_embeddings=32768, **_rope(1e6),
        ),
    ),
    "qwen2-0.5b": Preset(
        "qwen2", "Qwen/Qwen2-0.5B", _widths(896, 24, 14, num_key_value_heads=2, intermediate_size=4864, **_QWEN)
    ),
    "qwen2-1.5b": Preset(
        "qwen2", "Qwen/Qwen2-1.5B", _widths(1536, 28, 12, num_key_value_heads=2, intermediate_size=8960, **_QWEN)
    ),
    "t5-small": Preset("t5", "google-t5/t5-small", _t5(512, 2048, 6, 8)),
    "t5-base": Preset("t5", "google-t5/t5-base", _t5(768, 3072, 12, 12)),
    "whisper-tiny": Preset("whisper", "openai/whisper-tiny", _whisper(384, 4, 6)),
    "whisper-base": Preset("whisper", "openai/whisper-base", _whisper(512, 6, 8)),
    "whisper-small": Preset("whisper", "openai/whisper-small", _whisper(768, 12, 12)),
    "vit-base": Preset(
        "vit", "google/vit-base-patch16-224", _widths(768, 12, 12, intermediate_size=3072, num_labels=1000, **_IMAGES)
    ),
}  # fmt: skip
