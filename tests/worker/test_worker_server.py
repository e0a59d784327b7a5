"""The fork server by its messages: tasks, kills, deaths, two at once; without torch, whose loading
takes seconds."""

import os
import re
import resource
import signal
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from effbench.errors import WorkerError
from effbench.folders import is_plain
from effbench.message import TRIAL_VARIABLE, ProbeRequest
from effbench.sweeping import pool as pools
from effbench.sweeping.client import ForkServer, StoppedError
from effbench.sweeping.interpreters import HERE

#: A task is a module below effbench.worker with `run`; the tests make one of their own in the
#: search path.
TASK = """
import os, subprocess, sys, time

def run(payload, say_phase):
    say_phase("begun")
    if (code := payload.get("python")) is not None:
        scope = {"payload": payload, "say_phase": say_phase}
        exec(code, scope)
        return scope.get("result", {})
    return payload
"""
FREE_BYTES = """
import sys
libc = sys.modules["ctypes"].CDLL(None)
libc.mallinfo2.restype = sys.modules["__main__"].HeapFacts
result = (facts := libc.mallinfo2()).fordblks - facts.keepcost
"""


@pytest.fixture(scope="module")
def search_path(tmp_path_factory):
    """effbench.worker with one more module: a package may lie in several folders."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "runs.py").write_text(TASK)
    hook = f"import effbench.worker; effbench.worker.__path__.append({str(folder)!r})\n"
    (folder / "sitecustomize.py").write_text(hook)
    return str(folder)


@pytest.fixture
def make(search_path, monkeypatch, tmp_path):
    """Starts servers in an empty folder; all are closed at the end."""
    monkeypatch.setenv("PYTHONPATH", search_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    started = []

    def start():
        server = ForkServer(preload=False)
        started.append(server)
        server.wait_ready()
        return server

    yield start
    for server in started:
        server.close()


@pytest.fixture
def server(make):
    return make()


def submit(server, python, **options):
    return server.submit("runs", {"python": python}, **options)


def lives(server):
    return server.call("runs", {"a": 1}, 30) == {"a": 1}


def begun_task(server, python):
    """A task that has said its own phase."""
    begun = threading.Event()
    task = submit(
        server, python, on_phase=lambda _, phase: phase not in ("start", "begun") and begun.set()
    )
    assert begun.wait(30)
    return task


def outcome(task, timeout_s=30):
    assert task.done.wait(timeout_s), f"still in {task.phase}"
    return task.outcome


def result(server, python, **options):
    return outcome(submit(server, python, **options))["result"]


def test_a_payload_and_the_phases(server):
    payload = {
        "text": "Zeile\n\u2028\x00 ümlaut",
        "deep": [{"a": [1, 2.5, None, True]}],
        "nan": [float("inf")],
        "large": "x" * 3_000_000,
    }
    assert server.call("runs", payload, 30) == payload
    seen = []
    task = submit(
        server, "say_phase('one'); say_phase('two')", on_phase=lambda _, phase: seen.append(phase)
    )
    assert outcome(task)["exit"] == 0
    assert seen == [
        "start",
        "begun",
        "one",
        "two",
    ], "the first one without the task, which may import for seconds"


def test_large_payloads_while_the_server_sends_large_results(server):
    watchdog = threading.Timer(30, server.process.kill)
    watchdog.start()
    tasks = [server.submit("runs", {"text": "x" * 300_000}) for _ in range(20)]
    assert all(outcome(task, 60).get("result") for task in tasks), (
        "both sides waited for each other"
    )
    watchdog.cancel()


def test_the_process_of_a_task(server, tmp_path):
    (tmp_path / "beside.py").write_text("value = 3")
    code = (
        "import os, beside; result = [os.getpid(), os.getsid(0), os.getppid(),"
        f" os.environ[{TRIAL_VARIABLE!r}]]"
    )
    requests = [submit(server, code) for _ in range(2)]
    for request in requests:
        pid, session, parent, mark = outcome(request)["result"]
        assert (pid, parent, mark) == (session, server.process.pid, request.id)
    assert requests[0].pid != requests[1].pid
    code = "import os; result = os.environ['TORCHINDUCTOR_CACHE_DIR']"
    assert result(server, code) == str(tmp_path / "cache" / "effbench" / "inductor"), (
        "not in /tmp, which others share"
    )
    code = "import os; result = os.environ.get('FOO')"
    assert result(server, code, env={"FOO": "1"}) == "1"
    assert result(server, code + " or 'none'") == "none", "variables of one task stay with it"


@pytest.mark.parametrize(
    ("python", "exit", "number"),
    [
        ("import os; os._exit(5)", 5, None),
        ("import sys; sys.exit(6)", 6, None),
        ("import sys; sys.exit()", 0, None),
        ("import sys; sys.exit('words')", 1, None),
        ("raise ValueError('odd')", 1, None),
        ("import os; os.abort()", None, signal.SIGABRT),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", None, signal.SIGKILL),
        ("import ctypes; ctypes.string_at(0)", None, signal.SIGSEGV),
    ],
)
def test_how_a_task_ends(server, python, exit, number):
    ended = outcome(submit(server, python))
    assert (ended["result"], ended["exit"], ended["signal"]) == (None, exit, number)
    assert ended["oom_killed"] is False
    assert lives(server)


def test_the_end_of_the_output_is_kept_and_no_more(server):
    code = (
        "print('first words'); print('x' * 30_000_000, flush=True); import os; os.write(2, b'\\xff"
        " last words')"
    )
    log = outcome(submit(server, code))["log"]
    assert log.endswith("xxx\n\ufffd last words") and len(log) == 1 << 20
    peak_kib = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{server.process.pid}/status").read_text())[
        1
    ]
    assert int(peak_kib) < 100_000


def test_a_task_that_prints_without_end_does_not_keep_others_waiting(server):
    loud = submit(server, "while True: print('x' * 1000)")
    assert lives(server)
    server.kill(loud)
    assert loud.outcome["signal"] == signal.SIGKILL


#: Finds the pipe to the server as any code of the user could.
FIND_PIPE = """
import os, stat
mine = [int(fd) for fd in os.listdir("/proc/self/fd") if int(fd) > 2]
mine = [fd for fd in mine if os.path.exists(f"/proc/self/fd/{fd}")]
(pipe,) = [fd for fd in mine if stat.S_ISFIFO(os.fstat(fd).st_mode)]
"""


@pytest.mark.parametrize(
    ("rubbish", "size"),
    [
        ("b'hello\\n'", 5),
        ("b'\\xff\\n'", 1),
        ("b'[' * 100_000 + b'\\n'", 100_000),
        ("b'{\"v\":1}\\n'", 7),
        ('b\'{"v":1,"phase":[]}\\n\'', 18),
        ('b\'{"phase":"timing"}\\n\'', 18),
    ],
)
def test_what_is_no_message_ends_its_own_task_alone(server, rubbish, size):
    other = submit(server, "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)")
    code = f"{FIND_PIPE}\nos.write(pipe, {rubbish})\n__import__('time').sleep(1000)"
    ended = outcome(submit(server, code))
    assert f"wrote {size} bytes to the result pipe" in ended["reason"]
    assert (ended["result"], ended["signal"]) == (None, signal.SIGKILL)
    Path("go").touch()
    assert outcome(other)["result"] == {}


def test_what_is_no_message_is_the_reason_of_a_task_that_has_ended(server):
    ended = outcome(submit(server, f"{FIND_PIPE}\nos.write(pipe, b'hello\\n'); os._exit(0)"))
    assert "wrote 5 bytes" in ended["reason"]


def test_a_line_without_end_is_bounded(server):
    ended = outcome(submit(server, f"{FIND_PIPE}\nwhile True: os.write(pipe, b'x' * 65536)"))
    assert "bytes to the result pipe" in ended["reason"]


def test_a_server_that_cannot_fork_says_so_and_lives(server):
    for limit, failed in ((3, True), (4096, False)):
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (limit, 4096))
        assert (
            "could not start a process" in outcome(submit(server, "")).get("failed", "")
        ) == failed


@pytest.mark.parametrize(
    "line", [b"hello\n", b'{"v":1,"event":"ended"}\n', b'{"v":1,"event":"phase","id":[]}\n']
)
def test_a_server_that_says_what_is_no_message_is_ended(server, line):
    task = submit(server, "__import__('time').sleep(1000)")
    ours = os.fstat(server.process.stdout.fileno())
    ends = Path(f"/proc/{server.process.pid}/fd").iterdir()
    output = next(end for end in ends if os.path.samestat(end.stat(), ours))
    with output.open("wb") as pipe:
        pipe.write(line)
    assert "invalid message" in outcome(task)["died"]


def test_output_never_reaches_the_messages(server):
    code = (
        'import os; os.write(1, b\'{"v":1,"event":"ended"}\\n\'); print(\'not a message\');'
        " result = {'ok': 1}"
    )
    assert result(server, code) == {"ok": 1}
    assert server.stderr == []


def test_kill_ends_the_whole_tree(server, wait_gone):
    code = """
