"""The command line as a user runs it, in a folder of its own, with locks and caches that no other
effbench sees."""

import atexit
import contextlib
import functools
import gc
import getpass
import importlib.util
import io
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from compiled_once import shared_statements, shared_templates  # noqa: F401
from hydra.core.config_search_path import SearchPathElement
from postgres_server import own_postgres, own_server, postgres, postgres_url  # noqa: F401

from effbench.run.client import ForkServer

ROOT = Path(__file__).resolve().parents[1]
#: Tests run side by side: threads that wait for each other on a shared core make times meaningless.
os.environ.setdefault("OMP_NUM_THREADS", "1")
#: What Inductor finds out about the machine takes seconds, and is the same for all tests.
SHARED_INDUCTOR_CACHE = str(Path(tempfile.gettempdir()) / f"effbench-tests-{os.getuid()}")
#: Where Inductor keeps precompiled C++ headers, in the folder for temporary files. They take ten
#: seconds.
SHARED_HEADERS = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"
#: A protocol that takes a tenth of a second a trial.
TINY = (
    "protocol=quick",
    "protocol.budget_s=0.2",
    "protocol.min_time_s=0.02",
    "protocol.warmup_s=0.02",
    "protocol.host_tolerance=1000",  # other tests run on these cores
    "protocol.profile=false",  # traces take as long as the timing
    "device=cpu",
)
#: What a shell may have set that would change what is tested.
NOT_OURS = (
    "EFFBENCH_",
    "CUDA_VISIBLE_DEVICES",
    "COLUMNS",
    "NO_COLOR",
    "FORCE_COLOR",
    "HYDRA_",
    "TORCH_LOGS",
)
#: Files and folders of tests by the seconds that a file of them may take, the longest first.
LONGEST = (
    "test_types.py",
    "test_docs_run.py",
    "integration",
    "test_docs_complete.py",
    "test_packaging.py",
    "docs",
    "render",
    "claims",
    "cli",
    "config",
    "modes",
    "worker",
    "run",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With --no-loadscope-reorder files run in this order: none of minutes is left to one process
    at the end."""
    rank = {name: number for number, name in enumerate(LONGEST)}

    def place(item: pytest.Item) -> tuple[int, str]:
        of_folder = rank.get(item.path.parent.name, len(LONGEST))
        return rank.get(item.path.name, of_folder), str(item.path)

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """What was imported stays: looking for cycles in it again and again takes a fifth of the
    time."""
    gc.freeze()
    gc.set_threshold(50_000)


# --- optional packages ---

#: Module of an optional package -> the extra of effbench that installs it.
EXTRAS = {
    "axe_playwright_python": "test",
    "diffusers": "models",
    "hatchling": "test",
    "ipykernel": "test",
    "material": "docs",
    "mkdocs": "docs",
    "mkdocstrings": "docs",
    "nbclient": "test",
    "nbformat": "test",
    "playwright": "test",
    "psycopg": "postgres",
    "ruff": "test",
    "timm": "models",
    "tokenizers": "models",
    "torchao": "quantization",
    "torchvision": "models",
    "transformers": "models",
}


@functools.cache
def missing_extras() -> dict[str, str]:
    """Return those of EXTRAS that are not installed. In CI a missing one fails its tests: none
    counts."""
    if os.environ.get("CI") == "true":
        return {}
    return {
        module: extra
        for module, extra in EXTRAS.items()
        if importlib.util.find_spec(module) is None
    }


def needed_extra(failure: str) -> str | None:
    """Return the reason to skip a test with this failure: it names a missing optional package, or
    its extra, as its cause."""
    for module, extra in missing_extras().items():
        causes = (
            rf"No module named '?{module}\b",
            rf"needs (the package )?{module}\b",
            rf"{module} is not installed",
            rf"pip install \S*effbench\[{extra}\]",
        )
        if re.search("|".join(causes), failure):
            return reason_to_skip(module)
    return None


def reason_to_skip(module: str) -> str:
    return f"needs {module}: pip install 'effbench[{EXTRAS[module]}]'"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "extra(*modules): needs these optional packages; skipped without them"
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("extra"):
        for module in missing_extras().keys() & set(marker.args):
            pytest.skip(reason_to_skip(module))


def skipped_without_extra(
    report: pytest.TestReport | pytest.CollectReport, failure: str, path: Path
) -> pytest.TestReport | pytest.CollectReport:
    """Return the report of a test or file; one that failed because an optional package is missing
    is skipped."""
    reason = needed_extra(failure) if report.failed else None
    if reason is not None:
        report.outcome = "skipped"
        report.longrepr = (str(path), 0, f"Skipped: {reason}")
    return report


def start_elsewhere(children: list[pytest.Item | pytest.Collector]) -> None:
    """Let each process of pytest-xdist collect the files of a folder from another one on: what one
    of them has compiled, the others read. At the same time each would compile all."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    begin = len(children) * int(worker.removeprefix("gw")) // count
    children[:] = children[begin:] + children[:begin]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    report = yield
    if isinstance(collector, pytest.Directory):
        start_elsewhere(report.result)
    return skipped_without_extra(report, str(report.longrepr), collector.path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    return skipped_without_extra(report, report.longreprtext, item.path)


def heed_ctrl_c() -> None:
    """Handle it as on a terminal; children of a script that runs in the background would ignore
    it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


def captured() -> io.TextIOWrapper:
    """Return a stream that keeps what is written to it, as text or to its buffer."""
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)


@contextlib.contextmanager
def surroundings(
    folder: Path, env: Mapping[str, str]
) -> Iterator[tuple[io.TextIOWrapper, io.TextIOWrapper]]:
    """Give this process another working directory, environment and standard streams; yields stdout
    and stderr."""
    before, here, temporary = dict(os.environ), Path.cwd(), tempfile.tempdir
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    tempfile.tempdir = None  # read TMPDIR again
    try:
        with (
            contextlib.redirect_stdout(captured()) as out,
            contextlib.redirect_stderr(captured()) as err,
        ):
            yield out, err
    finally:
        os.environ.clear()
        os.environ.update(before)
        os.chdir(here)
        tempfile.tempdir = temporary


@functools.cache
def workshop_folder() -> Path:
    """A folder with the modules of tests that cells import, and YAMLs of their modes."""
    folder = Path(tempfile.mkdtemp(prefix="effbench-workshop-")) / "here"
    (folder / "nets").mkdir(parents=True)
    sources = ROOT / "tests"
    for name, target in (
        ("integration/misbehaving", "mischief"),
        ("integration/misbehaving", "nets/mine"),
        ("known_causes", "known_causes"),
        ("modes/again", "again"),
    ):
        shutil.copy(sources / f"{name}.py", folder / f"{target}.py")
    shutil.copytree(sources / "integration" / "conf", folder / "conf")
    (folder / "good.py").write_text("value = 3\nfrom torch.nn import Identity as Net\n")
    (folder / "blocks.py").write_text("from torch.nn import ReLU as Net\n")
    (folder / "leaves.py").write_text("import os; os._exit(3)\n")
    atexit.register(shutil.rmtree, folder.parent, ignore_errors=True)
    return folder


class LastingServer(ForkServer):
    """A fork server that commands do not close: starting one takes seconds."""

    #: At most two a process: one for effbench's own models and the workshop, one for the folder
    #: whose modules ran last.
    kept: ClassVar[dict[Path, "LastingServer"]] = {}

    @classmethod
    def of(cls, folder: Path) -> "LastingServer":
        """The server for a folder, which is the working directory."""
        shared = workshop_folder()
        key = folder if any(folder.rglob("*.py")) else shared
        if key not in cls.kept or cls.kept[key].dead:
            for other in [one for one in cls.kept if one == key or shared not in (one, key)]:
                cls.kept.pop(other).end()
            cls.kept[key] = cls(folder=str(key))
        return cls.kept[key]

    def close(self) -> None:
        pass

    def end(self) -> None:
        super().close()


@contextlib.contextmanager
def lasting_servers(folder: Path) -> Iterator[None]:
    """Commands that need a fork server get the lasting one of the folder; for another folder one
    until the command ends, and not a new one each round."""
    from effbench.cli import doctor
    from effbench.run import client, pool

    elsewhere: dict[str, LastingServer] = {}

    def start(**options):
        if "python" in options or not options.get("preload", True):
            return ForkServer(**options)
        place = options.get("folder")
        if place is None:
            return LastingServer.of(folder)
        if place not in elsewhere or elsewhere[place].dead:
            elsewhere[place] = LastingServer(**options)
        return elsewhere[place]

    with pytest.MonkeyPatch.context() as patch:
        for module in (doctor, pool, client):
            patch.setattr(module, "ForkServer", start)
        try:
            yield
        finally:
            for server in elsewhere.values():
                server.end()


def state_of(place: SearchPathElement) -> tuple[str, ...]:
    """Return a text that changes when a file in this folder of the search path does."""
    if "command-line" not in place.provider:
        return (str(place),)
    folder = Path(place.path.removeprefix("file://")).resolve()
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return (str(folder), *(f"{path} {path.stat().st_mtime_ns}" for path in files))


@pytest.fixture(scope="session", autouse=True)
def lasting_composers() -> Iterator[None]:
    """Commands get the composer of an earlier one with the same files and settings of Hydra:
    composing takes most of a tiny sweep's time."""
    from effbench.config import launch

    original, kept = launch.Composer, {}

    def composer(loader, master):
        made, places = original(loader, master), loader.get_search_path().get_path()
        files = tuple(map(state_of, places))
        return kept.setdefault((files, str(master.hydra.overrides.hydra)), made)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "Composer", composer)
        yield


class Cli:
    """`effbench` in `folder`. Every process that it starts is in a session of its own.

    `imports`: cells may import modules from the folder, so that a folder with modules needs a fork
    server of its own.
    """

    tiny = TINY

    def __init__(self, folder: Path, imports: bool = True) -> None:
        self.folder, self.imports = folder, imports
        # beside the folder: `ls` in it shows what the user would see
        hidden = folder.parent / f".{folder.name}"
        for name in ("tmp", "cache"):
            (hidden / name).mkdir(parents=True, exist_ok=True)
        SHARED_HEADERS.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (hidden / "tmp" / SHARED_HEADERS.name).symlink_to(SHARED_HEADERS)
        self.cache = hidden / "cache" / "effbench" / "compile"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_OURS)}
        search_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self.env = {
            **kept,
            "PYTHONPATH": search_path,
            "TMPDIR": str(hidden / "tmp"),
            "XDG_CACHE_HOME": str(hidden / "cache"),
            "TORCHINDUCTOR_CACHE_DIR": SHARED_INDUCTOR_CACHE,
        }

    @property
    def db(self) -> Path:
        return self.folder / "results" / "effbench.db"

    def start(
        self, *args: str, env: dict[str, str] | None = None, **options: object
    ) -> subprocess.Popen[str]:
        settings = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            **options,
        }
        return subprocess.Popen(
            [sys.executable, "-m", "effbench", *args],
            cwd=self.folder,
            env={**self.env, **(env or {})},
            start_new_session=True,
            text=True,
            preexec_fn=heed_ctrl_c,
            **settings,
        )

    def run(self, *args: str, env: dict[str, str] | None = None) -> Done:
        """Run the command line in this process, with the folder, environment and output of its
        own."""
        from effbench.cli.main import run

        with (
            surroundings(self.folder, {**self.env, **(env or {})}) as (out, err),
            contextlib.ExitStack() as stack,
        ):
            if not env:  # variables reach the trials through the server
                stack.enter_context(
                    lasting_servers(self.folder if self.imports else workshop_folder())
                )
            try:
                code = run(list(args))
            except SystemExit as end:  # argparse's and Hydra's --help
                code = end.code or 0
        return Done(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))

    def sweep(self, *overrides: str, env: dict[str, str] | None = None) -> Done:
        """A sweep with a tiny protocol on the CPU."""
        return self.run("-m", *TINY, *overrides, env=env)


