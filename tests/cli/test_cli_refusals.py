"""What is wrong with a command line is said in one or two lines, exits with 2, and leaves nothing
behind."""

import io
import sys
from unittest.mock import Mock

import pytest

from effbench import cli as command_line
from effbench.config import shipped
from effbench.launcher import launch
from effbench.launcher.launch import hydra_sweep
from effbench.store import Store
from effbench.sweeping import client
from effbench.sweeping.run import Outcome

CUSTOM = ("model=custom", "model.inputs.x.shape=[3]")


def refused(done, *said: str) -> None:
    """One or two lines on stderr that hold all of `said`, nothing on stdout."""
    lines = [line for line in done.err.splitlines() if line.strip()]
    assert (done.code, done.out) == (2, ""), done
    assert (
        1 <= len(lines) <= 2 and lines[0].startswith("effbench: ") and "Traceback" not in done.err
    )
    assert all(text in done.err for text in said), done.err


#: Command line -> parts of the error.
REFUSED = (
    ([], ["nothing to do", "effbench -m", "show", "--help"]),
    (["model=mpl"], ["unknown model 'mpl'", "did you mean mlp?", "resnet50"]),
    (
        ["model=my_net"],
        ["'my_net': not a shipped model; own YAML: --config-dir=DIR, own module: model=custom"],
    ),
    (
        ["model=resnet5"],
        ["not a shipped model, did you mean resnet50?; own YAML: --config-dir", "model=custom"],
    ),
    (["model=bert"], ["did you mean bert-base?", "model=custom"]),
    (
        ["model=facebook/opt-125m"],
        ["a network of transformers: model=transformers model.arch=facebook/opt-125m"],
    ),
    (
        ["--config-dir=.", "model=my_net"],
        ["not a shipped model; own YAML: ./model/my_net.yaml does not exist, own"],
    ),
    (["mode=my_mode"], ["unknown mode 'my_mode': not a shipped mode; own YAML: --config-dir=DIR"]),
    (
        ["model=transformers"],
        ["model=transformers needs the name of a network: model.arch=bert-base; `effbench"],
    ),
    (
        ["-m", "model=tiny,timm"],
        ["model=timm needs the name of a network: model.arch=vit_base_patch16_224"],
    ),
    (
        ["model=torchvision", "bs=8"],
        ["model=torchvision needs the name of a network: model.arch=resnet50"],
    ),
    (["mode="], ["unknown mode ''", "allowed: ", "cuda-graph"]),
    (
        ["model=custom", "model.module.name=ä"],
        ["cannot parse the override", "with = ? or ä twice: 'key=\"a=b\"'"],
    ),
    (
        ["-m", "mode=eager,3"],
        ["groups take a name, not a number", "quote a name such as inf: \"model='inf'\""],
    ),
    (["-m", "mode=egaer,default"], ["unknown mode 'egaer'", "did you mean eager?", "cuda-graph"]),
    (["-m", "bs=1,2,"], ["bs=1,2,"]),
    (
        ["dtype=float31"],
        ["dtype: expected one of auto, float32, bfloat16", "got 'float31'. Example: dtype=float32"],
    ),
    (
        ["artifacts=trace"],
        ["artifacts: expected a list of trace, code", "got 'trace'. Example: 'artifacts=[trace]'"],
    ),
    (["isolation=thread"], ["isolation: expected one of fork, spawn, got 'thread'"]),
    (["-m", "bs=4,-1"], ["bs: expected a whole number of at least 1, got -1. Example: bs=8"]),
    (["-m", "bs=range(1,1000000000000)"], ["at most 100,000 cells"]),
    (["bs=one"], ["bs: expected a whole number of at least 1, got 'one'. Example: bs=8\n"]),
    (["-m", "bs=1,1.5"], ["bs: expected a whole number of at least 1, got 1.5."]),
    (["bs=null"], ["bs: expected a whole number of at least 1, got null."]),
    (["+bs=2"], ["bs is a setting already: write bs=VALUE, without +"]),
    (
        ["timeout_s=soon"],
        ["timeout_s: expected a number of seconds above 0, got 'soon'. Example: timeout_s=900"],
    ),
    (
        ["protocol.host_tolerance=[1]"],
        ["protocol.host_tolerance: expected a number above 0, or null, got [1]."],
    ),
    (
        ["numerics.tf32=maybe"],
        ["numerics.tf32: expected true or false, got 'maybe'. Example: numerics.tf32=true"],
    ),
    (["numerics.tf32=2"], ["numerics.tf32: expected true or false, got 2."]),
    (["device=gpu"], ["device: expected one of auto, cuda, cpu, got 'gpu'. Example: device=cuda"]),
    (["phase=train"], ["got 'train'. Example: phase=training"]),
    (
        ["model.module=3"],
        ["model.module: expected values by name, got 3. Example: model.module.width=64"],
    ),
    (
        ["executor.sbatch=x", "env=7"],
        ["env: expected values by name, got 7. Example: env.OMP_NUM_THREADS=1"],
    ),
    (
        ["bs=[1,8]"],
        [
            "bs: expected a whole number of at least 1, got [1,8]. To sweep over several values,"
            " write bs=1,8"
        ],
    ),
    (["protocol.rounds=0"], ["protocol.rounds: expected a whole number from 1 to 10,000, got 0."]),
    (
        ["protocol.rounds=10001"],
        ["protocol.rounds: expected a whole number from 1 to 10,000, got 10,001."],
    ),
    (
        ["bs=99999999999999999999"],
        ["bs: expected a whole number of at least 1, at most 2,147,483,647, got "],
    ),
    (
        ["sweep.seed=-99999999999999999999"],
        ["sweep.seed: expected a whole number, at least -2,147,483,647, got "],
    ),
    (["executor.gpus=[]"], ["executor.gpus", "[0,1]"]),
    (
        ["stream=[uniform,arrivals]"],
        ["stream: expected one value, got [uniform,arrivals].", "write stream=uniform,arrivals"],
    ),
    (["stream=uniform", "stream.lenght=8"], ["did you mean stream.length?"]),
    (["bss=1"], ["unknown setting 'bss'", "did you mean bs?"]),
    (["bz=1"], ["did you mean bs?"]),
    (["show", "--metric", "compile_s"], ["did you mean compile_cold_s?"]),
    (["-m", "model=tiny", "batch=2"], ["unknown setting 'batch'", "did you mean bs?"]),
    (["-m", "model=tiny", "tf32=true"], ["did you mean numerics.tf32?"]),
    (["-m", "model=tiny", "seed=1"], ["did you mean stream.seed or numerics.seed or sweep.seed?"]),
    (["batch_size=2"], ["did you mean bs?"]),
    (["model=mlp", "model.width=64"], ["did you mean model.module.width?"]),
    (["model=mlp", "depth=2"], ["did you mean model.module.depth?"]),
    (["model=mlp", "module.width=64"], ["did you mean model.module.width?"]),
    (["model=custom", "model._target_=a.Net"], ["did you mean model.module._target_?"]),
    (["model=custom", "model.x.shape=[3]"], ["did you mean model.inputs.x.shape?"]),
    (["model.input.x.shape=[3]"], ["did you mean model.inputs?"]),
    (["model.dtype=float32"], ["did you mean dtype?"]),
    (
        ["sweep=nightly"],
        ["sweep takes no value, got 'nightly'. Set one of sweep.name, sweep.label"],
    ),
    (["generate=4"], ["Set one of generate.prompt, generate.new_tokens"]),
    (
        ["model.inputs=[16]"],
        [
            "model.inputs: expected values by name, got [16]. Example:"
            " 'model.inputs.x.shape=[3,224,224]'"
        ],
    ),
    (["env=[1]"], ["env: expected values by name, got [1]. Example: env.OMP_NUM_THREADS=1"]),
    (["db=null"], ["db: expected text, got null. Example: db=results/effbench.db"]),
    (["env.A=null"], ["env", "env.FOO=1"]),
    (["model=custom"], ["model.module._target_ has no value"]),
    (
        ["model=custom", "model.module._target_=torch.nn.Identity"],
        ["no inputs", "model.inputs.x.shape"],
    ),
    (
        ["model=mlp", "model.arch=gpt2"],
        ["model.arch has no effect on the model mlp", "model=torchvision"],
    ),
    (
        ["model=timm", "model.arch=resnet18", "model.seq=8"],
        ["no effect on the model resnet18: it is for model=transf"],
    ),
    (
        ["stream=arrivals", "stream.rate=1"],
        ["stream.rate=1 gives", "in protocol.budget_s, fewer than protocol.min_"],
    ),
    (
        ["stream=arrivals", "phase=training"],
        ["phase=training cannot run a stream; use stream=none or phase=inference"],
    ),
    (["model=gpt2", "stream=uniform", "phase=generate"], ["phase=generate cannot run a stream"]),
    (
        ["model=gpt2", "phase=generate", "generate.new_tokens=1"],
        ["generate.new_tokens: expected a whole number of at least 2, got 1."],
    ),
    (
        ["model=transformers", "model.task=prefill", "phase=generate"],
        ["needs model.task=decode, got prefill"],
    ),
    (
        ["-m", "model=tiny", "training.lr=0.1,0.2"],
        ["training.lr=0.1,0.2 has no effect", "add phase=training"],
    ),
    (["model=tiny", "model.inputs.x.shape=[0]"], ["model.inputs.x.shape", "positive integers"]),
    (["-m", "protocol=quick,standard"], ["protocol", "applies to a whole sweep"]),
    (["exclude={bs:3}"], ["exclude must be a list of rules", "exclude=[{mode:"]),
    (["exclude=[{bs:3}]", "exclude=[{bs:4}]"], ["exclude is given twice"]),
    (["shard=9/8", "sweep.name=x"], ["shard=9/8", "from 1/8 to 8/8"]),
    (["shard=01/2", "sweep.name=x"], ["shard=01/2"]),
    (["shard=1/8"], ["shard requires sweep.name"]),
    (["rport"], ["unknown command 'rport'", "effbench report"]),
    (["bs=1", "rport"], ["'rport' is not an override", "put a command first"]),
    (["check=default", "model=tiny"], ["unknown setting 'check'"]),
    (["--cfg", "job", "bs=1,2"], ["bs=1,2"]),
    (["--foo"], ["--foo"]),
    (["db", "upgrade", "--deep"], ["--deep only applies to effbench db check"]),
    (["check", "--baseline", "main", "--rounds", "5"], ["--rounds needs --confirm"]),
    (["models", "--limit", "-1"], ["--limit: expected a whole number of at least 0, got '-1'"]),
    (["compare", "a", "b", "--only", ","], ["--only: no name given; choose from"]),
    (["report", "--format", "markdown", "--axis", "seq"], ["--axis needs --format html"]),
    (["-m", "model=tiny", "--db", "x.db"], ["--db", "; a sweep takes db=x.db\n"]),
    (["-m", "model=tiny", "--db=x.db"], ["; a sweep takes db=x.db\n"]),
    (["show", "db=x.db"], ["unrecognized arguments: db=x.db; effbench show takes --db URL"]),
    (["--config-dir=/nowhere/at/all"], ["/nowhere/at/all", "not found"]),
    (["--config-dir=a", "-cd", "b"], ["--config-dir is given twice"]),
    (
        [f"--config-dir={shipped('conf') / 'model'}"],
        ["ignores YAML files that are directly in it", "such as model/"],
    ),
    (["hydra/launcher=basic"], ["do not override hydra/launcher"]),
    (
        ["resume=last", "db=elsewhere.db"],
        ["at elsewhere.db in the folder ", "name its database with db=PATH"],
    ),
)