import os, subprocess, time
pids = [os.getpid(), subprocess.Popen(["sleep", "1000"]).pid,
        subprocess.Popen(["sleep", "1000"], start_new_session=True).pid]
subprocess.run(["setsid", "sh", "-c", "sleep 1000 & echo $! >orphan"])
pids.append(int(open("orphan").read()))
child = os.fork()
if child == 0:
    os.setsid()
    time.sleep(1000)
say_phase(" ".join(map(str, [*pids, child])))
time.sleep(1000)
"""
    task = begun_task(server, code)
    server.kill(task)
    assert task.outcome["signal"] == signal.SIGKILL
    for pid in map(int, task.phase.split()):
        wait_gone(pid)


def test_what_a_task_leaves_behind_ends_with_it_and_only_that(server, wait_gone):
    """Two tasks at once: the end of one must not touch the processes of the other."""
    waits = """
import subprocess, time
other = subprocess.Popen(["sleep", "1000"], start_new_session=True)
say_phase(str(other.pid))
while other.poll() is None and not __import__("os").path.exists("go"):
    time.sleep(0.02)
result = {"alive": other.poll() is None}
"""
    other = begun_task(server, waits)
    left = result(
        server,
        "import subprocess; result = subprocess.Popen(['sleep', '1000'],"
        " start_new_session=True).pid",
    )
    wait_gone(left)
    Path("go").touch()
    assert outcome(other)["result"] == {"alive": True}
    wait_gone(int(other.phase))


def test_a_server_that_is_killed_takes_its_tasks_along(server, wait_gone):
    code = """
