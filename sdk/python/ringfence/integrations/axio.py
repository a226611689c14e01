"""``DockerSandbox`` of axio-tools-docker, on Ringfence: change the import, and nothing else."""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Awaitable
from importlib.metadata import version
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

from axio.tool import Tool

from ..errors import InvalidInput, RingfenceError
from ..results import Result
from ..sandbox import Sandbox
from . import _engine
from ._place import place, reading, reason, writing

try:
    from aiodocker.exceptions import DockerError as _DockerError
except ImportError:
    _DockerError = None  # type: ignore[assignment, misc]

T = TypeVar("T")

#: Newer releases call every path `path`, and show more of a file.
_NEW = tuple(int(part) for part in version("axio").split(".")[:2]) >= (0, 12)
_MOST_CHARS = 524288

#: Arguments that are paths, relative to the work folder.
_PATHS = {"file_path", "filename", "directory", "path", "cwd"}

_IMAGE = "python:latest"
_WORKDIR = "/workspace"
#: Processes of one container, where the original has no limit.
_PIDS = 1024


class DockerSandbox:
    """A container with six tools for an axio agent.

    All parameters are those of axio-tools-docker. ``on`` is new: ``docker`` as there, ``native``
    for a sandbox without any engine, or the address of a Ringfence server.
    """

    def __init__(
        self,
        url: str = "unix:///var/run/docker.sock",
        *,
        image: str = _IMAGE,
        memory: str = "256m",
        cpus: str = "1.0",
        network: bool | str = False,
        workdir: str = _WORKDIR,
        volumes: dict[str, str] | None = None,
        named_volumes: dict[str, str] | None = None,
        volumes_remove: bool = False,
        env: dict[str, str] | None = None,
        user: str = "",
        name: str = "",
        remove: bool = True,
        read_only: bool = False,
        shm_size: str = "",
        cap_add: list[str] | None = None,
        cap_drop: list[str] | None = None,
        privileged: bool = False,
        ulimits: dict[str, int | tuple[int, int]] | None = None,
        tmpfs: dict[str, str] | None = None,
        ports: dict[int, int] | None = None,
        platform: str = "",
        extra_hosts: dict[str, str] | None = None,
        devices: list[str] | None = None,
        dns: list[str] | None = None,
        on: str = "docker",
    ) -> None:
        self.url = url
        self.workdir = workdir
        self._on = on
        self._sandbox: Sandbox | None = None
        self._container_id: str | None = None
        self._definitions: list[dict[str, Any]] = []
        self._mark = uuid.uuid4().hex
        # What is kept needs a name to be found by.
        called = name or ("" if remove else f"axio-{self._mark}")
        self._name = called
        only_containers = {
            "user": user,
            "name": called,
            "keep": not remove,
            "volumes": [
                {"name": volume, "to": path, "access": "read_write"}
                for path, volume in (named_volumes or {}).items()
            ],
            "remove_volumes": volumes_remove,
            "shm_size": shm_size,
            "read_only": read_only,
            "cap_add": cap_add,
            "cap_drop": cap_drop,
            "privileged": privileged,
            "ulimits": {limit: _ulimit(value) for limit, value in (ulimits or {}).items()},
            "tmpfs": tmpfs,
            "ports": [
                {"container": inside, "host": outside, "address": "0.0.0.0"}
                for inside, outside in (ports or {}).items()
            ],
            "platform": platform,
            "extra_hosts": extra_hosts,
            "devices": devices,
            "dns": dns,
        }
        asked = {option: value for option, value in only_containers.items() if value}
        self._options: dict[str, Any] = {
            "env": env,
            "memory": memory,
            "cpus": float(cpus),
            "pids": _PIDS,
            "labels": {_engine.LABEL: self._mark},
            "spec": {"mounts": [_mount(inside, host) for inside, host in (volumes or {}).items()]},
        }
        plain = not asked and workdir == _WORKDIR
        if on == "native":
            if not plain:
                needless = ", ".join(sorted(asked)) or "workdir"
                raise InvalidInput(f"{needless}: only containers have that", hint="on='docker'")
            self._options |= {"network": "host" if network else "none", "prefer": True}
            return
        if on != "docker" and plain and not network and image == _IMAGE:
            self._options["prefer"] = True
            return  # a server elsewhere knows what it makes sandboxes of
        self._options["spec"]["container"] = {
            "image": image,
            "defaults": "engine",
            "workdir": workdir,
            "network": network if isinstance(network, str) else "bridge" if network else "none",
            **asked,
        }

    async def __aenter__(self) -> DockerSandbox:
        if self._on == "docker":
            await _engine.ping(self.url)
            self._options["engine"] = self.url
            await self._attach()
        self._sandbox = Sandbox(**place(self._on), **self._options)
        try:
            self._container_id = (await _told(self._sandbox.info())).id
            self._definitions = await self._sandbox.tools.definitions(family="axio")
            if self._on == "docker":
                found = await _engine.container(self.url, self._name) if self._name else None
                self._container_id = found["Id"] if found else await _engine.marked(self.url, self._mark)
        except BaseException:
            await self._sandbox.close()
            self._sandbox = None
            raise
        return self

    async def _attach(self) -> None:
        """A container that is there has its own image, and options come too late for it."""
        there = await _engine.container(self.url, self._name) if self._name else None
        if there is not None:
            asked = self._options["spec"]["container"]
            if self.workdir == _WORKDIR:
                # It need not have ours.
                self.workdir = asked["workdir"] = there["Config"]["WorkingDir"] or "/"
            kept = {option: asked[option] for option in ("name", "workdir", "user") if option in asked}
            container = {**kept, "image": there["Config"]["Image"], "defaults": "engine"}
            self._options = {"engine": self.url, "spec": {"container": container}}

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sandbox, self._sandbox, self._container_id = self._sandbox, None, None
        if sandbox is not None:
            await sandbox.close()

    @property
    def tools(self) -> list[Tool[Any]]:
        """The six tools. Only valid inside ``async with``."""
        self._running()
        return [_tool(definition, self) for definition in self._definitions]

    @property
    def container_id(self) -> str:
        """The id of the container. Only valid inside ``async with``."""
        self._running()
        return self._container_id or ""

    async def exec(self, command: str, timeout: float = 30, stdin: str | None = None) -> str:
        """Runs a string with ``sh`` and answers with its output."""
        words = ["sh", "-c", command]
        result = await self._exec(argv=words, cwd=self.workdir, timeout=timeout, stdin=stdin)
        if result.timed_out:
            return f"[timeout after {timeout}s]"
        output = result.stdout
        if result.stderr_raw:
            output += "\n[stderr]\n" + result.stderr
        if not result.ok:
            code = result.return_code
            output += f"\n[exit code: {code if code > 0 else 128 - code}]"
        return output.strip() or "(no output)"

    async def write_file(self, path: str, content: str, mode: int = 0o644) -> str:
        """Writes a file anywhere in the container; folders that lead to it are made."""
        data = content.encode()
        written = await self._exec(**writing(path, data, mode))
        if not written.ok:
            raise OSError(f"cannot write {path}: {reason(written)}")
        return f"Wrote {len(data)} bytes to {path}"

    async def read_file_bytes(self, path: str) -> bytes:
        """The bytes of a file anywhere in the container."""
        read = await self._exec(**reading(path))
        if not read.ok:
            raise FileNotFoundError(f"cannot read {path}: {reason(read)}")
        return read.stdout_raw

    def _running(self) -> Sandbox:
        if self._sandbox is None:
            raise RuntimeError("DockerSandbox must be used as an async context manager")
        return self._sandbox

    def _path(self, path: str) -> str:
        return posixpath.join(self.workdir, path)

    async def _exec(self, **command: Any) -> Result:
        return await _told((await self._checked()).exec(**command))

    async def _checked(self) -> Sandbox:
        """The server would start a container again that somebody stopped; here that is an error."""
        sandbox = self._running()
        if self._on == "docker":
            found = await _engine.container(self.url, self.container_id)
            if found is None or not found["State"]["Running"]:
                raise _failure(409, f"container {self.container_id[:12]} is not running")
        return sandbox


