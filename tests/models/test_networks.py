"""Networks of torchvision, timm and transformers by name, small ones."""

import pytest
import shipped
import torch
from own_cells import cpu_cell, own_workload
from shipped import apart, compiled_whole, inputs_of
from torch import nn

from effbench.core.errors import ConfigError, UnsupportedError
from effbench.models import catalog, libraries, presets
from effbench.models.spec import parse_inputs
from effbench.workloads import dropout
from effbench.workloads.generation import Generation

BS, SEQ = 2, 16
WIDTHS = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
FED = WIDTHS | {"intermediate_size": 64}
GROUPED = FED | {"vocab_size": 97, "num_key_value_heads": 2}
GPT2 = {
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "vocab_size": 97,
}
T5 = {
    "d_model": 32,
    "d_ff": 64,
    "d_kv": 8,
    "num_layers": 1,
    "num_decoder_layers": 1,
    "num_heads": 4,
    "vocab_size": 97,
}
WHISPER = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "max_source_positions": 50,
    "vocab_size": 50300,
}
HEADS = dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4) | dict.fromkeys(
    ("encoder_ffn_dim", "decoder_ffn_dim"), 64
)
#: Architecture -> values that make it small, and the shape of the output of each task.
SMALL = {
    "bert-base": (FED | {"vocab_size": 97}, {"logits": (BS, SEQ, 97)}),
    "gpt2": (GPT2, {"prefill": (BS, 1, 97)}),
    "llama-1b": (GROUPED | {"head_dim": 8}, {"decode": (BS, 1, 97)}),
    "t5-small": (T5, {"logits": (BS, SEQ, 97)}),
    "whisper-tiny": (WHISPER | HEADS, {"encode": (BS, 50, 32)}),
    "vit-base": (FED | {"image_size": 32}, {"logits": (BS, 1000)}),
}
IMAGES = [("torchvision", "mobilenet_v3_small"), ("timm", "test_convnext")]


def of_transformers(arch, task, **changes):
    config = SMALL[arch][0] | changes
    return build(named(arch, task, config) | {"seq": SEQ, "max_batch": BS})


def named(arch, task=None, config=None):
    return {
        "library": "transformers",
        "arch": arch,
        "task": task,
        "config": config or {},
    }


def build(settings):
    module = {"_target_": "effbench.models.libraries.network", **settings}
    return shipped.build({"module": module})


def run(module, dtype=torch.float32):
    args, kwargs = inputs_of(module.inputs, BS, dtype)
    with torch.inference_mode():
        return module(*args, **kwargs).clone()


@pytest.mark.parametrize(
    ("arch", "task"), [(arch, task) for arch, (_, tasks) in SMALL.items() for task in tasks]
)
def test_a_task_gives_alike_outputs_in_every_dtype(arch, task):
    module = of_transformers(arch, task)
    output = run(module)
    assert output.shape == SMALL[arch][1][task]
    assert torch.equal(run(module), output), "also after the cache was written"
    close_in_bfloat16(module, output)


@pytest.mark.parametrize(
    ("arch", "task"),
    [
        pytest.param("bert-base", "logits", marks=pytest.mark.slow),
        ("gpt2", "prefill"),
        ("llama-1b", "decode"),
        pytest.param("whisper-tiny", "encode", marks=pytest.mark.slow),
    ],
)
def test_a_task_is_traced_whole(arch, task):
    module = of_transformers(arch, task)
    torch.testing.assert_close(run(compiled_whole(module)), run(module))


def close_in_bfloat16(module, output, tolerance=2e-2):
    assert apart(run(module.bfloat16(), torch.bfloat16), output) < tolerance
    first_row, second_row = output  # which depend on their input
    assert apart(second_row, first_row) > 2e-2


@pytest.mark.parametrize(("name", "arch"), IMAGES)
def test_images_keep_their_signal(name, arch):
    module = build({"library": name, "arch": arch, "image_size": 64})
    assert module.inputs == {"x": {"shape": [3, 64, 64]}}
    close_in_bfloat16(module, run(module), 0.1)
    for key, value in module.named_parameters():
        assert not key.endswith("gamma") or bool((value == 1).all())


