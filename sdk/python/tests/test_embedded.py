"""The private server: starts by itself, ends with its process, survives forks."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ringfence import RingfenceError, SyncSandbox, Unavailable, _server

#: Makes a sandbox, tells where its server is, and then does what it is told.
PROGRAM = """
import sys
from ringfence import SyncSandbox, _server
sandbox = SyncSandbox()
sandbox.python("1")
(server,) = _server._servers.values()
print(server._process.pid, server.endpoint.socket, flush=True)
"""


def start(more: str) -> tuple[subprocess.Popen[str], int, str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM + more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    pid, path = process.stdout.readline().split()
    return process, int(pid), path


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False


def await_end(pid: int, path: str) -> None:
    """Waits until the server is gone. The test fails by the limit of the whole run."""
    while lives(pid):
        time.sleep(0.01)
    # The socket of one that was killed is closed a moment later.
    with pytest.raises(OSError):
        while True:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(path)


def sandboxes(path: str) -> list[Path]:
    state = Path(path).parent / "state"
    return [each for each in state.rglob("sandbox.json")] if state.exists() else []


def test_it_ends_with_the_program() -> None:
    process, pid, path = start("")
    process.communicate()
    assert process.returncode == 0
    await_end(pid, path)
    assert not Path(path).parent.exists()


def test_it_ends_with_a_killed_program() -> None:
    process, pid, path = start("sys.stdin.read()")
    assert sandboxes(path) != []
    process.kill()
    process.wait()
    await_end(pid, path)
    assert sandboxes(path) == []
    # What is left of it goes when the next program comes, if it is no longer young.
    assert Path(path).exists()
    os.utime(Path(path).parent, (0, 0))
    start("")[0].communicate()
    assert not Path(path).parent.exists()


def guests(state: Path) -> list[int]:
    """The first processes of the sandboxes of a server."""
    return [json.loads(each.read_text())["pid"] for each in state.rglob("process.json")]


def test_killed_with_its_program_it_leaves_no_sandbox(tmp_path: Path) -> None:
    # The control: what is to be kept outlives the same.
    socket_path = tmp_path / "socket"
    flags = ["serve", f"--listen=unix:{socket_path}", f"--state-dir={tmp_path / 'state'}", "--until-eof"]
    command = [os.environ["RINGFENCE_BIN"], *flags]
    keeping = subprocess.Popen([*command, "--keep"], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert keeping.stderr is not None and any(b"is listening" in line for line in keeping.stderr)
    SyncSandbox(f"unix:{socket_path}", key="kept").python("1")
    (kept,) = guests(tmp_path / "state")
    process, pid, path = start("sys.stdin.read()")
    (guest,) = guests(Path(path).parent / "state")

    os.kill(pid, signal.SIGKILL)
    await_end(pid, path)
    assert lives(guest), "while the program lives, its next server has it"
    process.kill()
    process.communicate()
    keeping.kill()
    keeping.communicate()
    while lives(guest) or sandboxes(path) != []:
        time.sleep(0.01)
    assert lives(kept)
    # The next server ends what it finds.
    subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    assert not lives(kept)


def test_a_ctrl_c_is_for_the_program() -> None:
    process, pid, path = start(
        # Whoever is started in the background of a shell ignores it.
        "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try:\n    sandbox.exec(['sleep', '1234567'])\nexcept KeyboardInterrupt:\n"
        "    print([job for job in sandbox.processes.list() if job.running], sandbox.python('6*7').value)"
    )
    # A number of our own: others' commands that sleep may be on their way out.
    while not _runs(b"sleep\0" b"1234567\0"):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate()
    assert (said.strip(), process.returncode) == ("[] 42", 0)
    await_end(pid, path)


def _runs(command: bytes) -> bool:
    """Looks at everything on this machine: a sandbox's processes are nobody's children here."""
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if each.read_bytes() == command:
                return True
        except OSError:
            pass  # it has just ended
    return False


def test_a_fork_shares_nothing_that_breaks() -> None:
    process, pid, path = start(
        """
import os
sandbox.python("x = 1")
child = os.fork()
if child == 0:
    with SyncSandbox() as own:          # a server of its own
        assert own.python("2 * 3").value == "6"
        (server,) = _server._servers.values()
        assert server.endpoint.socket != sys.argv[0]
        print("child", server._process.pid, flush=True)
    assert sandbox.python("x").value == "1"   # the parent's still answers
    sys.exit(0)                         # and its end is not the end of the parent's server
assert os.waitpid(child, 0)[1] == 0
print("parent", sandbox.python("x + 1").value, flush=True)
"""
    )
    said, _ = process.communicate()
    lines = said.split()
    assert process.returncode == 0 and lines[0] == "child" and lines[2:] == ["parent", "2"]
    assert int(lines[1]) != pid
    await_end(pid, path)


def test_a_child_that_lives_on_does_not_keep_it() -> None:
    process, pid, path = start(
        """
import os
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
os._exit(0)
"""
    )
    process.wait()
    await_end(pid, path)
    process.communicate()


def test_without_the_program_there_is_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGFENCE_BIN", "/nonexistent/ringfence")
    monkeypatch.setattr(_server, "_servers", {})
    with pytest.raises(Unavailable, match="cannot start /nonexistent/ringfence") as caught:
        SyncSandbox().python("1")
    assert caught.value.hint == "RINGFENCE_BIN names another"
    monkeypatch.delenv("RINGFENCE_BIN")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(Unavailable, match="there is no ringfence program") as caught:
        SyncSandbox().python("1")
    assert caught.value.hint is not None and "url=" in caught.value.hint


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(RingfenceError, match="did not start: .*no_such_backend"):
        SyncSandbox(backend="no_such_backend").python("1")


def test_a_server_that_was_killed_is_replaced() -> None:
    first = SyncSandbox()
    first.python("kept = 1")
    (server,) = (each for each in _server._servers.values() if each.lives())
    os.kill(server._process.pid, signal.SIGKILL)
    server._process.wait()
    with pytest.raises(Unavailable, match="is the server running"):
        first.close()
    with SyncSandbox() as second:
        assert second.python("6 * 7").value == "42"
    # The next one has what the killed one left, and ends it.
    with SyncSandbox(session=first._session_id, keep=False) as again:
        assert again.python("kept").value == "1"
