"""The blocking face: the operations of the asyncio face, run over blocking sockets.

Each operation is written once, in the asyncio face, over nothing but a link; so it takes the
blocking one as well.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import cached_property
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from ._io import BlockingIo, Io, iterate, run
from ._link import Link
from .files import Files
from .processes import Processes
from .sandbox import Sandbox
from .tools import Tools

P = ParamSpec("P")
T = TypeVar("T")


def _blocks(
    operation: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    @functools.wraps(operation)
    def blocking(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(operation(self, *args, **kwargs))

    return blocking


def _iterates(
    operation: Callable[Concatenate[Any, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    @functools.wraps(operation)
    def blocking(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return iterate(operation(self, *args, **kwargs))

    return blocking


class SyncFiles:
    """``sandbox.files`` of a :class:`SyncSandbox`."""

    def __init__(self, link: Link) -> None:
        self._link = link

    _edit = Files._edit
    read = _blocks(Files.read)
    read_text = _blocks(Files.read_text)
    write = _blocks(Files.write)
    list = _blocks(Files.list)
    stat = _blocks(Files.stat)
    exists = _blocks(Files.exists)
    mkdir = _blocks(Files.mkdir)
    remove = _blocks(Files.remove)
    move = _blocks(Files.move)
    copy = _blocks(Files.copy)
    glob = _blocks(Files.glob)
    grep = _blocks(Files.grep)
    replace = _blocks(Files.replace)
    insert = _blocks(Files.insert)
    patch = _blocks(Files.patch)
    undo = _blocks(Files.undo)
    upload = _blocks(Files.upload)
    download = _blocks(Files.download)


class SyncProcesses:
    """``sandbox.processes`` of a :class:`SyncSandbox`."""

    def __init__(self, link: Link) -> None:
        self._link = link

    start = _blocks(Processes.start)
    list = _blocks(Processes.list)
    get = _blocks(Processes.get)
    wait = _blocks(Processes.wait)
    result = _blocks(Processes.result)
    output = _blocks(Processes.output)
    events = _iterates(Processes.events)
    write = _blocks(Processes.write)
    signal = _blocks(Processes.signal)
    kill = _blocks(Processes.kill)


class SyncTools:
    """``sandbox.tools`` of a :class:`SyncSandbox`."""

    def __init__(self, link: Link) -> None:
        self._link = link

    definitions = _blocks(Tools.definitions)
    call = _blocks(Tools.call)


class SyncSandbox(Link):
    """A computer for an agent, for code without asyncio::

        with SyncSandbox() as sandbox:
            result = sandbox.python("print(2 + 2)")

    It is made at its first use and ends with the ``with``, or by ``close``. Threads may share it.
    """

    def _io(self) -> Io:
        return BlockingIo()

    @cached_property
    def files(self) -> SyncFiles:
        """The files of its workspace."""
        return SyncFiles(self)

    @cached_property
    def processes(self) -> SyncProcesses:
        """What runs in its background."""
        return SyncProcesses(self)

    @cached_property
    def tools(self) -> SyncTools:
        """Tools for models."""
        return SyncTools(self)

    python = _blocks(Sandbox.python)
    bash = _blocks(Sandbox.bash)
    exec = _blocks(Sandbox.exec)
    stream = _iterates(Sandbox.stream)
    run = _blocks(Sandbox.run)
    interrupt = _blocks(Sandbox.interrupt)
    restart = _blocks(Sandbox.restart)
    suspend = _blocks(Sandbox.suspend)
    info = _blocks(Sandbox.info)
    skills = _blocks(Sandbox.skills)
    close = _blocks(Sandbox.close)
    destroy = _blocks(Sandbox.destroy)

    def __enter__(self) -> SyncSandbox:
        run(self._path())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(self._close())