@pytest.mark.parametrize("arch", ["gpt2", "llama-1b"])
def test_generated_tokens_are_those_of_transformers(arch):
    prompt, count = 7, SEQ - 7
    # with a tied head an untrained network repeats its last token
    options = {"tie_word_embeddings": False, "eos_token_id": None, "bos_token_id": None}
    module = of_transformers(arch, "decode", **options)
    request = {"prompt": prompt, "new_tokens": count}
    model = {"name": arch, "module": {}}
    cell = cpu_cell(BS, model, phase="generate", generate=request)
    ids = torch.randint(0, 97, (BS, prompt))
    specs = parse_inputs(module.inputs)
    made = own_workload(Generation, cell, module, specs, [((ids,), {})])
    with made.context():
        made.take_reference()
    ours = torch.cat(made.tokens[0], 1)
    theirs = module.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        cache_implementation="static",
        disable_compile=True,
        pad_token_id=0,
    )
    assert ours.tolist() == theirs[:, prompt:].tolist()
    assert len(set(ours.flatten().tolist())) > 4


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"library": "torchvision", "arch": "resnet5O"}, "did you mean resnet50"),
        ({"library": "timm", "arch": "resnet18O"}, "did you mean resnet18"),
        (named("bert-bas"), "did you mean bert-base"),
        (named("gpt2") | {"layers": 1}, "unknown setting 'model.module.layers'"),
        (named("gpt2", config={"n_embed": 8}), "did you mean n_embd"),
        (named("gpt2", config={"n_layer": "x"}), "expected int, got str"),
    ],
)
def test_errors_before_anything_is_built(settings, text):
    with pytest.raises(ConfigError, match=text):
        libraries.check(**settings)


GPT_NEO = {
    "hidden_size": 16,
    "num_layers": 2,
    "num_heads": 2,
    "attention_types": [[["global", "local"], 1]],
    "vocab_size": 32,
    "window_size": 4,
}
MAMBA = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "vocab_size": 32,
    "state_size": 4,
}


@pytest.mark.parametrize(
    ("arch", "config", "words"),
    [
        ("t5", T5, "t5 does not support the task decode; it supports encode, logits"),
        ("mamba", MAMBA, "mamba has no key-value cache"),
        ("gpt_neo", GPT_NEO, "gpt_neo has other logits with a static key-value cache"),
    ],
)
def test_networks_that_cannot_decode(arch, config, words):
    with pytest.raises(UnsupportedError, match=words):
        build(named(arch, "decode", config))


#: Preset -> parameters of the published network, without a head.
PUBLISHED = {
    "bert-base": 109_482_240,
    "gpt2": 124_439_808,
    "llama-1b": 1_235_814_400,
    "qwen2-0.5b": 494_032_768,
    "qwen3-0.6b": 596_049_920,
    "t5-small": 60_506_624,
    "whisper-tiny": 37_760_640,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_size(name):
    from effbench.models.libraries import transformers

    config = transformers.configure(name, {})
    with torch.device("meta"):
        model = transformers.auto.MODEL_MAPPING[type(config)]._from_config(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == PUBLISHED[name]


@pytest.mark.parametrize(
    ("library", "given", "name"),
    [
        ("transformers", "google-bert/bert-base-uncased", "bert-base"),
        ("transformers", "meta-llama/Llama-3.2-1B", "llama-1b"),
        ("transformers", "my/own", "my/own"),
        ("timm", "timm/resnet18.a1_in1k", "resnet18.a1_in1k"),
        ("torchvision", "bert-base-uncased", "bert-base-uncased"),
    ],
)
def test_names_of_the_hub_are_those_of_the_networks(library, given, name):
    assert presets.canonical(library, given) == name


def known_in(library):
    return {arch for name, arch, _ in catalog.networks() if name == library}


def test_the_catalog_knows_what_the_libraries_know():
    vision = libraries.load("torchvision").models
    assert known_in("timm") == set(libraries.load("timm").list_models())
    assert known_in("torchvision") == set(vision.list_models(module=vision))
    types = set(libraries.load("transformers").CONFIG_MAPPING)
    assert known_in("transformers") ^ types <= {*catalog.PRESETS}


def test_their_dropout_is_known_by_type():
    timm = libraries.load("timm")
    vision = libraries.load("torchvision")
    transformers = libraries.load("transformers")
    config = transformers.BartConfig(
        vocab_size=20,
        d_model=16,
        encoder_layers=1,
        decoder_layers=0,
        attention_dropout=0.2,
        encoder_layerdrop=0.3,
    )
    bart = transformers.BartModel._from_config(config)
    bart.backdrop = 0.5  # transformers has no such attribute
    path, depth = timm.layers.DropPath(0.1), vision.ops.StochasticDepth(0.2, "row")
    dropout.switch_off(nn.ModuleList([path, depth, bart]))
    layer = bart.encoder.layers[0]
    assert path.drop_prob == depth.p == layer.dropout == layer.self_attn.dropout == 0
    assert bart.encoder.layerdrop == bart.config.attention_dropout == 0
    assert bart.backdrop == 0.5
