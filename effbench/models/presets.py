"""Networks of transformers with published dimensions, by short names and by those of their
repositories."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Preset:
    """`model_type`: name of the configuration class in transformers. `repository`: where the
    weights are published.

    `dimensions`: settings that differ from the class's defaults, or that another release could
    change."""

    model_type: str
    repository: str
    dimensions: dict[str, Any] = field(default_factory=dict)


def _sizes(hidden: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    return sizes | more


def _bert(hidden: int, layers: int, heads: int, vocab: int = 30522) -> dict[str, Any]:
    return _sizes(
        hidden,
        layers,
        heads,
        intermediate_size=4 * hidden,
        vocab_size=vocab,
        max_position_embeddings=512,
    )


def _roberta(hidden: int, layers: int, heads: int, vocab: int = 50265) -> dict[str, Any]:
    return _sizes(
        hidden,
        layers,
        heads,
        intermediate_size=4 * hidden,
        vocab_size=vocab,
        max_position_embeddings=514,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
    )


def _gpt2(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    return _sizes(hidden, layers, heads, vocab_size=50257, max_position_embeddings=1024)


def _opt(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    return _sizes(
        hidden,
        layers,
        heads,
        ffn_dim=4 * hidden,
        vocab_size=50272,
        max_position_embeddings=2048,
        word_embed_proj_dim=hidden,
        do_layer_norm_before=True,
    )


def _llama(
    hidden: int, layers: int, heads: int, feed_forward: int, factor: float, tied: bool
) -> dict[str, Any]:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "original_max_position_embeddings": 8192,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    }
    return _sizes(
        hidden,
        layers,
        heads,
        intermediate_size=feed_forward,
        num_key_value_heads=8,
        vocab_size=128256,
        rms_norm_eps=1e-5,
        max_position_embeddings=131072,
        tie_word_embeddings=tied,
        rope_parameters=rope,
    )


def _older_llama(
    hidden: int, layers: int, feed_forward: int, kv_heads: int, positions: int
) -> dict[str, Any]:
    return _sizes(
        hidden,
        layers,
        32,
        intermediate_size=feed_forward,
        num_key_value_heads=kv_heads,
        vocab_size=32000,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        max_position_embeddings=positions,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )


def _qwen(
    hidden: int, layers: int, heads: int, feed_forward: int, positions: int
) -> dict[str, Any]:
    return _sizes(
        hidden,
        layers,
        heads,
        intermediate_size=feed_forward,
        num_key_value_heads=2,
        vocab_size=151936,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )


def _t5(width: int, layers: int, heads: int, feed_forward: int) -> dict[str, Any]:
    return {
        "d_model": width,
        "d_ff": feed_forward,
        "d_kv": 64,
        "num_heads": heads,
        "vocab_size": 32128,
        "num_layers": layers,
        "num_decoder_layers": layers,
    }


def _seq2seq(width: int, layers: int, heads: int, vocab: int, **more: Any) -> dict[str, Any]:
    sizes: dict[str, Any] = {"d_model": width, "vocab_size": vocab}
    for side in ("encoder", "decoder"):
        sizes[f"{side}_layers"] = layers
        sizes[f"{side}_attention_heads"] = heads
        sizes[f"{side}_ffn_dim"] = 4 * width
    return sizes | more


def _vit(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    return _sizes(
        hidden,
        layers,
        heads,
        intermediate_size=4 * hidden,
        image_size=224,
        patch_size=16,
        num_labels=1000,
    )


def _neox(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    return _sizes(
        hidden,
        layers,
        heads,
        intermediate_size=4 * hidden,
        vocab_size=50304,
        max_position_embeddings=2048,
    )


_DISTILBERT = {"dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072, "vocab_size": 30522}
_ALBERT = _sizes(768, 12, 12, embedding_size=128, intermediate_size=3072, vocab_size=30000)
_QWEN3 = _qwen(1024, 28, 16, 3072, 40960) | {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
}
_BLOOM = {"hidden_size": 1024, "n_layer": 24, "n_head": 16, "vocab_size": 250880}

PRESETS = {
    "bert-base": Preset("bert", "google-bert/bert-base-uncased", _bert(768, 12, 12)),
    "bert-base-cased": Preset("bert", "google-bert/bert-base-cased", _bert(768, 12, 12, 28996)),
    "bert-large": Preset("bert", "google-bert/bert-large-uncased", _bert(1024, 24, 16)),
    "distilbert-base": Preset("distilbert", "distilbert/distilbert-base-uncased", _DISTILBERT),
    "minilm-l6": Preset("bert", "sentence-transformers/all-MiniLM-L6-v2", _bert(384, 6, 12)),
    "albert-base": Preset("albert", "albert/albert-base-v2", _ALBERT),
    "roberta-base": Preset("roberta", "FacebookAI/roberta-base", _roberta(768, 12, 12)),
    "roberta-large": Preset("roberta", "FacebookAI/roberta-large", _roberta(1024, 24, 16)),
    "xlm-roberta-base": Preset(
        "xlm-roberta", "FacebookAI/xlm-roberta-base", _roberta(768, 12, 12, 250002)
    ),
    "gpt2": Preset("gpt2", "openai-community/gpt2", _gpt2(768, 12, 12)),
    "gpt2-medium": Preset("gpt2", "openai-community/gpt2-medium", _gpt2(1024, 24, 16)),
    "gpt2-large": Preset("gpt2", "openai-community/gpt2-large", _gpt2(1280, 36, 20)),
    "gpt2-xl": Preset("gpt2", "openai-community/gpt2-xl", _gpt2(1600, 48, 25)),
    "distilgpt2": Preset("gpt2", "distilbert/distilgpt2", _gpt2(768, 6, 12)),
    "opt-125m": Preset("opt", "facebook/opt-125m", _opt(768, 12, 12)),
    "opt-1.3b": Preset("opt", "facebook/opt-1.3b", _opt(2048, 24, 32)),
    "pythia-70m": Preset("gpt_neox", "EleutherAI/pythia-70m", _neox(512, 6, 8)),
    "pythia-160m": Preset("gpt_neox", "EleutherAI/pythia-160m", _neox(768, 12, 12)),
    "bloom-560m": Preset("bloom", "bigscience/bloom-560m", _BLOOM),
    "llama-1b": Preset("llama", "meta-llama/Llama-3.2-1B", _llama(2048, 16, 32, 8192, 32.0, True)),
    "llama-3b": Preset("llama", "meta-llama/Llama-3.2-3B", _llama(3072, 28, 24, 8192, 32.0, True)),
    "llama-8b": Preset("llama", "meta-llama/Llama-3.1-8B", _llama(4096, 32, 32, 14336, 8.0, False)),
    "llama-2-7b": Preset(
        "llama", "meta-llama/Llama-2-7b-hf", _older_llama(4096, 32, 11008, 32, 4096)
    ),
    "tinyllama-1.1b": Preset(
        "llama", "TinyLlama/TinyLlama-1.1B-Chat-v1.0", _older_llama(2048, 22, 5632, 4, 2048)
    ),
    "qwen2-0.5b": Preset("qwen2", "Qwen/Qwen2-0.5B", _qwen(896, 24, 14, 4864, 131072)),
    "qwen2-1.5b": Preset("qwen2", "Qwen/Qwen2-1.5B", _qwen(1536, 28, 12, 8960, 131072)),
    "qwen2.5-0.5b": Preset("qwen2", "Qwen/Qwen2.5-0.5B", _qwen(896, 24, 14, 4864, 32768)),
    "qwen3-0.6b": Preset("qwen3", "Qwen/Qwen3-0.6B", _QWEN3),
    "t5-small": Preset("t5", "google-t5/t5-small", _t5(512, 6, 8, 2048)),
    "t5-base": Preset("t5", "google-t5/t5-base", _t5(768, 12, 12, 3072)),
    "t5-large": Preset("t5", "google-t5/t5-large", _t5(1024, 24, 16, 4096)),
    "bart-base": Preset(
        "bart", "facebook/bart-base", _seq2seq(768, 6, 12, 50265, max_position_embeddings=1024)
    ),
    "bart-large": Preset(
        "bart", "facebook/bart-large", _seq2seq(1024, 12, 16, 50265, max_position_embeddings=1024)
    ),
    "whisper-tiny": Preset("whisper", "openai/whisper-tiny", _seq2seq(384, 4, 6, 51865)),
    "whisper-base": Preset("whisper", "openai/whisper-base", _seq2seq(512, 6, 8, 51865)),
    "whisper-small": Preset("whisper", "openai/whisper-small", _seq2seq(768, 12, 12, 51865)),
    "vit-base": Preset("vit", "google/vit-base-patch16-224", _vit(768, 12, 12)),
    "vit-large": Preset("vit", "google/vit-large-patch16-224", _vit(1024, 24, 16)),
}


def _aliases() -> Iterator[tuple[str, str]]:
    """Yield other names of the presets in lower case: their repositories, with and without the
    owner."""
    for name, preset in PRESETS.items():
        repository = preset.repository.casefold()
        yield repository, name
        yield repository.partition("/")[2], name
        yield name.casefold(), name


ALIASES = dict(_aliases())


def canonical(library: str, arch: str) -> str:
    """Return the name of a network for one of its names on the Hugging Face hub; an unknown name
    unchanged."""
    if library == "transformers":
        return arch if arch in PRESETS else ALIASES.get(arch.casefold(), arch)
    if library == "timm":
        return arch.removeprefix("hf-hub:").removeprefix("hf_hub:").removeprefix("timm/")
    return arch