def test_refused_before_anything_starts(cli):
    for args, parts in REFUSED:
        refused(cli.run(*args), *parts)
        assert not cli.db.exists(), args


@pytest.mark.parametrize(
    ("typed", "quoted"),
    [
        ("model.inputs={x: {shape: [64]}}", "'model.inputs={x: {shape: [64]}}'"),
        ("model.inputs.x={shape: [64], low: 0}", "'model.inputs.x={shape: [64], low: 0}'"),
        ("model.inputs.x.shape=[3, 4]", "'model.inputs.x.shape=[3, 4]'"),
        ("{shape: [64]}", "'model.inputs.x={shape: [64]}'"),
        ("model.inputs.y= {shape: [64]}", "'model.inputs.y={shape: [64]}'"),
        ("exclude=[{mode: eager, bs: 1}]", "'exclude=[{mode: eager, bs: 1}]'"),
        ("bs=range(1, 9)", "'bs=range(1, 9)'"),
        # what bash makes of model.inputs.ids={shape:[12],dtype:int64}
        (
            "model.inputs.ids=shape:[12] model.inputs.ids=dtype:int64",
            "'model.inputs.ids={shape:[12],dtype:int64}'",
        ),
        ("model.inputs=x:shape:[6] model.inputs=x:low:0", "'model.inputs={…}'"),
    ],
)
def test_an_override_without_quotes_that_the_shell_took_apart(cli, typed, quoted):
    done = cli.run("model=custom", *typed.split(), "bs=1")
    refused(done, "the shell ", "quote ", quoted)
    assert not cli.db.exists()


