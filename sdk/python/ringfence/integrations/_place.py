"""Where a face makes its sandboxes, and files at any path in them."""

from __future__ import annotations

from typing import Any

from ..results import Result

#: Most bytes of a file that is read by a command.
_FILE = 64 << 20


def place(on: str) -> dict[str, Any]:
    """The argument of a sandbox that ``on`` stands for: a backend, or a server."""
    return {"url": on} if ":" in on else {"backend": on}


def reading(path: str) -> dict[str, Any]:
    """The arguments of ``exec`` that read a file anywhere in a sandbox, not only in its workspace."""
    return {"argv": ["cat", "--", path], "output_limit": _FILE}


def writing(path: str, content: bytes, mode: int | None = None) -> dict[str, Any]:
    """The arguments of ``exec`` that write a file anywhere in a sandbox, with its folders."""
    script = 'mkdir -p -- "$(dirname -- "$1")" && cat > "$1"'
    words = ["sh", "-c", script, "sh", path]
    if mode is not None:
        words[2] += ' && chmod -- "$2" "$1"'
        words.append(f"{mode:o}")
    return {"argv": words, "stdin": content}


def reason(result: Result) -> str:
    """Why a command that reads or writes a file failed."""
    return result.stderr.strip() or f"it ended with {result.return_code}"
