"""Results as a notebook shows them.

What comes out of a sandbox is hostile, and a notebook's page can run code as its owner. So text is
escaped, HTML is shown in a frame without scripts and without an origin, and pictures are `img`
elements, in which scripts of an SVG don't run.
"""

from __future__ import annotations

import base64
import html

_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")


def bundle(plain: str, page: str) -> dict[str, str]:
    return {"text/plain": plain, "text/html": page}


def _text(text: str, style: str = "") -> str:
    return f'<pre style="margin:0;{style}">{html.escape(text)}</pre>'


def rich(data: dict[str, str]) -> str:
    """The best representation of a value that is safe to show."""
    for kind in _PICTURES:
        if kind in data:
            # Decoded and encoded again: only base64 comes out of this.
            picture = base64.b64encode(base64.b64decode(data[kind])).decode()
            return f'<img src="data:{kind};base64,{picture}">'
    if "image/svg+xml" in data:
        drawing = base64.b64encode(data["image/svg+xml"].encode()).decode()
        return f'<img src="data:image/svg+xml;base64,{drawing}">'
    if "text/html" in data:
        page = html.escape(data["text/html"], quote=True)
        return f'<iframe sandbox="" srcdoc="{page}" style="border:0;width:100%;height:20em"></iframe>'
    return _text(data.get("text/plain", ""))


def result(stdout: str, stderr: str, values: list[dict[str, str]], note: str | None) -> str:
    parts = []
    if stdout:
        parts.append(_text(stdout))
    if stderr:
        parts.append(_text(stderr, "background:#fdd"))
    parts.extend(rich(value) for value in values)
    if note:
        parts.append(_text(note, "color:#a00"))
    return "".join(parts)