def test_other_words_that_are_no_overrides(cli):
    refused(cli.run("bs=1,", "8"), "bs=1, 8: omit the space: bs=1,8")
    refused(
        cli.run("{shape: [64]}"),
        "'{shape: [64]}' is not an override",
        "'model.inputs.x={shape: [64]}'",
    )
    refused(
        cli.run("model.inputs.x=shape:[64]"),
        "cannot parse",
        "in braces, and quote it: 'model.inputs.x={shape: [",
    )
    refused(
        cli.run("model.inputs.x.shape=(3,4)"), "cannot parse", "'model.inputs.x.shape=[3,224,224]'"
    )
    words = cli.run("model.inputs={x: {shape: [64]}}", "bs=(1", "--cfg", "job")
    refused(words, "cannot parse the override 'bs=(1'")


def test_refused_once_the_modules_are_known(workshop):
    """The database exists by then; no sweep does."""
    for words, *parts in (
        ([*CUSTOM, "model.module._target_=nothere.Net"], "no module named nothere"),
        ([*CUSTOM, "model.module._target_=leaves.Net"], "leaves.Net", "exited with code 3"),
        ([*CUSTOM, "model.module._target_=good.value"], "not callable"),
        (
            [*CUSTOM, "model.module._target_=good.Net,blocks.Net"],
            "have the name Net",
            "model.name=",
        ),
        (["model=tiny", "mode=eager", "mode.foo=1"], "mode eager has no setting 'foo'"),
        (["model=tiny", "executor.gpus=[97]"], "executor.gpus names [97]"),
        (["model=tiny", "device=cuda"], "device=cuda", "no GPU"),
        (
            ["model=tiny", "device=cpu", "protocol=advise", "protocol.eliminate=period_ms"],
            "eliminate=period_ms needs CUDA",
        ),
        (["model=tiny", "device=cpu,cuda", "exclude=[{device: cpu}]"], "device=cuda", "no GPU"),
    ):
        refused(workshop.sweep(*words, "db=refused.db"), *parts)
    with Store.open(workshop.folder / "refused.db") as store:
        assert store.sweeps() == []
    done = workshop.sweep("model=tiny", "mode=eager", "device=cpu,cuda", "db=two-devices.db")
    assert done.code == 0 and "1 ok, 1 unsupported of 2 cells" in done.out


