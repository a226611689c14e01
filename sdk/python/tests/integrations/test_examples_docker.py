"""The frameworks' own examples, with one import changed."""

from __future__ import annotations

import os
import re
from importlib.metadata import metadata
from pathlib import Path

import pytest

ENGINE = os.environ["DOCKER_HOST"]


def example(package: str, heading: str) -> str:
    """The first block of Python below a heading of a package's own page."""
    page = str(metadata(package)["Description"])
    (_, _, below) = page.partition(f"\n## {heading}\n")
    found = re.search(r"```python\n(.*?)```", below, re.DOTALL)
    assert found is not None, heading
    return found[1]


def changed(code: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    return code


def test_axio(capsys: pytest.CaptureFixture[str]) -> None:
    code = changed(
        example("axio-tools-docker", "Quick start"),
        ("from axio_tools_docker import", "from ringfence.integrations.axio import"),
        # The engine and the image that there are here.
        ('DockerSandbox(image="python:3.12-alpine")', f'DockerSandbox({ENGINE!r}, image="ringfence-test/python")'),
    )
    exec(compile(code, "axio", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == "Done.\n"


#: The page of haiku-skills-sandbox; its package can't be installed beside ours, as both are found by one name.
HAIKU = """
from pathlib import Path
from haiku_skills_sandbox import create_skill

skill = create_skill(
    workspace=Path("/path/to/data"),  # mounted at /workspace in the container
    idle_timeout=1800,                # stop container after 30min idle (default: 1h)
    image="my-custom-image:latest",   # custom Docker image (default: haiku-skills-sandbox:latest)
)
"""


def test_haiku(tmp_path: Path) -> None:
    from test_haiku import converse

    (tmp_path / "data").write_text("from the host")
    code = changed(
        HAIKU,
        ("from haiku_skills_sandbox import", "from ringfence.integrations.haiku import"),
        ("/path/to/data", str(tmp_path)),
        ("my-custom-image:latest", "ringfence-test/sandbox"),
    )
    names: dict[str, object] = {}
    exec(compile(code, "haiku", "exec"), names)
    skill: object = names["skill"]
    deps = skill.deps_type(state=skill.state_type())  # type: ignore[attr-defined]
    assert converse(skill, deps, ("execute", {"command": "cat data"})) == ["from the host"]
    assert deps.backend._sandbox.info().idle_timeout == 1800
