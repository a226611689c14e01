"""What sandboxes answer with: plain frozen records, made from the server's JSON."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any, Literal

from . import _notebook
from .errors import CommandFailed

Json = dict[str, Any]


def _bytes(shown: Json) -> bytes:
    """Printed bytes: ``text`` where they are UTF-8, else ``base64``."""
    if "text" in shown:
        return str(shown["text"]).encode()
    return base64.b64decode(shown.get("base64", ""))


def _blob(data: str | Json) -> bytes:
    return data.encode() if isinstance(data, str) else base64.b64decode(data["base64"])


@dataclass(frozen=True)
class Certificate:
    """Why something ended that did not end by itself, and what is left."""

    cause: str
    ended: str
    message: str
    next: str
    files_survived: bool
    variables_survived: bool
    limit: str | None = None
    reached: str | None = None
    signal: int | None = None

    @classmethod
    def of(cls, body: Json) -> Certificate:
        survived = body["survived"]
        return cls(
            cause=body["cause"],
            ended=body["ended"],
            message=body["message"],
            next=body["next"],
            files_survived=survived["files"],
            variables_survived=survived["variables"],
            limit=body.get("limit"),
            reached=body.get("reached"),
            signal=body.get("signal"),
        )

    def __str__(self) -> str:
        return f"{self.message}; {self.next}"


@dataclass(frozen=True)
class Rich:
    """A value or a figure, by media type: text types as text, others in base64."""

    kind: str
    data: dict[str, str]

    @classmethod
    def of(cls, body: Json) -> Rich:
        return cls(kind=str(body["kind"]), data=dict(body["data"]))

    @property
    def text(self) -> str | None:
        """The plain text of it."""
        return self.data.get("text/plain")

    @property
    def png(self) -> bytes | None:
        """The picture, where it is one."""
        picture = self.data.get("image/png")
        return base64.b64decode(picture) if picture is not None else None

    def _repr_html_(self) -> str:
        return _notebook.rich(self.data)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return _notebook.bundle(self.text or "", self._repr_html_())


@dataclass(frozen=True)
class Entry:
    """A file, folder or link in a sandbox; links are not followed."""

    path: str
    kind: Literal["file", "folder", "symlink", "other"]
    size: int
    mode: int
    modified: float
    target: str | None = None

    @classmethod
    def of(cls, body: Json) -> Entry:
        return cls(
            path=body["path"],
            kind=body["kind"],
            size=body["size_bytes"] if "size_bytes" in body else body["size"],
            mode=body["mode"],
            modified=body["modified_at"] if "modified_at" in body else body["modified"],
            target=body.get("target"),
        )


@dataclass(frozen=True)
class Result:
    """What code or a command came to. ``return_code`` is its own, minus a signal, or -1."""

    job_id: str
    return_code: int
    stdout_raw: bytes
    stderr_raw: bytes
    results: tuple[Rich, ...]
    certificate: Certificate | None
    changed: tuple[Entry, ...]
    duration: float
    truncated: bool
    shell: str | None = None
    details: Json = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, body: Json) -> Result:
        stdout, stderr = body["stdout"], body["stderr"]
        certificate = body.get("certificate")
        return cls(
            job_id=body["job_id"],
            return_code=body["return_code"],
            stdout_raw=_bytes(stdout),
            stderr_raw=_bytes(stderr),
            results=tuple(Rich.of(each) for each in body.get("results", ())),
            certificate=Certificate.of(certificate) if certificate else None,
            changed=tuple(Entry.of(each) for each in body.get("changed", ())),
            duration=body["duration_ms"] / 1000,
            truncated=stdout["truncated"] or stderr["truncated"],
            shell=body.get("shell"),
            details=body,
        )

    @property
    def ok(self) -> bool:
        """Whether it ended by itself, with 0."""
        return self.return_code == 0

    @property
    def stdout(self) -> str:
        return self.stdout_raw.decode(errors="replace")

    @property
    def stderr(self) -> str:
        return self.stderr_raw.decode(errors="replace")

    @property
    def value(self) -> str | None:
        """The last expression's value as text, as in a notebook."""
        return next((each.text for each in self.results if each.kind == "value"), None)

    @property
    def timed_out(self) -> bool:
        return self.certificate is not None and self.certificate.cause == "wall_clock"

    def check(self) -> Result:
        """This result, or :class:`~ringfence.CommandFailed` if it did not end with 0."""
        if self.ok:
            return self
        said = self.stderr.strip().splitlines()
        why = str(self.certificate) if self.certificate else (said[-1] if said else "it said nothing")
        raise CommandFailed(f"ended with {self.return_code}: {why}", code="command_failed")

    def __str__(self) -> str:
        """All that a person or a model should see of it."""
        parts = [self.stdout, self.stderr, self.value or ""]
        if self.certificate:
            parts.append(f"[{self.certificate}]")
        elif not self.ok:
            parts.append(f"[exit code: {self.return_code}]")
        return "\n".join(part.rstrip("\n") for part in parts if part)

    def _repr_html_(self) -> str:
        note = str(self.certificate) if self.certificate else None
        if note is None and not self.ok:
            note = f"exit code: {self.return_code}"
        return _notebook.result(self.stdout, self.stderr, [each.data for each in self.results], note)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return _notebook.bundle(str(self), self._repr_html_())


