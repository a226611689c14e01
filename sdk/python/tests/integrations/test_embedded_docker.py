"""The containers of a private server that is killed together with its program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

PROGRAM = """
import sys
from ringfence import SyncSandbox, _server
sandbox = SyncSandbox(backend="docker", image="ringfence-test/python")
(server,) = _server._servers.values() if sandbox.python("1") else ()
print(server._process.pid, sandbox.info().id, flush=True)
sys.stdin.read()
"""


def containers(session: str) -> list[str]:
    label = f"label=ringfence={session.replace('_', '-')}"
    command = ["docker", "ps", "--all", "--quiet", "--filter", label]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def test_no_container_is_left() -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    pid, session = program.stdout.readline().split()
    assert len(containers(session)) == 1
    os.kill(int(pid), signal.SIGKILL)
    program.kill()
    program.communicate()
    # The test fails by the limit of the whole run.
    while containers(session):
        time.sleep(0.1)
