"""Every operation, on both faces, in real sandboxes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringfence import (
    AlreadyExists,
    CommandFailed,
    Denied,
    InvalidInput,
    NotFound,
    RingfenceError,
)


def test_python_keeps_variables(sandbox: Any) -> None:
    assert sandbox.python("x = 20").ok
    result = sandbox.python("print('hi')\nx + 22")
    assert (result.stdout, result.value, result.return_code) == ("hi\n", "42", 0)
    assert result.certificate is None


def test_an_exception_is_a_result(sandbox: Any) -> None:
    result = sandbox.python("1 / 0")
    assert result.return_code == 1 and "ZeroDivisionError" in result.stderr
    with pytest.raises(CommandFailed, match="ended with 1: ZeroDivisionError"):
        result.check()


def test_a_timeout_has_a_certificate(sandbox: Any) -> None:
    sandbox.python("kept = 1")
    result = sandbox.python("while True: pass", timeout=0.5)
    assert result.timed_out and result.certificate.variables_survived
    assert sandbox.python("kept").value == "1"


def test_bash_and_exec(sandbox: Any) -> None:
    result = sandbox.bash("cat; echo $A >&2; pwd; exit 3", stdin="in", env={"A": "b"}, cwd="/tmp")
    assert (result.stdout, result.stderr, result.return_code) == ("in/tmp\n", "b\n", 3)
    assert sandbox.exec(["printf", "%s|", "a b", "$HOME"]).stdout == "a b|$HOME|"
    assert sandbox.exec(["cat"], stdin=b"\xff\x00").stdout_raw == b"\xff\x00"
    with pytest.raises(TypeError, match="goes to bash"):
        sandbox.exec("ls")


def test_output_over_its_limit_can_be_read_back(sandbox: Any) -> None:
    result = sandbox.bash("seq 1 10000", output_limit=100)
    assert result.truncated and len(result.stdout_raw) <= 200
    whole = sandbox.processes.output(result.job_id)
    assert whole.endswith(b"9999\n10000\n")


def test_events_come_as_they_happen(sandbox: Any) -> None:
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\n40 + 2"
    events = list(sandbox.stream(code))
    kinds = [event.kind for event in events]
    assert kinds[0] == "started" and kinds[-1] == "done" and events[-1].return_code == 0
    assert "".join(event.text for event in events if event.kind == "stdout") == "out\n"
    assert "".join(event.text for event in events if event.kind == "stderr") == "err\n"
    assert [event.rich.text for event in events if event.kind == "result"] == ["42"]


def test_who_leaves_the_loop_ends_the_job(sandbox: Any) -> None:
    for event in sandbox.stream(command="echo on; sleep 1000"):
        if event.kind == "stdout":
            break
    assert [job for job in sandbox.processes.list() if job.running] == []


def test_files(sandbox: Any, tmp_path: Path) -> None:
    files = sandbox.files
    files.write("a/b.txt", "one\ntwo\n")
    files.write("raw.bin", bytes(range(256)))
    assert files.read("raw.bin") == bytes(range(256))
    assert files.read_text("a/b.txt") == "one\ntwo\n"
    assert [entry.path for entry in files.list()] == ["a", "raw.bin"]
    assert [entry.path for entry in files.list(recursive=True)] == ["a", "a/b.txt", "raw.bin"]
    assert files.stat("a").kind == "folder" and files.stat("raw.bin").size == 256
    assert files.exists("a/b.txt") and not files.exists("nothing")
    files.mkdir("c/d")
    files.copy("a/b.txt", "c/b.txt")
    with pytest.raises(AlreadyExists):
        files.move("raw.bin", "c/b.txt")
    files.move("raw.bin", "c/raw.bin")
    assert [entry.path for entry in files.glob("**/*.txt")] == ["a/b.txt", "c/b.txt"]
    found = files.grep("^tw", glob="a/*")
    assert [(each.path, each.line, each.text) for each in found] == [("a/b.txt", 2, "two")]
    assert files.replace("a/b.txt", "two", "2").diff == ("-two", "+2")
    files.insert("a/b.txt", 0, "zero")
    assert files.read_text("a/b.txt") == "zero\none\n2\n"
    files.undo("a/b.txt")
    files.undo("a/b.txt")
    assert files.read_text("a/b.txt") == "one\ntwo\n"
    files.patch("a/b.txt", "--- a\n+++ b\n@@ -1,2 +1,2 @@\n-one\n+ONE\n two\n")
    assert files.read_text("a/b.txt") == "ONE\ntwo\n"
    with pytest.raises(RingfenceError):
        files.remove("c")
    files.remove("c", recursive=True)
    assert not files.exists("c")


def test_folders_go_in_and_out(sandbox: Any, tmp_path: Path) -> None:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "sub" / "x.txt").write_text("x")
    (tmp_path / "one.txt").write_text("one")
    sandbox.files.upload(tmp_path / "in", "data")
    sandbox.files.upload(tmp_path / "one.txt")
    assert sandbox.bash("cat data/sub/x.txt one.txt").stdout == "xone"
    sandbox.bash("ln -s /etc/passwd data/link; chmod 755 data/sub/x.txt")
    sandbox.files.download("data", tmp_path / "out")
    assert (tmp_path / "out" / "sub" / "x.txt").read_text() == "x"
    assert (tmp_path / "out" / "sub" / "x.txt").stat().st_mode & 0o777 == 0o755
    assert not (tmp_path / "out" / "link").is_symlink()
    sandbox.files.download("one.txt", tmp_path / "again.txt")
    assert (tmp_path / "again.txt").read_text() == "one"


def test_paths_stay_in_the_workspace(sandbox: Any) -> None:
    for path in ("../etc/passwd", "/etc/passwd"):
        with pytest.raises(Denied):
            sandbox.files.read(path)
    with pytest.raises(NotFound, match="nothing"):
        sandbox.files.read("nothing")


def test_processes(sandbox: Any) -> None:
    job = sandbox.processes.start("while read line; do echo got $line; done", stdin=True)
    assert job.running and sandbox.processes.get(job).job_id == job.job_id
    sandbox.processes.write(job, "a\n")
    sandbox.processes.write(job, b"b\n", end=True)
    assert sandbox.processes.wait(job).return_code == 0
    assert sandbox.processes.result(job).stdout == "got a\ngot b\n"
    assert [event.kind for event in sandbox.processes.events(job)][-1] == "done"
    sleeper = sandbox.processes.start(["sleep", "1000"])
    assert sandbox.processes.wait(sleeper, timeout=0.1).running
    sandbox.processes.signal(sleeper)
    assert sandbox.processes.wait(sleeper.job_id).return_code == -15
    sandbox.processes.kill(sleeper)
    with pytest.raises(NotFound):
        sandbox.processes.get(sleeper)


def test_interrupt_and_restart(sandbox: Any) -> None:
    sandbox.python("x = 1")
    sandbox.interrupt()
    assert sandbox.python("x").value == "1"
    sandbox.restart()
    assert "NameError" in sandbox.python("x").stderr


def test_what_is_asked_for_takes_effect(make: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("x")
    sandbox = make(
        workspace=tmp_path / "work",
        mounts={"/data": str(tmp_path / "data")},
        env={"COLOUR": "red"},
        pids=32,
        labels={"who": "test"},
        idle_timeout=100,
        timeout=0.5,
    )
    assert sandbox.bash("echo $COLOUR; cat /data/x; echo y > made; echo no > /data/z").stdout == "red\nx"
    assert (tmp_path / "work" / "made").read_text() == "y\n"
    assert not (tmp_path / "data" / "z").exists()
    assert sandbox.bash("sleep 100").timed_out
    info = sandbox.info()
    assert (info.labels["who"], info.idle_timeout) == ("test", 100)
    assert next(each.limit for each in info.enforced if each.control == "pids") == "32"


def test_bad_input_is_named(make: Callable[..., Any]) -> None:
    with pytest.raises(InvalidInput, match="nonsense"):
        make(spec={"nonsense": 1}).python("1")
    with pytest.raises(InvalidInput, match="timeout_seconds"):
        make().python("1", timeout=-1)
    with pytest.raises(InvalidInput, match="both name a session"):
        make(session="a", key="b")
    with pytest.raises(InvalidInput, match="leave one of them out"):
        make("http://localhost", backend="native")


def test_what_is_closed_stays_closed(make: Callable[..., Any]) -> None:
    sandbox = make()
    sandbox.python("1")
    sandbox.close()
    sandbox.close()
    with pytest.raises(InvalidInput, match="is closed"):
        sandbox.python("1")


def test_snippets_have_sandboxes_of_their_own(sandbox: Any, tmp_path: Path) -> None:
    sandbox.files.write("mine", "x")
    done = sandbox.run("ls; cat; exit 3", "bash", stdin="in", env={"A": "b"}, timeout=10)
    assert (done.ok, done.exit_code, done.stdout, done.language) == (False, 3, "in", "bash")
    assert str(done).startswith("exit_code: 3\nstdout:\nin")
    assert sandbox.run("import sys; print(sys.argv[1:])", args=["a b"]).stdout == "['a b']\n"
    assert sandbox.run("while True: pass", timeout=0.5).certificate.cause == "wall_clock"
    (tmp_path / "x").write_text("seen")
    assert sandbox.run("cat x; echo > y", "sh", workspace=tmp_path).stdout == "seen"
    assert sandbox.run("echo made > y", "sh", workspace=tmp_path, writable=True).ok
    assert (tmp_path / "y").read_text() == "made\n"
    with pytest.raises(InvalidInput, match="cobol"):
        sandbox.run("x", "cobol")


def test_snippets_take_files_and_give_some_back(sandbox: Any) -> None:
    code = "import a; open('out', 'w').write(a.word); open('/tmp/raw', 'wb').write(open('raw', 'rb').read())"
    files = {"a.py": "word = 'there'", "raw": b"\xff"}
    done = sandbox.run(code, files=files, outputs=["out", "/tmp/raw"])
    assert done.ok and done.stage == "run" and done.certificate is None and not done.truncated, done
    assert [(each.path, each.size, each.content) for each in done.outputs] == [
        ("out", 5, b"there"),
        ("/tmp/raw", 1, b"\xff"),
    ]
    assert done.duration > 0 and done.peak_memory > 1 << 20
    assert sandbox.run("echo x > made", "sh", scratch=True).ok
    assert not sandbox.run("echo x > made", "sh").ok
    late = sandbox.run("while True: pass", timeout=0.5)
    assert late.timed_out and late.exit_code == 124
    with pytest.raises(TypeError, match="list of globs"):
        sandbox.run("1", outputs="*.txt")


def test_tools_are_described_and_called(sandbox: Any) -> None:
    for form, place in (("mcp", "inputSchema"), ("anthropic", "input_schema")):
        tools = {tool["name"]: tool for tool in sandbox.tools.definitions(form, family="axio")}
        assert tools["shell"][place]["required"] == ["command"]
    openai = sandbox.tools.definitions("openai")
    assert all(tool["type"] == "function" for tool in openai)
    answer = sandbox.tools.call("shell", {"command": "echo $((6 * 7)); exit 3"}, family="axio")
    assert (answer.text, str(answer)) == ("42\n\n[exit code: 3]", answer.text)
    assert answer.content[0] == {"type": "text", "text": answer.text}
    with pytest.raises(NotFound, match="no tool nothing"):
        sandbox.tools.call("nothing")
    with pytest.raises(InvalidInput, match="timeout"):
        sandbox.tools.call("shell", {"command": "true", "timeout": -1}, family="axio")


def test_skills_are_there_and_cannot_be_changed(make: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "all" / "greet"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: Greet\ndescription: How to <greet>.\n---\nSay hello.\n")
    sandbox = make(skills=[tmp_path / "all"])
    found = sandbox.skills()
    assert [(skill.name, skill.title, skill.description, skill.path) for skill in found] == [
        ("greet", "Greet", "How to <greet>.", "/sandbox/skills/greet/SKILL.md")
    ]
    assert "<description>How to &lt;greet&gt;.</description>" in found.prompt
    assert sandbox.bash(f"tail -n1 {found[0].path}").stdout == "Say hello.\n"
    assert not sandbox.bash("echo x >> /sandbox/skills/greet/SKILL.md").ok
    assert "Say hello." in (folder / "SKILL.md").read_text()
    assert make().skills().prompt == ""
    with pytest.raises(NotFound, match="there is no skill in"):
        make(skills=[tmp_path]).skills()
