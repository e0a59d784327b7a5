"""What is wrong with a command line is said in one or two lines, exits with 2, and leaves nothing
behind."""

import io
import re
import sys

import pytest

from effbench.cli import main as command_line
from effbench.core.settings import shipped
from effbench.store import Store


def refused(done, *said: str) -> None:
    """One or two lines on stderr that hold all of `said`, nothing on stdout."""
    lines = [line for line in done.err.splitlines() if line.strip()]
    assert (done.code, done.out) == (2, ""), done
    assert lines[0].startswith("effbench: ") and len(lines) <= 2
    assert "Traceback" not in done.err
    for text in said:
        assert text in done.err


#: Command line -> part of the error.
REFUSED = (
    ("", "nothing to do: give overrides to run a sweep, for example: effbench -m"),
    ("rport", "unknown command 'rport'; did you mean `effbench report`?"),
    ("bs=1 rport", "'rport' is not an override"),
    ("--foo", "--foo"),
    ("-m mode=egaer,default", "unknown mode 'egaer': did you mean eager?"),
    ("-m model=tiny batch=2", "unknown setting 'batch': did you mean bs?"),
    # syntax
    ("model=custom model.module.name=ä", "with = ? or ä twice: 'key=\"a=b\"'"),
    ("-m bs=1,2,", "cannot parse the override 'bs=1,2,'"),
    ("bs=1, 8", "'8' is not an override; write overrides as key=value or key=value,value"),
    ("model.inputs.x.shape=(3,4)", "write sizes as a list and inputs in braces, and quote them"),
    ("model.inputs.x={shape: [64]}", "the shell splits an override at its spaces; quote it"),
    ("-m bs=range(1, 9)", "the shell splits an override at its spaces; quote it"),
    ("-m bs=range(1,1000000000000)", "at most 100,000 cells"),
    ("exclude=[{bs:3}] exclude=[{bs:4}]", "exclude is given twice"),
    ("env={A:1} env={B:2}", "env is given twice"),
    ("env.V=12.10", "would set 12.1, because Hydra reads a value; quote it"),
    ("env.V=True", "would set true"),
    ("env.V=1,2.50", "would set 2.5"),
    ("env={A:x,V:12.10}", "would set 12.1"),
    ("--cfg job bs=1,2", "bs=1,2"),
    ("--cfg job bs=one", "bs: expected a whole number of at least 1, got 'one'"),
    ("-m model=tiny --db x.db", "; a sweep takes db=x.db\n"),
    ("--config-dir=/nowhere/at/all", "/nowhere/at/all was not found"),
    ("--config-dir=a -cd b", "--config-dir is given twice"),
    ("hydra/launcher=basic", "do not override hydra/launcher"),
    ("resume=last db=elsewhere.db", "no database at elsewhere.db in the folder "),
    # settings that do not fit
    (
        "model=custom model.module._target_=torch.nn.Identity",
        "the model has no inputs",
    ),
    ("-m model=tiny training.lr=0.1,0.2", "no cell has phase=training; add phase=training"),
    ("-m model=tiny cache=folder", "cache=folder has no effect, because no cell has phase=coldst"),
    ("-m protocol=quick,standard", "protocol applies to a whole sweep"),
    # commands
    ("check --baseline main --rounds 5", "--rounds needs --confirm"),
    ("advise mode --bs 0", "--bs: expected a whole number of at least 1, got '0'"),
    ("show --why --metric energy_mj", "argument --metric: not allowed with argument --why"),
    ("ls --sweep nowhere", "--sweep needs one of them"),
    ("show --metric compile_s", "unknown metric 'compile_s': did you mean compile_cold_s?; see"),
    ("bisect a b --metric latency", "did you mean latency_ms?; see"),
    ("show --metric qqq", "unknown metric 'qqq'; allowed: latency_ms, "),
    ("show db=x.db", "unrecognized arguments: db=x.db; see effbench show --help"),
)