@pytest.mark.parametrize(
    ("word", "text", "said"),
    [
        (
            "model=tiny,mine",
            "name: mine\nmodule: {_target_: a.b}\ntolerance: abc\n",
            ["model/mine.yaml: model.tolerance: expected a number above 0, or null, got 'abc'"],
        ),
        (
            "protocol=mine",
            "rounds: 2.5\n",
            ["protocol/mine.yaml: protocol.rounds: expected a whole number", "got 2.5"],
        ),
        ("model=tiny,mine", "- a\n- b\n", ["model/mine.yaml", "list"]),
        ("model=tiny,mine", "name: [unclosed\nmodule: 3\n", ["mine.yaml, line 2"]),
        (
            "model=tiny,mine",
            "module: {_target_: a.Net}\ninput: {x: {}}\n",
            ["mine.yaml", "did you mean inputs?"],
        ),
        (
            "model=mine",
            "module: {_target_: a.Net}\ninputs: {x: {shape: ['${no}']}}\n",
            ["inputs.x.shape[0]", "'no'"],
        ),
        (
            "mode=eager,mine",
            "_target_: a.Mode\n",
            ["mode=mine: name is missing; the YAML of a mode requires name and"],
        ),
        ("mode=eager,mine", "name: mine\n", ["mode=mine: _target_ is missing"]),
    ],
)
def test_a_yaml_of_the_user_is_named(word, text, said, cli):
    own = cli.folder / "conf" / word.partition("=")[0] / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(text)
    # python= keeps the fork server from starting
    refused(cli.run("--config-dir=conf", "-m", "model=tiny", word, "python=/nowhere"), *said)


