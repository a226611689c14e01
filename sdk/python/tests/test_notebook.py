"""What a notebook shows, and what it must not run."""

from __future__ import annotations

import base64
from typing import Any

from ringfence import Rich


def test_results_show_themselves(sandbox: Any) -> None:
    result = sandbox.python("print('<b>out</b>')\nimport sys\nprint('err', file=sys.stderr)\n'va' + 'lue'")
    bundle = result._repr_mimebundle_()
    assert bundle["text/plain"] == "<b>out</b>\nerr\n'value'"
    assert "&lt;b&gt;out&lt;/b&gt;" in bundle["text/html"] and "&#x27;value&#x27;" in bundle["text/html"]
    assert "exit code: 1" in sandbox.python("raise SystemExit(1)")._repr_html_()
    late = sandbox.bash("sleep 9", timeout=0.2)
    assert "timed out" in late._repr_html_() or "time limit" in late._repr_html_()


def test_html_of_a_sandbox_runs_nowhere() -> None:
    page = Rich("value", {"text/html": '"><script>alert(1)</script>', "text/plain": "x"})
    shown = page._repr_html_()
    assert shown.startswith('<iframe sandbox="" ') and "<script>" not in shown
    assert "text/html" in page._repr_mimebundle_() and "<script>" not in page._repr_mimebundle_()["text/html"]


def test_pictures_are_pictures() -> None:
    picture = base64.b64encode(b"\x89PNG").decode()
    rich = Rich("display", {"image/png": picture})
    assert rich._repr_html_() == f'<img src="data:image/png;base64,{picture}">'
    assert rich.png == b"\x89PNG"
    drawing = Rich("display", {"image/svg+xml": "<svg onload='alert(1)'/>"})
    assert drawing._repr_html_().startswith('<img src="data:image/svg+xml;base64,')


def test_figures_come_out_of_a_sandbox(sandbox: Any) -> None:
    code = """
class Figure:
    def _repr_png_(self):
        return b"\\x89PNG\\r\\n\\x1a\\n"
Figure()
"""
    result = sandbox.python(code)
    assert [rich.png for rich in result.results] == [b"\x89PNG\r\n\x1a\n"]
    assert "<img src=" in result._repr_html_()
