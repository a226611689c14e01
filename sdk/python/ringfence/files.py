"""The files of a sandbox. Paths are below its workspace."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any

from ._link import Link
from ._wire import Request, multipart
from .errors import Denied, NotFound
from .results import Edited, Entry, Match

Entries = list[Entry]
Matches = list[Match]


class Files:
    """``sandbox.files``."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def read(self, path: str) -> bytes:
        """The bytes of a file."""
        return (await self._link._get("/files", path=path)).body

    async def read_text(self, path: str, encoding: str = "utf-8") -> str:
        """The text of a file."""
        return (await self._link._get("/files", path=path)).body.decode(encoding)

    async def write(self, path: str, content: str | bytes) -> None:
        """Writes a whole file; folders that lead to it are made."""
        data = content.encode() if isinstance(content, str) else content
        kind, body = multipart(path, data)
        where = await self._link._path("/files")
        headers = {"content-type": kind}
        await self._link._client.call(Request("POST", where, body=body, headers=headers, repeatable=True))

    async def list(self, path: str = ".", *, recursive: bool = False, depth: int | None = None) -> Entries:
        """What is in a folder, and on request all that is below."""
        query = {"path": path, "recursive": recursive or depth is not None, "depth": depth}
        answer = await self._link._get("/files/tree", **query)
        return [Entry.of(each) for each in answer.json()["entries"]]

    async def stat(self, path: str) -> Entry:
        """What is at a path; a link is not followed."""
        return Entry.of((await self._link._get("/files/stat", path=path)).json())

    async def exists(self, path: str) -> bool:
        try:
            await self._link._get("/files/stat", path=path)
        except NotFound:
            return False
        return True

    async def mkdir(self, path: str) -> None:
        """Makes a folder and those that lead to it; one that is there is no error."""
        await self._link._post("/files/mkdir", {"path": path})

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Deletes a file or a folder; one that is not empty only with ``recursive``."""
        await self._link._delete("/files", path=path, recursive=recursive)

    async def move(self, source: str, target: str, *, overwrite: bool = False) -> Entry:
        body = {"from": source, "to": target, "overwrite": overwrite}
        return Entry.of((await self._link._post("/files/move", body)).json())

    async def copy(self, source: str, target: str, *, overwrite: bool = False) -> Entry:
        """Copies a file, or a folder with all that is in it."""
        body = {"from": source, "to": target, "overwrite": overwrite}
        return Entry.of((await self._link._post("/files/copy", body)).json())

    async def glob(self, pattern: str, path: str = ".", *, hidden: bool = False) -> Entries:
        """Finds files and folders: ``*`` stays in a folder, ``**`` crosses them."""
        body = {"pattern": pattern, "path": path, "hidden": hidden}
        answer = await self._link._post("/files/glob", body)
        return [Entry.of(each) for each in answer.json()["entries"]]

    async def grep(
        self,
        pattern: str,
        path: str = ".",
        *,
        glob: str | None = None,
        ignore_case: bool = False,
        fixed: bool = False,
        hidden: bool = False,
        context: int = 0,
        limit: int | None = None,
    ) -> Matches:
        """Searches texts for an expression; with ``fixed``, for the words as they are."""
        body = {
            "pattern": pattern,
            "path": path,
            "glob": glob,
            "ignore_case": ignore_case,
            "fixed": fixed,
            "hidden": hidden,
            "context": context,
            "limit": limit,
            "mode": "content",
        }
        answer = await self._link._post("/files/grep", body)
        return [
            Match(file["path"], line["number"], line["text"], line["matched"])
            for file in answer.json()["files"]
            for line in file["lines"]
        ]

    async def replace(self, path: str, old: str, new: str, *, all: bool = False) -> Edited:
        """Replaces a text that occurs exactly once, or with ``all`` wherever it occurs."""
        return await self._edit(path, {"str_replace": {"old": old, "new": new, "all": all}})

    async def insert(self, path: str, after: int, text: str) -> Edited:
        """Inserts after a line; 0 is the top."""
        return await self._edit(path, {"insert": {"after": after, "text": text}})

    async def patch(self, path: str, diff: str) -> Edited:
        """Applies a unified diff of this one file."""
        return await self._edit(path, {"patch": {"diff": diff}})

    async def undo(self, path: str) -> Edited:
        """Takes the last edit of a file back."""
        return await self._edit(path, "undo")

    async def _edit(self, path: str, edit: Any) -> Edited:
        return Edited.of((await self._link._post("/files/edit", {"path": path, "edit": edit})).json())

    async def upload(self, local: str | os.PathLike[str], path: str | None = None) -> None:
        """Sends a file of yours, or a folder with all that is in it."""
        source = Path(local)
        target = path if path is not None else source.name
        if source.is_dir():
            archive = await self._link._client.io.aside(lambda: _packed(source))
            where = await self._link._path("/tar")
            headers = {"content-type": "application/x-tar"}
            await self._link._client.call(
                Request("PUT", where, {"path": target}, archive, headers, patience=None, repeatable=True)
            )
            return
        await Files.write(self, target, await self._link._client.io.aside(source.read_bytes))

    async def download(self, path: str, local: str | os.PathLike[str]) -> None:
        """Fetches a file, or a folder with all that is in it."""
        target = Path(local)
        entry = Entry.of((await self._link._get("/files/stat", path=path)).json())
        if entry.kind == "folder":
            archive = (await self._link._get("/tar", path=path)).body
            await self._link._client.io.aside(lambda: _unpack(archive, target))
            return
        content = (await self._link._get("/files", path=path)).body
        await self._link._client.io.aside(lambda: target.write_bytes(content))


def _packed(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, arcname=".")
    return buffer.getvalue()


def _unpack(archive: bytes, folder: Path) -> None:
    """Writes files and folders only, and only below the folder: the archive comes from a sandbox."""
    folder.mkdir(parents=True, exist_ok=True)
    root = folder.resolve()
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        for member in members:
            place = (root / member.name).resolve()
            if not place.is_relative_to(root):
                raise Denied(f"{member.name!r} is not below {folder}", code="forbidden")
            if member.isdir():
                place.mkdir(parents=True, exist_ok=True)
            elif (content := members.extractfile(member) if member.isfile() else None) is not None:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content.read())
                place.chmod(member.mode & 0o777)