@dataclass(frozen=True)
class OutputFile:
    """A file that a snippet made; ``content`` is absent where it is too large."""

    path: str
    size: int
    content: bytes | None


@dataclass(frozen=True)
class Snippet:
    """What a snippet in a sandbox of its own came to. ``text`` is for a person or a model."""

    ok: bool
    text: str
    language: str
    exit_code: int
    stdout_raw: bytes
    stderr_raw: bytes
    certificate: Certificate | None
    error: str | None
    notes: tuple[str, ...]
    #: ``start``, ``compile`` or ``run``: where it came to its end.
    stage: str
    #: Seconds, and those of processors.
    duration: float
    cpu_time: float
    #: Bytes of its largest process.
    peak_memory: int
    stdout_truncated: bool
    stderr_truncated: bool
    outputs: tuple[OutputFile, ...]
    details: Json = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, body: Json) -> Snippet:
        certificate = body.get("certificate")
        return cls(
            ok=body["ok"],
            text=body["text"],
            language=body["language"],
            exit_code=body["exit_code"],
            stdout_raw=_blob(body["stdout"]),
            stderr_raw=_blob(body["stderr"]),
            certificate=Certificate.of(certificate) if certificate else None,
            error=body.get("error"),
            notes=tuple(body.get("notes", ())),
            stage=body["stage"],
            duration=body["duration_ms"] / 1000,
            cpu_time=body["cpu_ms"] / 1000,
            peak_memory=body["peak_memory"],
            stdout_truncated=body["stdout_truncated"],
            stderr_truncated=body["stderr_truncated"],
            outputs=tuple(_output(each) for each in body.get("outputs", ())),
            details=body,
        )

    @property
    def stdout(self) -> str:
        return self.stdout_raw.decode(errors="replace")

    @property
    def stderr(self) -> str:
        return self.stderr_raw.decode(errors="replace")

    @property
    def truncated(self) -> bool:
        """Whether there was more output than is shown."""
        return self.stdout_truncated or self.stderr_truncated

    @property
    def timed_out(self) -> bool:
        return self.certificate is not None and self.certificate.cause == "wall_clock"

    def __str__(self) -> str:
        return self.text


def _output(body: Json) -> OutputFile:
    content = body.get("content")
    return OutputFile(body["path"], body["size"], None if content is None else _blob(content))


