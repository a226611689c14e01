"""The sandbox skill of haiku.skills, on Ringfence.

Its tools are the real ``ConsoleToolset`` of pydantic-ai-backend, over a backend object of ours.
Releases from 0.2.27 on no longer look at ``deps.backend``: install one before.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from haiku.skills.models import Skill
from haiku.skills.parser import parse_skill_md
from haiku.skills.state import SkillRunDeps
from pydantic import BaseModel
from pydantic_ai_backends import ConsoleToolset
from pydantic_ai_backends.backends.base import BaseSandbox
from pydantic_ai_backends.types import EditResult, ExecuteResponse, WriteResult

from ..blocking import SyncSandbox
from ..errors import RingfenceError
from ._place import place, reading, reason, writing

#: As in the original.
_IDLE_TIMEOUT = 3600
_IMAGE = "haiku-skills-sandbox:latest"
#: Bytes of output that a model is shown.
_OUTPUT = 100_000


class SandboxState(BaseModel):
    """What a thread remembers of its sandbox."""

    session_id: str | None = None


class RingfenceBackend(BaseSandbox):
    """A sandbox as the console toolset wants one. It starts at its first use."""

    def __init__(self, sandbox: SyncSandbox, sandbox_id: str | None = None) -> None:
        super().__init__(sandbox_id)
        self._sandbox = sandbox
        self.used = time.monotonic()

    def execute(self, command: str, timeout: int | None = None) -> ExecuteResponse:
        """Runs a string with ``sh``; both streams are one, as in a terminal."""
        self.used = time.monotonic()
        words = ["sh", "-c", f"exec 2>&1; {command}"]
        result = self._sandbox.exec(words, timeout=timeout, output_limit=_OUTPUT)
        code = result.return_code if result.return_code >= 0 else 128 - result.return_code
        output = result.stdout
        if result.certificate is not None:
            output += f"\n[{result.certificate}]"
        exit_code = 124 if result.timed_out else code
        return ExecuteResponse(output=output, exit_code=exit_code, truncated=result.truncated)

    def read_bytes(self, path: str) -> bytes:
        """The bytes of a file; none where there is no such file."""
        read = self._sandbox.exec(**reading(path))
        return read.stdout_raw if read.ok else b""

    _read_bytes = read_bytes

    def write(self, path: str, content: str | bytes) -> WriteResult:
        data = content.encode() if isinstance(content, str) else content
        written = self._sandbox.exec(**writing(path, data))
        if not written.ok:
            return WriteResult(error=f"Failed to write file: {reason(written)}")
        return WriteResult(path=path)

    def edit(self, path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        read = self._sandbox.exec(**reading(path))
        if not read.ok:
            return EditResult(error=f"File '{path}' not found")
        text = read.stdout_raw.decode(errors="surrogateescape")
        found = text.count(old_string)
        if found == 0:
            return EditResult(error=f"String '{old_string}' not found in file")
        if found > 1 and not replace_all:
            message = f"String '{old_string}' found {found} times. "
            return EditResult(
                error=message + "Use replace_all=True to replace all, or provide more context."
            )
        new = text.replace(old_string, new_string)
        written = self.write(path, new.encode(errors="surrogateescape"))
        if written.error:
            return EditResult(error=written.error)
        return EditResult(path=path, occurrences=found)

    def is_alive(self) -> bool:
        try:
            self._sandbox.info()
        except RingfenceError:
            return False
        return True

    def stop(self, purge: bool = False) -> None:
        try:
            self._sandbox.close()
        except RingfenceError:
            pass  # it has ended already


class _Sandboxes:
    """The sandboxes of a skill, by session id."""

    def __init__(self, idle_timeout: float, **options: Any) -> None:
        self._idle_timeout = idle_timeout
        self._options = options
        self._live: dict[str, RingfenceBackend] = {}
        self._lock = threading.Lock()
        atexit.register(self._stop_all)

    def get(self, session_id: str) -> RingfenceBackend:
        """The sandbox of this id: the one there is, or in place of a dead one a new one."""
        with self._lock:
            self._stop_idle(besides=session_id)
            backend = self._live.get(session_id)
            if backend is None or not backend.is_alive():
                sandbox = SyncSandbox(idle_timeout=self._idle_timeout, **self._options)
                backend = self._live[session_id] = RingfenceBackend(sandbox, session_id)
            backend.used = time.monotonic()
            return backend

    def _stop_idle(self, besides: str) -> None:
        now = time.monotonic()
        for session_id, backend in list(self._live.items()):
            if session_id != besides and now - backend.used > self._idle_timeout:
                del self._live[session_id]
                backend.stop()

    def _stop_all(self) -> None:
        while self._live:
            self._live.popitem()[1].stop()


def create_skill(
    workspace: Path | None = None,
    idle_timeout: int | None = None,
    image: str | None = None,
    *,
    on: str | None = None,
    network: bool = False,
    user: str | None = None,
    environment: str | None = None,
) -> Skill:
    """The skill ``sandbox``.

    The first three are as in the original, each else from its environment variable. ``on`` says
    where sandboxes are made: ``docker`` as in the original, ``native``, or the address of a
    server; else ``RINGFENCE_HAIKU_ON``. Tighter than there: no network and not root, unless
    ``network=True`` and ``user="root"``. ``environment`` names packages for ``native``.
    """
    folder = workspace or os.environ.get("HAIKU_SKILLS_SANDBOX_WORKSPACE")
    idle = idle_timeout or int(os.environ.get("HAIKU_SKILLS_SANDBOX_IDLE_TIMEOUT") or _IDLE_TIMEOUT)
    image = image or os.environ.get("HAIKU_SKILLS_SANDBOX_IMAGE")
    on = on or os.environ.get("RINGFENCE_HAIKU_ON") or "docker"
    options: dict[str, Any] = {**place(on), "workspace": folder}
    if on == "native":
        options |= {"environment": environment, "network": "host" if network else "none"}
    elif on == "docker" or image or network or user:
        # A server elsewhere knows what it makes sandboxes of, if nobody says otherwise.
        container = {"image": image or _IMAGE, "network": "bridge" if network else "none"}
        if user is not None:
            container |= {"user": user, "defaults": "engine" if user == "root" else "tight"}
        options["spec"] = {"container": container}
    sandboxes = _Sandboxes(idle, **options)

    @dataclass
    class SandboxRunDeps(SkillRunDeps):
        backend: RingfenceBackend | None = None

    @asynccontextmanager
    async def lifespan(deps: SandboxRunDeps) -> AsyncIterator[None]:
        state = deps.state if isinstance(deps.state, SandboxState) else None
        session_id = state.session_id if state and state.session_id else str(uuid4())
        deps.backend = await asyncio.to_thread(sandboxes.get, session_id)
        if state:
            state.session_id = session_id
        yield

    metadata, instructions = parse_skill_md(Path(__file__).parent / "haiku-sandbox.md")
    return Skill(
        metadata=metadata,
        instructions=instructions,
        toolsets=[ConsoleToolset(require_execute_approval=False)],
        state_type=SandboxState,
        state_namespace="sandbox",
        deps_type=cast(Any, SandboxRunDeps),
        lifespan=lifespan,
    )
