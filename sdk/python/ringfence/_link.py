"""What both faces of a sandbox share: how it is made, and the way to it."""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from . import _server
from ._client import Client
from ._events import Flow
from ._io import Io
from ._wire import Endpoint, Request, Response
from .errors import InvalidInput
from .results import Result, Session, Snippet

Network = Literal["none", "host"]


class Link:
    """A sandbox, made at its first use.

    :param url: a server, as ``http://HOST:PORT`` or ``unix:PATH``; else ``RINGFENCE_URL``; else a
        private server is started, which ends with this process
    :param api_key: a key of that server; else ``RINGFENCE_API_KEY``
    :param session: the id of a session that is there
    :param key: your own name for a session, which is made if it is not there
    :param keep: whether the session stays when this is closed; by default those do that were
        named by ``session`` or ``key``
    :param backend: what a private server makes sandboxes with: ``native`` or ``docker``
    :param engine: the Docker engine of a private server; else ``DOCKER_HOST``
    :param image: the image of its container, with ``docker``
    :param environment: a packages environment made by ``ringfence env add``
    :param workspace: a folder of the server's host, writable inside as ``/workspace``
    :param mounts: further folders, ``{inside: outside}``; read-only unless ``outside`` ends in ``:rw``
    :param skills: folders that are skills (each with a ``SKILL.md``) or have skills in them, seen
        read-only at ``/sandbox/skills/NAME``
    :param prefer: take the nearest limit that can be enforced, instead of failing
    :param timeout: seconds for calls that name none; else the server's default
    :param spec: further fields of the server's ``SandboxSpec``
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        session: str | None = None,
        key: str | None = None,
        keep: bool | None = None,
        backend: str | None = None,
        engine: str | None = None,
        image: str | None = None,
        environment: str | None = None,
        workspace: str | os.PathLike[str] | None = None,
        mounts: Mapping[str, str] | None = None,
        skills: Sequence[str | os.PathLike[str]] = (),
        env: Mapping[str, str] | None = None,
        network: Network | None = None,
        memory: str | int | None = None,
        cpus: float | None = None,
        pids: int | None = None,
        idle_timeout: float | None = None,
        max_lifetime: float | None = None,
        labels: Mapping[str, str] | None = None,
        prefer: bool = False,
        timeout: float | None = None,
        spec: Mapping[str, Any] | None = None,
    ) -> None:
        url = url or os.environ.get("RINGFENCE_URL") or None
        if url and backend:
            raise InvalidInput(
                "backend= is for a private server; the one at url= has its own",
                code="invalid_input",
                hint="leave one of them out",
            )
        if session and key:
            raise InvalidInput("session= and key= both name a session", code="invalid_input")
        where = Endpoint.of(url) if url else None
        self._client = Client(
            lambda: where or _server.endpoint(backend, engine),
            api_key or os.environ.get("RINGFENCE_API_KEY") or None,
            self._io(),
        )
        self._session_id = session
        self._own = not (session or key) if keep is None else not keep
        self._opening = self._client.io.lock()
        self._closed = False
        self._timeout = timeout
        self._create = _given(
            key=key,
            idle_timeout_seconds=idle_timeout,
            max_lifetime_seconds=max_lifetime,
            labels=dict(labels or {}) or None,
            spec={
                **_given(
                    container={"image": image} if image is not None else None,
                    environment=environment,
                    workspace=_workspace(workspace) if workspace is not None else None,
                    mounts=[_mount(inside, outside) for inside, outside in (mounts or {}).items()] or None,
                    skills=[str(Path(folder).absolute()) for folder in skills] or None,
                    env=dict(env or {}) or None,
                    network=network,
                    limits=_given(memory=memory, cpus=cpus, pids=pids) or None,
                    prefer=prefer or None,
                ),
                **(spec or {}),
            },
        )

    def _io(self) -> Io:
        raise NotImplementedError

    async def _path(self, rest: str = "") -> str:
        """The path of this session on the server, which is made now if it was not yet."""
        if self._closed:
            raise InvalidInput("this sandbox is closed", code="conflict", hint="make another one")
        if self._session_id is None:
            async with self._opening:
                if self._session_id is None:
                    request = Request.json("POST", "/sessions", self._create, patience=None)
                    answer = await self._client.call(request)
                    self._session_id = Session.of(answer.json()).id
        return f"/sessions/{quote(self._session_id, safe='')}{rest}"

    async def _get(self, rest: str, **query: Any) -> Response:
        path = await self._path(rest)
        return await self._client.call(Request("GET", path, query, repeatable=True))

    async def _post(self, rest: str, body: Mapping[str, Any], patience: float | None = 60) -> Response:
        path = await self._path(rest)
        return await self._client.call(Request.json("POST", path, body, patience=patience))

    async def _delete(self, rest: str, **query: Any) -> Response:
        path = await self._path(rest)
        return await self._client.call(Request("DELETE", path, query, repeatable=True))

    async def _job(self, work: dict[str, Any]) -> Response:
        """Starts a job and waits for it. Whoever stops waiting ends it."""
        path, name, body = await self._new_job(work)
        timeout = body.get("timeout_seconds")
        patience = None if timeout is None else timeout + 60
        request = Request.json("POST", path, body, patience=patience, repeatable=True)
        try:
            return await self._client.call(request)
        except Exception:
            raise
        except BaseException:
            await self._client.forget(Request("DELETE", f"{path}/{name}"))
            raise

    async def _run(self, work: dict[str, Any]) -> Result:
        return Result.of((await self._job(work)).json())

    async def _snippet(self, **snippet: Any) -> Snippet:
        request = Request.json("POST", "/run", _given(**snippet), patience=None)
        return Snippet.of((await self._client.call(request)).json())

    async def _flow(self, work: dict[str, Any]) -> Flow:
        """The events of a new job."""
        path, name, body = await self._new_job(work)
        headers = {"accept": "text/event-stream"}
        first = Request.json("POST", path, body, headers=headers)
        again = Request("GET", f"{path}/{name}/events", headers=headers)
        return Flow(first, again, cancel=Request("DELETE", f"{path}/{name}"))

    async def _new_job(self, work: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
        """The id is ours: the same request sent again joins the job that is there."""
        name = secrets.token_hex(8)
        body = {"timeout_seconds": self._timeout, **work, "id": name}
        return await self._path("/jobs"), name, _given(**body)

    async def _close(self) -> None:
        """Ends the session, unless it is to be kept."""
        if self._closed:
            return
        try:
            if self._session_id is not None and self._own:
                await self._delete("")
        finally:
            self._closed = True
            self._client.close()


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _workspace(folder: str | os.PathLike[str]) -> dict[str, Any]:
    return {"folder": {"path": str(Path(folder).absolute()), "access": "read_write"}}


def _mount(inside: str, outside: str) -> dict[str, str]:
    writable = outside.endswith(":rw")
    folder = Path(outside.removesuffix(":rw")).absolute()
    return {"from": str(folder), "to": inside, "access": "read_write" if writable else "read_only"}


def blob(data: str | bytes) -> str | dict[str, str]:
    """Bytes as the server takes them."""
    return {"base64": base64.b64encode(data).decode()} if isinstance(data, bytes) else data


def work(
    code: str | None = None,
    command: str | Sequence[str] | None = None,
    *,
    stdin: str | bytes | None = None,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    output_limit: int | None = None,
    kernel: str | None = None,
) -> dict[str, Any]:
    """A job as the server takes it: code, a string for the shell, or a program's words."""
    if (code is None) == (command is None):
        raise InvalidInput("give either code or a command", code="invalid_input")
    given: dict[str, Any] = _given(
        code=code,
        stdin=blob(stdin) if stdin is not None else None,
        cwd=cwd,
        env=dict(env) if env else None,
        timeout_seconds=timeout,
        output_limit=output_limit,
        kernel=kernel,
    )
    if isinstance(command, str):
        given["command"] = command
    elif command is not None:
        given["argv"] = list(command)
    return given