import os, subprocess, time
say_phase(f"{os.getpid()} {subprocess.Popen(['sleep', '1000'], start_new_session=True).pid}")
time.sleep(1000)
"""
    task = begun_task(server, code)
    server.process.kill()
    assert "the fork server ended (code -9)" in outcome(task)["died"]
    for pid in map(int, task.phase.split()):
        wait_gone(pid)
    assert "the fork server ended" in outcome(submit(server, ""))["died"], (
        "a dead server ends a task at once"
    )
    with pytest.raises(WorkerError, match="the fork server ended"):
        server.call("runs", {}, 5)


def test_a_probe_needs_only_torch_and_other_tasks_wait_for_the_compiler(search_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", search_path)
    with closing(ForkServer()) as server:
        assert server.call("probe", ProbeRequest(device="cpu").to_json(), 120)["gpus"] == []
        assert (
            result(server, "import sys; result = 'torch._inductor.compile_fx' in sys.modules")
            is True
        )
        assert result(server, FREE_BYTES) < 100_000, (
            "imports leave 1 MB of holes in the heap, which slow trials down"
        )


def test_a_server_that_still_loads_is_ended_at_once(search_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", search_path)
    server = ForkServer()
    start = time.monotonic()
    server.close()
    assert time.monotonic() - start < 20
    assert server.process.returncode == -signal.SIGKILL


def test_a_task_that_takes_too_long_says_where(server):
    with pytest.raises(WorkerError, match=r"runs failed: not done after 0.3 s \(in "):
        server.call("runs", {"python": "__import__('time').sleep(1000)"}, 0.3)


def test_many_tasks_of_two_servers_at_once_and_the_end_of_one(make, wait_gone):
    servers = [make(), make()]
    tasks = [
        submit(server, "import os; result = os.getppid()") for server in servers for _ in range(20)
    ]
    parents = [outcome(task)["result"] for task in tasks]
    assert parents == [server.process.pid for server in servers for _ in range(20)]
    last = begun_task(
        servers[0], "say_phase(str(__import__('os').getpid())); __import__('time').sleep(1000)"
    )
    servers[0].close()
    assert ("died" in outcome(last), servers[0].process.returncode) == (True, 0)
    wait_gone(int(last.phase))
    assert lives(servers[1])
    assert servers[1].requests == {}
    assert len(os.listdir(f"/proc/{servers[1].process.pid}/fd")) < 20, "pipes and logs are closed"  # noqa: PTH208


def test_a_server_that_is_sent_nonsense_ends_with_its_tasks(server, wait_gone):
    task = begun_task(
        server, "say_phase(str(__import__('os').getpid())); __import__('time').sleep(1000)"
    )
    server.process.stdin.write(b'{"v": 1, "op": "dance"}\n')
    server.process.stdin.flush()
    assert "unknown operation" in outcome(task)["died"]
    wait_gone(int(task.phase))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "__import__('sys').exit('license not found')",
            "the process exited with code 1: license not found",
        ),
        (
            "raise SystemExit(ValueError('no seat\\nleft'))",
            "the process exited with code 1: no seat left",
        ),
        ("raise SystemExit(3)", "the process exited with code 3"),
        ("exit()", "the process exited with code 0"),
        ("__import__('sys').exit(-1)", "the process exited with code 255"),
        ("__import__('sys').exit(2**40 + 5)", "the process exited with code 5"),
        ("__import__('os')._exit(9)", "the process exited with code 9"),
        (
            "import os, sys; os.closerange(3, 64); sys.exit('mute')",
            "the process exited with code 1",
        ),
    ],
)
def test_a_task_that_exits(server, code, reason):
    task = submit(server, code)
    outcome(task)
    assert task.failure() == ("crashed", f"{reason} (in begun)")
    assert lives(server), "its process did not become a second server"


def test_the_message_of_a_task_of_the_harness_that_exits_is_shown_once(server):
    with pytest.raises(
        WorkerError, match=r"^runs failed: the process exited with code 1: no license \(in begun\)$"
    ):
        server.call("runs", {"python": "raise SystemExit('no license')"}, 30)


@pytest.mark.parametrize("filters", ["error", "default::ResourceWarning", "e::ResourceWarning"])
def test_a_task_inherits_no_open_file_that_warns(make, monkeypatch, filters):
    """Neither do a user's filters raise in a library's code."""
    monkeypatch.setenv("PYTHONWARNINGS", filters)
    server = make()
    code = "import gc, warnings; gc.collect(); warnings.simplefilter('default'); gc.collect()"
    ended = outcome(submit(server, code))
    assert (ended["exit"], ended["log"]) == (0, "")
    code = "import warnings; warnings.warn('soon', ResourceWarning); result = 'goes on'"
    ended = outcome(submit(server, code))
    assert ended["result"] == "goes on"
    assert "ResourceWarning: soon" in ended["log"], "the user still sees it"


def test_workers_get_folders_that_compilers_can_read(make, monkeypatch, tmp_path):
    for name in ("TMPDIR", "TEMP", "XDG_CACHE_HOME"):
        folder = tmp_path / f"my {name}"
        folder.mkdir()
        monkeypatch.setenv(name, str(folder))
    server = make()
    code = (
        "import os; result = [os.environ[name] for name in ('TMPDIR', 'TEMP',"
        " 'TORCHINDUCTOR_CACHE_DIR')]"
    )
    temporary, other, cache = result(server, code)
    assert all(is_plain(folder) for folder in (temporary, other, cache))
    assert Path(temporary).samefile(tmp_path / "my TMPDIR") and Path(other).samefile(
        tmp_path / "my TEMP"
    )
    assert Path(cache).resolve() == tmp_path / "my XDG_CACHE_HOME" / "effbench" / "inductor"


class TestInterrupted:
    """A server that imports a module for seconds does not answer."""

    @pytest.fixture
    def importing(self, server, search_path):
        """A server that can import a module that takes 30 s."""
        slow = "import time, pathlib; pathlib.Path('begun').touch(); time.sleep(30)\n"
        (Path(search_path) / "slow.py").write_text(slow)
        return server

    @pytest.fixture
    def pool(self, importing, monkeypatch):
        def preload(server, cells):
            server.call("preload", {"modules": ["slow"], "modes": []}, 60)

        monkeypatch.setattr(pools, "preload", preload)
        return pools.ServerPool(HERE, importing, threading.Event())

    def take(self, pool, ended):
        with pytest.raises((StoppedError, WorkerError)):
            pool.take(0)
        ended.append(time.monotonic())

    def begin(self, pool):
        """Let a thread take a server; return the thread once the server imports."""
        ended = []
        thread = threading.Thread(target=self.take, args=(pool, ended))
        thread.start()
        deadline = time.monotonic() + 20
        while not Path("begun").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return thread, ended

    def test_stop_ends_the_wait_for_a_server_that_loads(self, pool):
        thread, ended = self.begin(pool)
        stopped = time.monotonic()
        pool.stop.set()
        thread.join(20)
        assert ended and ended[0] - stopped < 1.5

    def test_closing_a_pool_does_not_wait_for_one_that_takes_a_server(self, pool, importing):
        thread, ended = self.begin(pool)
        stopped = time.monotonic()
        pool.close()
        assert time.monotonic() - stopped < 1.5
        importing.close()  # its owner does this
        thread.join(20)
        assert ended and ended[0] - stopped < 3

    def test_ctrl_c_during_a_task_ends_the_task_and_the_server(self, server, wait_gone):
        def press(request, phase):
            if phase.isdigit():
                pids.append(int(phase))
                os.kill(os.getpid(), signal.SIGINT)

        pids = []
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            code = "say_phase(str(__import__('os').getpid())); __import__('time').sleep(1000)"
            with pytest.raises(KeyboardInterrupt):
                server.run("runs", {"python": code}, 60, on_phase=press)
        finally:
            signal.signal(signal.SIGINT, before)
        wait_gone(pids[0], 1.0)
