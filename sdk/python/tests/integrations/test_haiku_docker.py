"""The sandbox skill on a real engine, which is its default."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from test_haiku import converse

from ringfence.integrations.haiku import SandboxState, create_skill

IMAGE = "ringfence-test/sandbox"


def test_packages_are_there_and_files_are_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAIKU_SKILLS_SANDBOX_WORKSPACE", str(tmp_path))
    monkeypatch.setenv("HAIKU_SKILLS_SANDBOX_IMAGE", IMAGE)
    os.chown(tmp_path, 1234, 1234)  # commands run as whoever owns the workspace
    skill = create_skill()
    deps = skill.deps_type(state=SandboxState())
    code = "import pandas, numpy, scipy, matplotlib; print(pandas.DataFrame({'x': [6 * 7]}).to_string())"
    answers = converse(
        skill,
        deps,
        ("write_file", {"path": "/workspace/a.py", "content": code}),
        ("execute", {"command": "python3 /workspace/a.py && echo made > /workspace/made && id -u"}),
        ("execute", {"command": "python3 -c \"import socket; socket.create_connection(('1.1.1.1', 53), 2)\""}),
    )
    assert "42" in answers[1] and answers[1].split()[-1] == "1234"
    assert "OSError" in answers[2] or "Network is unreachable" in answers[2]
    assert (tmp_path / "made").read_text() == "made\n"


def test_root_and_a_network_can_be_had(tmp_path: Path) -> None:
    skill = create_skill(image=IMAGE, network=True, user="root")
    deps = skill.deps_type(state=SandboxState())
    answers = converse(skill, deps, ("execute", {"command": "id -u; ls /sys/class/net"}))
    assert "0" in answers[0].split() and "eth0" in answers[0]
