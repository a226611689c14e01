"""Real servers for the tests, and one way to drive both faces."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ringfence import Sandbox, SyncSandbox

BINARY = os.environ["RINGFENCE_BIN"]


class Server:
    """A server of our own, with keys, that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = subprocess.run(
            [BINARY, "key", "add", "tests", "--state-dir", str(folder)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        self.address = "127.0.0.1:0"
        # Of all that are started: a server that is killed leaves its sandboxes to the next one.
        self.input, self.hold = os.pipe()
        self.start()

    def start(self) -> None:
        command = [BINARY, "serve", "--until-eof", "--listen", self.address, "--state-dir", str(self.folder)]
        self.process = subprocess.Popen(
            command, stdin=self.input, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.process.stderr is not None
        said = []
        for line in self.process.stderr:
            said.append(line)
            if "is listening on" in line:
                self.url = line.split("listening on ")[1].split()[0]
                self.address = self.url.removeprefix("http://")
                return
        raise AssertionError("".join(said))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        os.close(self.input)
        os.close(self.hold)
        self.process.communicate()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "state")
    yield server
    server.stop()


class Blocking:
    """The asyncio face, driven so that one list of tests serves both."""

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._target = target
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name in ("files", "processes", "tools"):
            return Blocking(found, self._loop)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            answer = found(*args, **kwargs)
            if inspect.isasyncgen(answer):
                return self._iterate(answer)
            return self._loop.run_until_complete(answer)

        return call

    def _iterate(self, items: Any) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self._loop.run_until_complete(items.__anext__())
                except StopAsyncIteration:
                    return
        finally:
            self._loop.run_until_complete(items.aclose())


@pytest.fixture(params=["asyncio", "blocking"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Makes sandboxes of one face, and ends them."""
    made: list[Any] = []
    loop = asyncio.new_event_loop()

    def make(*args: Any, **options: Any) -> Any:
        if request.param == "blocking":
            sandbox: Any = SyncSandbox(*args, **options)
        else:
            sandbox = Blocking(Sandbox(*args, **options), loop)
        made.append(sandbox)
        return sandbox

    yield make
    for sandbox in made:
        sandbox.close()
    loop.close()


@pytest.fixture
def sandbox(make: Callable[..., Any]) -> Any:
    return make()