@pytest.mark.parametrize(("line", "said"), REFUSED)
def test_refused_before_anything_starts(cli, line, said):
    refused(cli.run(*line.split()), said)
    assert not cli.db.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "model=custom model.inputs.x.shape=[3] model.module._target_=nothere.Net",
            "no module named nothere",
        ),
        (
            "model=custom model.inputs.x.shape=[3] model.module._target_=leaves.Net",
            "exited with code 3",
        ),
        ("model=custom model.inputs.x.shape=[3] model.module._target_=good.value", "not callable"),
        (
            "model=custom model.inputs.x.shape=[3] model.module._target_=good.Net,blocks.Net",
            "have the name Net",
        ),
        ("model=tiny mode=eager mode.foo=1", "mode eager has no setting 'foo'"),
        ("model=tiny model.module.widht=16", "'model.module.widht': did you mean width?"),
        (
            "model=torchvision model.arch=resnet18 model.module.layers=1",
            "settings of resnet18 itself: model.config.NAME=VALUE for transformers, else",
        ),
        ("model=tiny device=cuda", "no GPU"),
        ("model=tiny device=cpu,cuda exclude=[{device:cpu}]", "no GPU"),
    ],
)
def test_refused_once_the_modules_are_known(workshop, words, said):
    """The database exists by then; no sweep does."""
    refused(workshop.sweep(*words.split(), "db=refused.db"), said)
    with Store.open(workshop.folder / "refused.db") as store:
        assert store.sweeps() == []


def test_cells_of_a_missing_device_are_unsupported(workshop):
    done = workshop.sweep("model=tiny", "mode=eager", "device=cpu,cuda", "db=two-devices.db")
    assert done.code == 0 and "1 ok, 1 unsupported of 2 cells" in done.out


#: Override that chooses a file -> its text and the error.
YAMLS = {
    "model=tiny,wrong_value": (
        "name: mine\nmodule: {_target_: a.b}\ntolerance: abc\n",
        "model/wrong_value.yaml: model.tolerance: expected a number above 0 or null, got 'abc'",
    ),
    "protocol=half": (
        "rounds: 2.5\n",
        "protocol/half.yaml: protocol.rounds: expected a whole number",
    ),
    "model=tiny,list": ("- a\n- b\n", "In 'model/list': ConfigTypeError raised"),
    "model=tiny,unclosed": ("name: [unclosed\nmodule: 3\n", 'unclosed.yaml", line 2'),
    "model=tiny,wrong_key": (
        "module: {_target_: a.Net}\ninput: {x: {}}\n",
        "model/wrong_key.yaml: unknown setting 'model.input': did you mean model.inputs?",
    ),
    "model=no_variable": (
        "module: {_target_: a.Net}\ninputs: {x: {shape: ['${no}']}}\n",
        "inputs.x.shape[0]",
    ),
    "mode=eager,no_name": (
        "_target_: a.Mode\n",
        "mode=no_name: name is missing or no text; the YAML of a mode requires name",
    ),
}


@pytest.fixture(scope="module")
def with_yamls(cli_in, tmp_path_factory):
    cli = cli_in(tmp_path_factory.mktemp("yamls"))
    for word, (text, _) in YAMLS.items():
        group, *_, name = re.split("[=,]", word)
        path = cli.folder / "conf" / group / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return cli


@pytest.mark.parametrize("word", YAMLS)
def test_a_yaml_of_the_user_is_named(word, with_yamls):
    # python= keeps the fork server from starting
    words = ("--config-dir=conf", "-m", "model=tiny", word, "python=/nowhere")
    refused(with_yamls.run(*words), YAMLS[word][1])


def test_a_yaml_of_the_user_that_hydra_would_not_read(cli):
    ships = shipped("conf") / "model" / "tiny.yaml"
    own = cli.folder / "conf" / "model" / "tiny.yaml"
    own.parent.mkdir(parents=True)
    own.write_bytes(ships.read_bytes())
    again = cli.sweep("--config-dir", "conf", "model=tiny", "--dry-run")
    assert again.code == 0, "a copy says the same"
    own.write_text(ships.read_text().replace("depth: 2", "depth: 3"))
    done = cli.sweep("--config-dir", "conf", "model=tiny")
    refused(
        done, "conf/model/tiny.yaml would be ignored", "effbench ships this file", "rename the file"
    )


def test_text_that_the_terminal_cannot_show_does_not_end_a_command(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(command_line, "run", lambda argv: print("× \udcff") or 0)
    with pytest.raises(SystemExit):
        command_line.main([])
    stream.seek(0)
    assert stream.read() == "\\xd7 \\udcff\n"
