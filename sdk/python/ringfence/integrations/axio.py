"""``DockerSandbox`` of axio-tools-docker, on Ringfence: change the import, and nothing else."""

from __future__ import annotations

import posixpath
import stat
import uuid
from collections.abc import Awaitable, Callable
from datetime import datetime
from importlib.metadata import version
from types import TracebackType
from typing import Any

from axio.tool import CONTEXT, Tool

from ..errors import InvalidInput, RingfenceError
from ..results import Result
from ..sandbox import Sandbox
from . import _engine
from ._place import place, reading, reason, writing

try:
    from aiodocker.exceptions import DockerError as _DockerError
except ImportError:
    _DockerError = None  # type: ignore[assignment, misc]

#: Newer releases call every path `path`, show more of a file, and count bytes after a patch.
_NEW = tuple(int(part) for part in version("axio").split(".")[:2]) >= (0, 12)

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
        image: str = "python:latest",
        memory: str = "256m",
        cpus: str = "1.0",
        network: bool | str = False,
        workdir: str = "/workspace",
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
        self.patched_files: set[str] = set()
        self._on = on
        self._sandbox: Sandbox | None = None
        self._container_id: str | None = None
        # What is kept needs a name to be found by.
        called = name or ("" if remove else f"axio-{uuid.uuid4().hex[:12]}")
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
            "spec": {"mounts": [_mount(inside, host) for inside, host in (volumes or {}).items()]},
        }
        if on == "native":
            if asked or workdir != "/workspace":
                needless = ", ".join(sorted(asked)) or "workdir"
                raise InvalidInput(f"{needless}: only containers have that", hint="on='docker'")
            self._options |= {"network": "host" if network else "none", "prefer": True}
            return
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
        self._sandbox = Sandbox(**place(self._on), **self._options)
        try:
            session = await _told(self._sandbox.info())
            self._container_id = session.id
            if self._on == "docker":
                self._container_id = await _engine.container(self.url, session.id)
        except BaseException:
            await self._sandbox.close()
            self._sandbox = None
            raise
        return self

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
        return [Tool(name=name, handler=handler, context=self) for name, handler in _HANDLERS.items()]

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
        return await _told(self._running().exec(**command))


async def _told(work: Awaitable[Any]) -> Any:
    """A failure is one of the engine for whoever catches those."""
    try:
        return await work
    except RingfenceError as error:
        if _DockerError is None:
            raise
        raise _DockerError(error.status or 500, {"message": str(error)}) from error


def _ulimit(value: int | tuple[int, int]) -> dict[str, int]:
    soft, hard = (value, value) if isinstance(value, int) else value
    return {"soft": soft, "hard": hard}


def _mount(inside: str, host: str) -> dict[str, str]:
    target, _, mode = inside.partition(":")
    return {"from": host, "to": target, "access": "read_only" if mode == "ro" else "read_write"}


async def shell(command: str, timeout: float = 5, cwd: str = ".", stdin: str | None = None) -> str:
    """Run a shell command and return its output. Use for git, build tools,
    grep, tests, or any CLI operation. Non-zero exit codes are reported.
    Optionally pass stdin data for commands that read from standard input.
    Prefer short timeouts and avoid interactive commands."""
    return await _in_folder(["sh", "-c", command], cwd, timeout, stdin)


async def run_python(code: str, cwd: str = ".", timeout: float = 5, stdin: str | None = None) -> str:
    """Run a Python code snippet in a fresh interpreter and return its output.
    Use for calculations, data processing, or testing small scripts.
    Optionally pass stdin data. Non-zero exit codes and tracebacks are
    returned as-is."""
    return await _in_folder(["python3", "-c", code], cwd, timeout, stdin)


async def _in_folder(words: list[str], cwd: str, timeout: float, stdin: str | None) -> str:
    sandbox: DockerSandbox = CONTEXT.get()
    quoted = " ".join(_quote(word) for word in words)
    return await sandbox.exec(f"cd {_quote(sandbox._path(cwd))} && {quoted}", timeout, stdin)


