"""The fork server by its messages: tasks, kills, deaths, two at once; without torch, whose loading
takes seconds."""

import re
import resource
import signal
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from effbench.core.errors import WorkerError
from effbench.core.message import TRIAL_VARIABLE, ProbeRequest
from effbench.run.client import ForkServer

#: A task is a module below effbench.worker with `run_task`; the tests make one of their own in the
#: search path.
TASK = """
import os, subprocess, sys, time

def run_task(payload, pipe):
    def say_phase(phase):
        pipe.send(phase=phase)

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


@contextmanager
def started(search_path, folder):
    """A server in this folder, which is the working directory meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", search_path)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
        patch.chdir(folder)
        with closing(ForkServer(preload=False)) as server:
            server.wait_ready()
            yield server


@pytest.fixture(scope="module")
def server(search_path, tmp_path_factory):
    """A server that all tests share, because starting one takes half a second."""
    with started(search_path, tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def own_server(search_path, tmp_path):
    """A server that a test may spoil."""
    with started(search_path, tmp_path) as server:
        yield server


@pytest.fixture
def go():
    """A file for which tasks wait."""
    path = Path("go")
    yield path
    path.unlink(missing_ok=True)


def submit(server, python, **options):
    return server.submit("runs", {"python": python}, **options)


def lives(server):
    return server.call("runs", {"a": 1}, 30) == {"a": 1}


def begun_task(server, python):
    """A task that has said its own phase."""
    task = submit(server, python)
    while task.begun.get(timeout=30) in ("start", "begun"):
        pass
    return task


def outcome(task):
    assert task.done.wait(30), f"still in {task.phase}"
    return task.outcome


def result(server, python, **options):
    return outcome(submit(server, python, **options)).result


def test_a_payload_and_the_phases(server):
    payload = {
        "text": "Zeile\n\u2028\x00 ümlaut",
        "deep": [{"a": [1, 2.5, None, True]}],
        "nan": [float("inf")],
        "large": "x" * 3_000_000,
    }
    assert server.call("runs", payload, 30) == payload
    task = submit(server, "say_phase('one'); say_phase('two')")
    # the first one without the task, which may import for seconds
    assert list(server.phases(task, 30)) == ["start", "begun", "one", "two"]
    assert task.outcome.code == 0


def test_the_process_of_a_task(server):
    Path("beside.py").write_text("value = 3")
    code = (
        "import os, beside; result = [os.getpid(), os.getsid(0), os.getppid(),"
        f" os.environ[{TRIAL_VARIABLE!r}]]"
    )
    task = submit(server, code)
    pid, session, parent, mark = outcome(task).result
    assert pid == session == task.pid
    assert parent == server.process.pid
    assert mark == task.id


def test_the_variables_of_a_task(server):
    code = "import os; result = [os.environ['TORCHINDUCTOR_CACHE_DIR'], os.environ.get('FOO')]"
    # not in /tmp, which others share
    cache = str(Path.cwd() / "cache" / "effbench" / "inductor")
    assert result(server, code, env={"FOO": "1"}) == [cache, "1"]
    assert result(server, code) == [cache, None], "those of one task stay with it"


@pytest.mark.parametrize(
    ("python", "reason"),
    [
        ("import os; os._exit(5)", "the process exited with code 5"),
        ("raise ValueError('odd')", "the process exited with code 1"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("exit()", "the process exited with code 1"),
    ],
)
def test_how_a_task_ends(server, python, reason):
    task = submit(server, python)
    assert outcome(task).result is None
    status, text = task.failure()
    assert status == "crashed"
    assert reason in text
    assert lives(server), "its process did not become a second server"


def test_the_end_of_the_output_is_kept_and_no_more(server):
    code = (
        "print('first words'); print('x' * 30_000_000, flush=True); import os; os.write(2, b'\\xff"
        " last words')"
    )
    log = outcome(submit(server, code)).log
    assert log.endswith("xxx\n\ufffd last words")
    assert len(log) == 1 << 20
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    peak_kib = int(re.search(r"VmHWM:\s+(\d+)", status)[1])
    assert peak_kib < 100_000


#: Finds the pipe to the server as any code of the user could.
FIND_PIPE = """
import os, stat
mine = [int(fd) for fd in os.listdir("/proc/self/fd") if int(fd) > 2]
mine = [fd for fd in mine if os.path.exists(f"/proc/self/fd/{fd}")]
(pipe,) = [fd for fd in mine if stat.S_ISFIFO(os.fstat(fd).st_mode)]
"""


@pytest.mark.parametrize("rubbish", ["b'hello\\n'", 'b\'{"v":1,"phase":[]}\\n\''])
def test_what_is_no_message_is_ignored(server, rubbish):
    code = f"{FIND_PIPE}\nos.write(pipe, {rubbish})\nresult = 3"
    assert result(server, code) == 3


#: Goes on while the server is stopped, with pipes as large as those of a machine with large pages.
WHILE_STOPPED = f"""
{FIND_PIPE}
import fcntl, signal, subprocess
for end in (1, pipe):
    fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, 1 << 20)
server = os.getppid()
subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -CONT {{server}}"], start_new_session=True)
os.kill(server, signal.SIGSTOP)
"""


def test_a_result_that_fills_a_large_pipe(server):
    assert result(server, f"{WHILE_STOPPED}\nresult = 'x' * 500_000") == "x" * 500_000


def test_an_output_that_fills_a_large_pipe(server):
    code = f"{WHILE_STOPPED}\nprint('x' * 500_000 + ' last words', flush=True); os._exit(1)"
    assert outcome(submit(server, code)).log.endswith("x last words\n")


def test_a_server_that_cannot_fork_says_so_and_lives(own_server):
    resource.prlimit(own_server.process.pid, resource.RLIMIT_NOFILE, (3, 4096))
    assert "could not start a process" in outcome(submit(own_server, "")).failed
    resource.prlimit(own_server.process.pid, resource.RLIMIT_NOFILE, (4096, 4096))
    assert lives(own_server)


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
    assert task.outcome.code == -signal.SIGKILL
    for pid in map(int, task.phase.split()):
        wait_gone(pid)


def test_what_a_task_leaves_behind_ends_with_it_and_only_that(server, go, wait_gone):
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
    go.touch()
    assert outcome(other).result == {"alive": True}
    wait_gone(int(other.phase))


def test_a_server_that_is_killed_takes_its_tasks_along(own_server, wait_gone):
    code = """
import os, subprocess, time
say_phase(f"{os.getpid()} {subprocess.Popen(['sleep', '1000'], start_new_session=True).pid}")
time.sleep(1000)
"""
    task = begun_task(own_server, code)
    own_server.process.kill()
    assert "the fork server ended (code -9)" in outcome(task).died
    for pid in map(int, task.phase.split()):
        wait_gone(pid)
    assert "the fork server ended" in outcome(submit(own_server, "")).died, (
        "a dead server ends a task at once"
    )
    with pytest.raises(WorkerError, match="the fork server ended"):
        own_server.call("runs", {}, 5)


@pytest.mark.slow
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


PRELOADS = """
import sys
from types import SimpleNamespace

from effbench.worker.server import Server

server = SimpleNamespace(import_all=lambda: None)
unknown = {"library": "transformers", "arch": "no-such-network"}
networks = [unknown, {"library": "transformers", "arch": "gpt2", "task": "decode"}]
Server.preload(server, modules=[], networks=networks, modes=[])
assert "transformers.models.gpt2.modeling_gpt2" in sys.modules
"""


@pytest.mark.extra("transformers")
def test_a_server_imports_the_classes_of_networks():
    subprocess.run([sys.executable, "-W", "ignore", "-c", PRELOADS], check=True)