@pytest.fixture(scope="session")
def inductor_cache() -> str:
    """The folder that keeps what Inductor finds out about the machine."""
    return SHARED_INDUCTOR_CACHE


@pytest.fixture(scope="session")
def shared_headers() -> Path:
    """The folder with the C++ headers that Inductor has precompiled."""
    return SHARED_HEADERS


@pytest.fixture(scope="session")
def cli_in() -> Callable[..., Cli]:
    """Makes a `Cli` for a folder."""
    return Cli


@pytest.fixture(scope="session")
def workshop() -> Cli:
    """`effbench` where the modules of tests can be imported, on the fork server that most tests
    share."""
    return Cli(workshop_folder())


@pytest.fixture(scope="session")
def on_shared_server(workshop: Cli) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Makes a context in which sweeps of this process run on the fork server of `workshop`."""
    return functools.partial(lasting_servers, workshop.folder)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """`effbench` in an empty folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    return Cli(folder)


@pytest.fixture(scope="session")
def another_python() -> Callable[[Path], str]:
    """Makes a virtual environment in a folder, which finds the packages of this one; returns its
    interpreter."""

    def make(folder: Path) -> str:
        venv.create(folder, symlinks=True)
        paths = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
        site = next(folder.glob("lib/python*/site-packages"))
        (site / "others.pth").write_text("".join(f"{path}\n" for path in paths))
        return str(folder / "bin" / "python")

    return make


