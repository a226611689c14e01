"""Every block of Python on this package's page and on the first page runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = [Path(__file__).parent.parent / "README.md", Path(__file__).parents[3] / "README.md"]
TEXT = "\n".join(page.read_text() for page in PAGES)
BLOCKS = re.findall(r"^## (.+?)$|^```python\n(.*?)^```$", TEXT, re.M | re.S)


def blocks() -> list[tuple[str, str]]:
    title, found = "", []
    for heading, code in BLOCKS:
        title = heading or title
        if code:
            found.append((title, code))
    return found


@pytest.mark.parametrize(("title", "code"), [pytest.param(*block, id=block[0]) for block in blocks()])
def test_block(title: str, code: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_there_are_blocks() -> None:
    assert len(blocks()) >= 10