def test_the_fork_server_starts_before_a_sweep_is_composed(monkeypatch):
    started, lent = [], []
    monkeypatch.setattr(client, "ForkServer", lambda: started.append(Mock()) or started[-1])
    monkeypatch.setattr(launch, "hydra_sweep", lambda argv, server: lent.append(server))
    for words in (
        ["model=tiny"],
        ["-m", "resume=last"],
        ["--help"],
        ["--cfg", "job", "bs=8"],
        ["python=a,b"],
    ):
        assert command_line.run(words) == 0
    assert lent == [*started, None, None] and len(started) == 2
    assert all(server.close.called for server in started)


def test_a_protocol_of_the_user_has_the_name_of_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "conf" / "protocol" / "mine.yaml"
    own.parent.mkdir(parents=True)
    words = ["--config-dir=conf", "-m", "model=tiny", "protocol=quick,mine", "python=/nowhere"]
    for text in ("rounds: 1\n", "defaults: [quick]\nrounds: 2\n"):
        own.write_text(text)
        composed = []
        hydra_sweep(words, quiet=True, conductor=lambda jobs, _, found=composed: found.extend(jobs))
        assert [job.config["protocol"]["name"] for job in composed] == ["quick", "mine"]


def test_a_yaml_of_the_user_that_hydra_would_not_read(cli):
    ships = shipped("conf") / "model" / "tiny.yaml"
    own = cli.folder / "conf" / "model" / "tiny.yaml"
    own.parent.mkdir(parents=True)
    own.write_bytes(ships.read_bytes())
    assert cli.sweep("--config-dir", "conf", "model=tiny").code == 0, "a copy says the same"
    own.write_text(ships.read_text().replace("depth: 2", "depth: 3"))
    done = cli.sweep("--config-dir", "conf", "model=tiny")
    refused(done, "conf/model/tiny.yaml would be ignored", "ships model=tiny", "rename the file")
    own.unlink()
    (cli.folder / "conf" / "config.yaml").write_text("bs: 64\n")
    done = cli.sweep("--config-dir", "conf", "model=tiny")
    refused(
        done, "conf/config.yaml would be ignored", "ships a file config.yaml", "--config-name=NAME"
    )


def test_an_option_that_ends_with_yml(cli):
    (own := cli.folder / "conf" / "model").mkdir(parents=True)
    (own / "mine.yml").write_text("name: mine\n")
    refused(
        cli.run("--config-dir=conf", "model=mine"),
        "conf/model/mine.yml would be ignored",
        "rename the file",
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["env.V=12.10"], "would set 12.1, because Hydra reads a value; write env.V='\"12.10\"'"),
        (["env.V=True"], "would set true"),
        (
            ["env.V=1, 2.50"],
            "env.V=1, 2.50 would set 2.5, because Hydra reads a value; quote it, as in",
        ),
        (["env={A:x,V:12.10}"], "would set 12.1, because Hydra reads a value; quote it"),
        (
            ["env={A:1}", "env={B:2}"],
            "env is given twice; write all its keys as one: env={A:1,B:2}",
        ),
    ],
)
def test_values_that_hydra_would_change(cli, words, said):
    refused(cli.sweep("model=tiny", *words), said)


def test_text_that_the_terminal_cannot_show_does_not_end_a_command(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(command_line, "run", lambda argv: print("× \udcff") or 0)
    with pytest.raises(SystemExit):
        command_line.main([])
    stream.seek(0)
    assert stream.read() == "\\xd7 \\udcff\n"


@pytest.mark.parametrize("state", ["interrupted", "completed"])
def test_a_second_interrupt_before_the_table_still_names_the_command_that_resumes(
    state, effbench, monkeypatch
):
    outcome = Outcome("20261127", "postgresql://me:secret@host/x", state, "fail", [], shard="1/2")
    monkeypatch.setattr(launch, "hydra_sweep", lambda argv, server: outcome)
    monkeypatch.setattr("effbench.commands.show.end_of_sweep", Mock(side_effect=KeyboardInterrupt))
    done = effbench("python=x")  # needs no server
    hint = (
        "; resume with: effbench -m resume=20261127 shard=1/2 'db=\"postgresql://me:***@host/x\"'"
    )
    assert (done.code, done.err) == (
        130,
        f"effbench: interrupted{hint if state == 'interrupted' else ''}\n",
    )