def is_alive(pid: int) -> bool:
    """False for a zombie: it runs no more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture(scope="session")
def wait_gone() -> Callable[..., None]:
    """Waits for the end of any process, also one that is not our child; fails if it lives on."""

    def wait(pid: int, timeout_s: float = 20.0) -> None:
        deadline = time.monotonic() + timeout_s
        while is_alive(pid):
            assert time.monotonic() < deadline, f"process {pid} is still there after {timeout_s} s"
            time.sleep(0.02)

    return wait


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen]]:
    """Processes to be ended with the test, whatever becomes of it."""
    started: list[subprocess.Popen] = []
    yield started
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream:
                stream.close()


@pytest.fixture
def fill_disk() -> Iterator[Callable[..., None]]:
    """Lets files of this process grow to a size and no more: what a full disk looks like to
    SQLite."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size=512: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(scope="session")
def empty_db() -> Path:
    """A database with a schema and nothing in it."""
    from made_sweeps import template

    return template()


@pytest.fixture(scope="session")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with everything in it that is hard to carry; nobody writes to it."""
    from whole_sweeps import odd_database

    path = tmp_path_factory.mktemp("odd") / "odd.db"
    odd_database(path)
    return path


@pytest.fixture
def made(empty_db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A database of made-up sweeps where effbench looks for one; the working directory is its
    folder."""
    from made_sweeps import copied

    monkeypatch.chdir(tmp_path)
    return copied(empty_db, tmp_path / "results" / "effbench.db")


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """Counters and compiled code of earlier tests are gone, and so are those of this one
    afterwards."""
    import torch

    def forget() -> None:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch._dynamo.utils.clear_compilation_metrics()

    torch.manual_seed(0)
    forget()
    yield
    forget()


@pytest.fixture
def effbench(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """The command line in this process: `effbench("check", "--baseline", "main").code`."""
    from effbench.cli.main import run

    def call(*args: str) -> Done:
        capsys.readouterr()
        code = run(list(args))
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return call