@dataclass(frozen=True)
class Event:
    """One thing that happened in a job, as it happened."""

    kind: Literal["started", "stdout", "stderr", "result", "skipped", "certificate", "done", "failure"]
    data: Json
    position: str

    @property
    def text(self) -> str:
        """What was printed; empty for other kinds."""
        return self.raw.decode(errors="replace")

    @property
    def raw(self) -> bytes:
        """The bytes that were printed."""
        return _bytes(self.data) if self.kind in ("stdout", "stderr") else b""

    @property
    def rich(self) -> Rich | None:
        return Rich.of(self.data) if self.kind == "result" else None

    @property
    def certificate(self) -> Certificate | None:
        return Certificate.of(self.data) if self.kind == "certificate" else None

    @property
    def return_code(self) -> int | None:
        """Of the last event, ``done``."""
        code = self.data.get("return_code") if self.kind == "done" else None
        return code if isinstance(code, int) else None


@dataclass(frozen=True)
class Job:
    """A process or a call: running, or ended with a return code."""

    job_id: str
    command: str
    running: bool
    pid: int
    started_at: float
    stdout_bytes: int
    stderr_bytes: int
    return_code: int | None = None
    certificate: Certificate | None = None
    kernel: str | None = None

    @classmethod
    def of(cls, body: Json) -> Job:
        end = body.get("end") or {}
        certificate = end.get("certificate")
        return cls(
            job_id=body["job_id"],
            command=body["command"],
            running=body["state"] == "running",
            pid=body["pid"],
            started_at=body["started_at"],
            stdout_bytes=body["stdout_bytes"],
            stderr_bytes=body["stderr_bytes"],
            return_code=end.get("return_code"),
            certificate=Certificate.of(certificate) if certificate else None,
            kernel=body.get("kernel"),
        )


@dataclass(frozen=True)
class Match:
    """A line that was found, or is near one."""

    path: str
    line: int
    text: str
    matched: bool


@dataclass(frozen=True)
class Edited:
    """A file after an edit; ``diff`` has the lines that changed, each with its sign."""

    path: str
    existed: bool
    size: int
    total_lines: int
    diff: tuple[str, ...]

    @classmethod
    def of(cls, body: Json) -> Edited:
        hunk = body.get("hunk") or {}
        return cls(
            path=body["path"],
            existed=body["existed"],
            size=body["size_bytes"],
            total_lines=body["total_lines"],
            diff=tuple(hunk.get("lines", ())),
        )


@dataclass(frozen=True)
class Skill:
    """A folder of instructions in the sandbox; ``path`` is its ``SKILL.md`` there."""

    name: str
    title: str
    description: str
    path: str


class Skills(tuple[Skill, ...]):
    """The skills of a sandbox. ``prompt`` tells a model of them; empty where there are none."""

    prompt: str = ""

    @classmethod
    def of(cls, body: Json) -> Skills:
        found = cls(
            Skill(each["name"], each["title"], each["description"], each["path"]) for each in body["skills"]
        )
        found.prompt = body["prompt"]
        return found


@dataclass(frozen=True)
class Enforced:
    """One line of what a sandbox is really held by."""

    control: str
    hold: str
    by: str
    limit: str | None = None


@dataclass(frozen=True)
class Session:
    """What a session is, as the server tells it."""

    id: str
    created_at: float
    last_activity_at: float
    idle_timeout: float
    max_lifetime: float
    key: str | None
    labels: dict[str, str]
    enforced: tuple[Enforced, ...]
    details: Json = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, body: Json) -> Session:
        return cls(
            id=body["session_id"],
            created_at=body["created_at"],
            last_activity_at=body["last_activity_at"],
            idle_timeout=body["idle_timeout_seconds"],
            max_lifetime=body["max_lifetime_seconds"],
            key=body.get("key"),
            labels=dict(body.get("labels", {})),
            enforced=tuple(
                Enforced(each["control"], each["hold"], each["by"], each.get("limit"))
                for each in body.get("enforced", ())
            ),
            details=body,
        )
