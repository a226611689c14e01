"""The package and the program have one version."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parent.parent


def version(file: Path) -> str:
    found = re.search(r'^version = "(.+)"$', file.read_text(), re.M)
    assert found is not None
    return found[1]


def test_one_version() -> None:
    assert version(FOLDER / "pyproject.toml") == version(FOLDER.parents[1] / "Cargo.toml")
