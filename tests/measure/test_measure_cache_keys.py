"""Why a cache of compiled code is not used: differences between the keys of its entries."""

import logging

import pytest

from effbench.measure.cache_keys import (
    INDUCTOR_LOGGER,
    KeyObserver,
    differences,
    key_of,
)

#: As torch 2.11 to 2.14 log it.
MESSAGE = """FX graph cache hash details for key fabc:
[aaa] gm: GraphModule()
def forward(self, primals_1):
    return primals_1
[bbb] example_inputs[0]: TensorMetadata(dtype=torch.float32, shape=torch.Size([4, 16]), \
stride=(16, 1), device=device(type='cuda', index=0), layout=torch.strided)
[ccc] fx_kwargs[cudagraphs]: BoxedBool(value=False)
[eee] fx_kwargs[get_decomp_fn]: <function select_decomp_table at 0x7f00>
[ddd] inductor_config[max_autotune]: False"""
KEY = key_of(MESSAGE)


def changed(*replaced):
    """The key of the message with these texts replaced."""
    text = MESSAGE
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new)
    return key_of(text)


@pytest.mark.parametrize(
    ("replaced", "reason"),
    [
        (
            [("[bbb]", "[b2]"), ("[4, 16]", "[8, 16]")],
            "input 0 of the graph: shape (4, 16), now (8, 16)",
        ),
        (
            [("[bbb]", "[b2]"), ("[4, 16]", "[4, 8]"), ("(16, 1)", "(8, 1)")],
            "input 0 of the graph: shape (4, 16), now (4, 8)",
        ),
        (
            [("[bbb]", "[b2]"), ("index=0", "index=1")],
            "input 0 of the graph: device cuda:0, now cuda:1",
        ),
        (
            [("[bbb]", "[b2]"), ("torch.float32", "torch.bfloat16")],
            "input 0 of the graph: dtype float32, now bfloat16",
        ),
        ([("[aaa]", "[a2]")], "code of the graph"),
        ([("[ddd]", "[d2]")], "inductor_config: max_autotune"),
        ([("[ccc] fx_kwargs[cudagraphs]: BoxedBool(value=False)\n", "")], "fx_kwargs: cudagraphs"),
    ],
    ids=["shape", "stride", "device", "dtype", "code", "option", "missing"],
)
def test_what_differs_between_keys(replaced, reason):
    assert differences([KEY], [changed(*replaced)]) == [reason]


def test_equal_keys_do_not_differ():
    assert differences([KEY], [changed(("0x7f00", "0x7f99"))]) == []


def test_a_key_is_compared_with_the_most_similar_one():
    other = dict.fromkeys(KEY, "[z]")
    now = changed(("[bbb]", "[b2]"), ("[4, 16]", "[8, 16]"))
    reason = "input 0 of the graph: shape (4, 16), now (8, 16)"
    assert differences([other, KEY], [now]) == [reason]
    assert differences([], [{"gm": "[aaa]"}]) == ["code of the graph"]


def test_each_difference_is_a_reason():
    then = {f"option{number}": "[a]" for number in range(9)}
    assert differences([then], [dict.fromkeys(then, "[b]")]) == list(then)


def test_torch_logs_what_is_observed(capsys):
    observer = KeyObserver()
    logger = logging.getLogger(INDUCTOR_LOGGER)
    before = logger.level
    with observer.observing():
        logger.debug(MESSAGE)
        logger.info("Bypassing FX Graph Cache because 'freezing'")
    logger.info("Bypassing FX Graph Cache because 'freezing'")
    assert observer.keys == [KEY]
    assert observer.bypasses == ["Bypassing FX Graph Cache because 'freezing'"]
    assert (logger.level, logger.propagate) == (before, True)
    assert capsys.readouterr().err == ""