def _quote(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


async def _write(path: str, content: str, mode: int) -> str:
    sandbox: DockerSandbox = CONTEXT.get()
    return await sandbox.write_file(sandbox._path(path), content, mode)


async def _read(
    path: str,
    max_chars: int,
    binary_as_hex: bool,
    start_line: int | None,
    end_line: int | None,
    line_numbers: bool,
) -> str:
    sandbox: DockerSandbox = CONTEXT.get()
    raw = await sandbox.read_file_bytes(sandbox._path(path))
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        if binary_as_hex:
            return "Encoded binary data HEX: " + raw[:max_chars].hex()
        raise
    lines = text.splitlines(keepends=True)
    start = 0 if start_line is None else start_line - 1
    shown = lines[start : len(lines) if end_line is None else end_line]
    if line_numbers:
        shown = [f"{start + 1 + number}\t{line}" for number, line in enumerate(shown)]
    answer = "".join(shown)
    return answer if len(answer) <= max_chars else answer[:max_chars] + "\n...[truncated]"


#: What every `stat` knows, of everything in a folder; no name ends in a slash.
_LIST = 'cd -- "$1" && for f in * .[!.]* ..?*; do [ -e "$f" ] || [ -L "$f" ] || continue; '
_LIST += "stat -c '%f %s %Y %n/' -- \"$f\"; done"


async def _list(path: str) -> str:
    sandbox: DockerSandbox = CONTEXT.get()
    listed = await sandbox._exec(argv=["sh", "-c", _LIST, "sh", sandbox._path(path)])
    if not listed.ok:
        raise FileNotFoundError(f"cannot list {path}: {reason(listed)}")
    rows = []
    for line in filter(None, listed.stdout.split("/\n")):
        bits, size, changed, name = line.split(" ", 3)
        mode = int(bits, 16)
        folder = stat.S_ISDIR(mode)
        shown = size if stat.S_ISREG(mode) else "0"
        when = datetime.fromtimestamp(int(changed)).strftime("%b %d %H:%M")
        slash = "/" if folder else ""
        rows.append((not folder, name, f"{stat.filemode(mode)} {shown:>8} {when} {name}{slash}"))
    return "\n".join(row for _, _, row in sorted(rows)) or "(empty directory)"


async def _patch(path: str, from_line: int, to_line: int, content: str, mode: int) -> str:
    sandbox: DockerSandbox = CONTEXT.get()
    whole = sandbox._path(path)
    lines = (await sandbox.read_file_bytes(whole)).decode().splitlines(keepends=True)
    if not 1 <= from_line <= len(lines) + 1 or not from_line - 1 <= to_line <= len(lines):
        raise ValueError(f"lines {from_line} to {to_line} are out of range: the file has {len(lines)}")
    new = content.splitlines(keepends=True)
    if new and not new[-1].endswith("\n"):
        new[-1] += "\n"
    lines[from_line - 1 : to_line] = new
    text = "".join(lines)
    await sandbox.write_file(whole, text, mode)
    return f"{len(text.encode())} bytes written to {whole}" if _NEW else f"{len(lines)} lines written to {whole}"


if _NEW:

    async def write_file(path: str, content: str, mode: int = 0o644) -> str:
        return await _write(path, content, mode)

    async def read_file(
        path: str,
        max_chars: int = 524288,
        binary_as_hex: bool = True,
        start_line: int | None = None,
        end_line: int | None = None,
        line_numbers: bool = False,
    ) -> str:
        return await _read(path, max_chars, binary_as_hex, start_line, end_line, line_numbers)

    async def list_files(path: str = ".") -> str:
        return await _list(path)

    async def patch_file(path: str, from_line: int, to_line: int, content: str, mode: int = 0o644) -> str:
        return await _patch(path, from_line, to_line, content, mode)

else:

    async def write_file(file_path: str, content: str, mode: int = 0o644) -> str:
        return await _write(file_path, content, mode)

    async def read_file(
        filename: str,
        max_chars: int = 32768,
        binary_as_hex: bool = True,
        start_line: int | None = None,
        end_line: int | None = None,
        line_numbers: bool = False,
    ) -> str:
        return await _read(filename, max_chars, binary_as_hex, start_line, end_line, line_numbers)

    async def list_files(directory: str = ".") -> str:
        return await _list(directory)

    async def patch_file(file_path: str, from_line: int, to_line: int, content: str, mode: int = 0o644) -> str:
        return await _patch(file_path, from_line, to_line, content, mode)


write_file.__doc__ = """Create or overwrite a file with the given content. Parent directories
are created automatically. Use this for new files or full rewrites. For
partial edits prefer patch_file instead."""
read_file.__doc__ = """Read file contents. Returns text for text files, hex for binaries.
Lines are 1-indexed: start_line=1 is the first line, end_line=3 includes
line 3. Pass line_numbers=True to prefix each line with its number and a
tab, which patch_file needs. Large files are truncated to max_chars."""
list_files.__doc__ = """List files and directories with permissions, size, modification time
and name. Directories come first and end with a slash."""
patch_file.__doc__ = """Replace a range of lines in an existing file. Lines are 1-indexed, and
from_line and to_line are both inclusive. To insert without deleting, set
to_line = from_line - 1. Read the file with line_numbers=True first."""

_HANDLERS: dict[str, Callable[..., Awaitable[str]]] = {
    "shell": shell,
    "write_file": write_file,
    "read_file": read_file,
    "list_files": list_files,
    "run_python": run_python,
    "patch_file": patch_file,
}
