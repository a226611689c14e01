"""Builds the package: with the program by maturin where that can be built, else the client alone.

The program is for Linux and its source is beside this package in the repository. On another
system, from a source distribution, or with RINGFENCE_CLIENT_ONLY set, setuptools makes a wheel for
any platform that holds the typed client, which talks to a server elsewhere.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

_CRATE = Path(__file__).parents[3] / "crates" / "ringfence"
_WITH_PROGRAM = (
    sys.platform == "linux" and _CRATE.is_dir() and not os.environ.get("RINGFENCE_CLIENT_ONLY")
)


def _backend() -> Any:
    return import_module("maturin" if _WITH_PROGRAM else "setuptools.build_meta")


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    return ["maturin>=1.8,<2"] if _WITH_PROGRAM else get_requires_for_build_sdist()


def build_wheel(folder: str, config_settings: Any = None, metadata: Any = None) -> str:
    name: str = _backend().build_wheel(folder, config_settings, metadata)
    return name


def get_requires_for_build_sdist(config_settings: Any = None) -> list[str]:
    return ["setuptools>=77"]


def build_sdist(folder: str, config_settings: Any = None) -> str:
    """The client only: the program is built from the repository."""
    name: str = import_module("setuptools.build_meta").build_sdist(folder, config_settings)
    return name
