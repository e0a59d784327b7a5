"""Names of networks, without importing torch: presets with published dimensions, and what installed libraries define.

The sources of the libraries are read, because importing the libraries takes 10 s.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Library -> module of effbench.models with its `check` and `network`.
LIBRARIES = {"torchvision": "vision", "timm": "timm_networks", "transformers": "transformers_networks"}
REGISTERED = re.compile(r"^@register_model\b.*\n(?:@.*\n)*def (\w+)\(", re.M)
MODEL_TYPE = re.compile(r"^ +\(?\"([\w.-]+)\"[,:] \"\w+Config\"", re.M)


@dataclass(frozen=True)
class Preset:
    """`model_type`: name of the configuration class in transformers. `repository`: where the weights are published.

    `dimensions`: settings that differ from the class's defaults, or that another release could change."""

    model_type: str
    repository: str
    dimensions: dict[str, Any] = field(default_factory=dict)


def _encoder(**more: Any) -> dict[str, Any]:
    return {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, **more}


def _llama(hidden: int, layers: int, feed_forward: int, factor: float, tied: bool) -> dict[str, Any]:
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, "original_max_position_embeddings": 8192}
    rope |= {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": feed_forward}
    sizes |= {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "rms_norm_eps": 1e-5}
    return {**sizes, "max_position_embeddings": 131072, "tie_word_embeddings": tied, "rope_parameters": rope}


_QWEN = {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2}
_QWEN |= {"intermediate_size": 4864, "vocab_size": 151936, "max_position_embeddings": 131072}
_QWEN |= {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
_T5 = {"d_model": 512, "d_ff": 2048, "d_kv": 64, "num_layers": 6, "num_decoder_layers": 6, "num_heads": 8}
_WHISPER = {"d_model": 384, "vocab_size": 51865}
for _side in ("encoder", "decoder"):
    _WHISPER |= {f"{_side}_layers": 4, f"{_side}_attention_heads": 6, f"{_side}_ffn_dim": 1536}
_BERT = _encoder(intermediate_size=3072, vocab_size=30522, max_position_embeddings=512)
_VIT = _encoder(intermediate_size=3072, image_size=224, patch_size=16, num_labels=1000)

PRESETS = {
    "bert-base": Preset("bert", "google-bert/bert-base-uncased", _BERT),
    "gpt2": Preset("gpt2", "openai-community/gpt2", _encoder(vocab_size=50257, max_position_embeddings=1024)),
    "llama-1b": Preset("llama", "meta-llama/Llama-3.2-1B", _llama(2048, 16, 8192, 32.0, True)),
    "llama-8b": Preset("llama", "meta-llama/Llama-3.1-8B", _llama(4096, 32, 14336, 8.0, False)),
    "qwen2-0.5b": Preset("qwen2", "Qwen/Qwen2-0.5B", _QWEN),
    "t5-small": Preset("t5", "google-t5/t5-small", _T5 | {"vocab_size": 32128}),
    "whisper-tiny": Preset("whisper", "openai/whisper-tiny", _WHISPER),
    "vit-base": Preset("vit", "google/vit-base-patch16-224", _VIT),
}


def folder(library: str) -> Path | None:
    """Return the folder of a library's package, without importing it; None if it is not installed."""
    spec = importlib.util.find_spec(library)
    return Path(spec.origin).parent if spec and spec.origin else None


def found(files: Iterator[Path], pattern: re.Pattern[str]) -> list[str]:
    return sorted({name for file in files for name in pattern.findall(file.read_text(encoding="utf-8"))})


def networks() -> Iterator[tuple[str, str, str]]:
    """Yield the library, name and description of each network that `model.arch` accepts."""
    if folder("transformers"):
        for name, preset in PRESETS.items():
            yield "transformers", name, f"{preset.model_type}, as {preset.repository}"
    for library in ("torchvision", "timm"):
        if home := folder(library):
            for name in found((home / "models").glob("*.py"), REGISTERED):
                yield library, name, "image classification"
    if home := folder("transformers"):
        for name in found((home / "models").glob("auto/*auto*.py"), MODEL_TYPE):
            if name not in PRESETS:
                yield "transformers", name, "default configuration"
