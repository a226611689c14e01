"""The asyncio face."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import cached_property
from pathlib import Path
from types import TracebackType

from ._io import AsyncIo, Io
from ._link import Link, blob, work
from .files import Files
from .processes import Processes
from .results import Event, Result, Session, Skills, Snippet
from .tools import Tools


class Sandbox(Link):
    """A computer for an agent, for asyncio::

        async with Sandbox() as sandbox:
            result = await sandbox.python("print(2 + 2)")

    It is made at its first use and ends with the ``async with``, or by :meth:`close`.
    """

    def _io(self) -> Io:
        return AsyncIo()

    @cached_property
    def files(self) -> Files:
        """The files of its workspace."""
        return Files(self)

    @cached_property
    def processes(self) -> Processes:
        """What runs in its background."""
        return Processes(self)

    @cached_property
    def tools(self) -> Tools:
        """Tools for models."""
        return Tools(self)

    async def python(
        self,
        code: str,
        *,
        timeout: float | None = None,
        kernel: str | None = None,
        output_limit: int | None = None,
    ) -> Result:
        """Runs Python in an interpreter that keeps variables and imports from call to call.

        The value of a last expression and figures are in ``result.results``. A call that runs
        into its timeout is interrupted, and the certificate says whether variables survived.
        """
        return await self._run(work(code, timeout=timeout, kernel=kernel, output_limit=output_limit))

    async def bash(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        output_limit: int | None = None,
    ) -> Result:
        """Runs a string with bash (where there is none, with sh: ``result.shell`` says which)."""
        return await self._run(
            work(
                None,
                command,
                cwd=cwd,
                env=env,
                stdin=stdin,
                timeout=timeout,
                output_limit=output_limit,
            )
        )

    async def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        output_limit: int | None = None,
    ) -> Result:
        """Runs a program with arguments, without a shell: ``exec(["ls", "-l"])``."""
        return await self._run(
            work(
                None,
                _words(argv),
                cwd=cwd,
                env=env,
                stdin=stdin,
                timeout=timeout,
                output_limit=output_limit,
            )
        )

    async def stream(
        self,
        code: str | None = None,
        *,
        command: str | Sequence[str] | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        kernel: str | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Runs Python, or a command, and tells what happens as it happens.

        A dropped connection is taken up where it was. Whoever leaves the loop early ends the job.
        """
        job = work(code, command, cwd=cwd, env=env, stdin=stdin, timeout=timeout, kernel=kernel)
        async with aclosing(self._client.events(await self._flow(job))) as events:
            async for event in events:
                yield event

    async def run(
        self,
        code: str,
        language: str = "python",
        *,
        files: Mapping[str, str | bytes] | None = None,
        stdin: str | bytes = "",
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        compile_timeout: float | None = None,
        memory: str | int | None = None,
        network: bool = False,
        image: str | None = None,
        workspace: str | os.PathLike[str] | None = None,
        writable: bool = False,
        scratch: bool = False,
        outputs: Sequence[str] = (),
    ) -> Snippet:
        """Runs a snippet in a sandbox of its own, which is gone afterwards, in many languages.

        ``files`` lie beside the code. ``workspace`` is a folder of the server's host, seen at
        ``/work``; read-only unless ``writable``. ``scratch`` makes ``/work`` a private folder that
        can be written to, and so do ``files`` and ``outputs``: globs below ``/work``, or with
        ``/tmp/`` before them, of files that are in ``result.outputs``.
        """
        return await self._snippet(
            language=language,
            code=code,
            files={name: blob(content) for name, content in (files or {}).items()},
            stdin=blob(stdin),
            args=list(args),
            env=dict(env or {}),
            timeout_seconds=timeout,
            compile_timeout_seconds=compile_timeout,
            memory=memory,
            network=network,
            image=image,
            workspace_root=str(Path(workspace).absolute()) if workspace is not None else None,
            workspace_access="read_write" if writable and workspace is not None else None,
            sandbox=False if writable else None,
            scratch=scratch or None,
            outputs=_globs(outputs),
        )

    async def interrupt(self) -> None:
        """Interrupts the Python call that runs, as Ctrl-C does; variables stay."""
        await self._post("/interrupt", {})

    async def restart(self, kernel: str = "main") -> None:
        """Ends a Python interpreter; the next call gets a fresh one."""
        await self._delete(f"/kernels/{kernel}")

    async def suspend(self) -> None:
        """Ends all processes and keeps the files; the next use starts the sandbox again."""
        await self._post("/suspend", {})

    async def info(self) -> Session:
        """What the session is: its id, its terms, and what it is really held by."""
        return Session.of((await self._get("")).json())

    async def skills(self) -> Skills:
        """The skills that it was given; their ``prompt`` is for a model's instructions."""
        return Skills.of((await self._get("/skills")).json())

    async def close(self) -> None:
        """Ends the sandbox, unless it is one that is kept."""
        await self._close()

    async def destroy(self) -> None:
        """Ends the sandbox, also one that would be kept."""
        self._own = True
        await self._close()

    async def __aenter__(self) -> Sandbox:
        await self._path()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()


def _globs(outputs: Sequence[str]) -> list[str]:
    if isinstance(outputs, str):
        raise TypeError("outputs takes a list of globs")
    return list(outputs)


def _words(argv: Sequence[str]) -> Sequence[str]:
    if isinstance(argv, str):
        raise TypeError("exec takes a list of words; a string for the shell goes to bash()")
    return argv
