"""The private server of a program that names none.

It listens on a socket in a folder that only this user can enter, and its standard input is a pipe
from this process: when the process ends, however it ends, the pipe closes, the server stops, and
its sandboxes go with it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from pathlib import Path

from ._wire import Endpoint
from .errors import Unavailable

#: What a program may ask of its own server: it could do all this without asking.
_OWN = (
    "--no-auth",
    "--until-eof",
    "--allow-mount=/:rw",
    "--allow-host-network",
    "--longest-timeout=365d",
    "--max-lifetime=365d",
    "--idle-timeout=30d",
    "--log-level=warn",
)

#: Seconds in which a server may still be starting.
_YOUNG = 60.0

_lock = threading.Lock()
_servers: dict[tuple[str | None, str | None], _Server] = {}


def endpoint(backend: str | None, engine: str | None) -> Endpoint:
    """The private server for this backend and this Docker engine: the one that runs, or a new one."""
    with _lock:
        server = _servers.get((backend, engine))
        if server is None or not server.lives():
            # One that was killed has left sandboxes, which are the next one's.
            folder = server._folder if server else None
            server = _servers[backend, engine] = _Server(backend, engine, folder)
        return server.endpoint


def program() -> str:
    """The ``ringfence`` program: RINGFENCE_BIN, the one of this package, or one on the path."""
    named = os.environ.get("RINGFENCE_BIN")
    if named:
        return named
    scripts = [Path(sysconfig.get_path("scripts")), Path(sys.executable).parent]
    for folder in scripts:
        if os.access(folder / "ringfence", os.X_OK):
            return str(folder / "ringfence")
    found = shutil.which("ringfence")
    if found:
        return found
    raise Unavailable(
        f"there is no ringfence program on this machine ({sys.platform})",
        code="missing",
        hint="give the url= of a server; the program itself is for Linux",
    )


def _remove(folder: Path) -> None:
    """Without its state nobody would find a sandbox again: one that has any stays."""
    if not any((folder / "state").rglob("sandbox.json")):
        shutil.rmtree(folder, ignore_errors=True)


def _sweep() -> None:
    """Removes the folders that killed programs left, once their servers and sandboxes are gone."""
    for path in Path(tempfile.gettempdir()).glob("ringfence-*/socket"):
        folder = path.parent
        try:
            about = folder.stat()
            if about.st_uid != os.getuid() or time.time() - about.st_mtime < _YOUNG:
                continue
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(path))
        except ConnectionRefusedError:
            _remove(folder)
        except OSError:
            pass  # somebody else was quicker


class _Server:
    def __init__(self, backend: str | None, engine: str | None, folder: Path | None = None) -> None:
        _sweep()
        self._folder = folder or Path(tempfile.mkdtemp(prefix="ringfence-"))
        path = self._folder / "socket"
        self.endpoint = Endpoint(socket=str(path))
        command = [program(), "serve", f"--listen=unix:{path}", f"--state-dir={self._folder / 'state'}"]
        # These are for clients.
        hidden = ("RINGFENCE_URL", "RINGFENCE_API_KEY", "RINGFENCE_BIN", "RINGFENCE_HAIKU_ON")
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        if engine is not None:
            environment["DOCKER_HOST"] = engine
        flags = list(_OWN)
        if backend is not None:
            flags.append(f"--backend={backend}")
        if backend == "docker":
            flags.append("--allow=all")  # whoever has the engine has all of it
        try:
            self._process = subprocess.Popen(
                [*command, *flags],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,  # a Ctrl-C is for this process
            )
        except OSError as error:
            _remove(self._folder)
            message = f"cannot start {command[0]}: {error.strerror}"
            raise Unavailable(message, code="missing", hint="RINGFENCE_BIN names another") from error
        self._await_listening()

    def _await_listening(self) -> None:
        assert self._process.stderr is not None
        said = []
        for line in self._process.stderr:
            if b"is listening on" in line:
                reader = threading.Thread(target=self._pass_on, name="ringfence-log", daemon=True)
                reader.start()
                return
            said.append(line.decode(errors="replace").strip())
        self.end()
        why = "; ".join(said[-5:]) or f"it ended with {self._process.returncode}"
        message = f"the private server did not start: {why}"
        raise Unavailable(message, code="unavailable", hint="ringfence doctor")

    def _pass_on(self) -> None:
        """What the server says after its start is for whoever reads our standard error."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            sys.stderr.write(f"ringfence: {line.decode(errors='replace')}")

    def lives(self) -> bool:
        return self._process.poll() is None

    def disown(self) -> None:
        """In a forked child: this server is the parent's, and must not wait for us."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.returncode = 0

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _remove(self._folder)


def _end_all() -> None:
    while _servers:
        _servers.popitem()[1].end()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # a thread that is not here may have held it
    while _servers:
        _servers.popitem()[1].disown()


atexit.register(_end_all)
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork)