async def _told(work: Awaitable[T]) -> T:
    """A failure is one of the engine for whoever catches those."""
    try:
        return await work
    except RingfenceError as error:
        raise _failure(error.status or 500, str(error)) from error


def _failure(status: int, message: str) -> Exception:
    return RuntimeError(message) if _DockerError is None else _DockerError(status, message)


def _ulimit(value: int | tuple[int, int]) -> dict[str, int]:
    soft, hard = (value, value) if isinstance(value, int) else value
    return {"soft": soft, "hard": hard}


def _mount(inside: str, host: str) -> dict[str, str]:
    target, _, mode = inside.partition(":")
    return {"from": host, "to": target, "access": "read_only" if mode == "ro" else "read_write"}


def _tool(definition: dict[str, Any], sandbox: DockerSandbox) -> Tool[Any]:
    """A tool of the registry, with the names that this release of axio gives its paths."""
    name: str = definition["name"]
    schema = definition["inputSchema"]
    defaults: dict[str, Any] = {}
    if _NEW:
        schema = _renamed(schema)
        if "max_chars" in schema["properties"]:
            defaults["max_chars"] = schema["properties"]["max_chars"]["default"] = _MOST_CHARS

    async def handler(**arguments: Any) -> str:
        for path in _PATHS & arguments.keys():
            arguments[path] = sandbox._path(arguments[path])
        given = defaults | {key: value for key, value in arguments.items() if value is not None}
        answer = await _told((await sandbox._checked()).tools.call(name, given, family="axio"))
        if answer.is_error:
            raise RuntimeError(answer.text)
        return str(answer.text)

    return Tool(
        name=name,
        handler=handler,
        description=definition["description"],
        context=sandbox,
        schema=MappingProxyType(schema),
    )


def _renamed(schema: dict[str, Any]) -> dict[str, Any]:
    def new(name: str) -> str:
        return "path" if name in _PATHS and name != "cwd" else name

    properties = {new(name): about for name, about in schema["properties"].items()}
    return {**schema, "properties": properties, "required": [new(name) for name in schema.get("required", [])]}
