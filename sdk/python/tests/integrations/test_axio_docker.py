"""``DockerSandbox`` on a real engine: every parameter, and what happens to containers."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiodocker
import pytest
from aiodocker.exceptions import DockerError
from axio.exceptions import HandlerError

from ringfence.integrations.axio import DockerSandbox

ENGINE = os.environ["DOCKER_HOST"]
IMAGE = "ringfence-test/python"


def on_engine(test: Callable[[aiodocker.Docker], Awaitable[None]]) -> None:
    async def main() -> None:
        async with aiodocker.Docker(url=ENGINE) as engine:
            await test(engine)

    asyncio.run(main())


async def gone(engine: aiodocker.Docker, container: str) -> bool:
    try:
        await engine.containers.get(container)
    except DockerError as error:
        assert error.status == 404
        return True
    return False


def test_defaults_are_those_of_the_contract() -> None:
    async def test(engine: aiodocker.Docker) -> None:
        async with DockerSandbox(ENGINE, image=IMAGE) as sandbox:
            made = await (await engine.containers.get(sandbox.container_id)).show()
            host = made["HostConfig"]
            assert (host["Memory"], host["NanoCpus"]) == (256 << 20, 10**9)
            assert host["NetworkMode"] == "none" and not host["Privileged"]
            assert "no-new-privileges" in str(host["SecurityOpt"]) and host["PidsLimit"] > 0
            assert not host["ReadonlyRootfs"] and not host["CapDrop"]
            assert await sandbox.exec("id -u; pwd; echo x > /data; cat /data") == "0\n/workspace\nx"
            tools = {tool.name: tool for tool in sandbox.tools}
            assert await tools["run_python"](code="print(6 * 7)") == "42"
            assert await tools["shell"](command="pwd", cwd="/tmp") == "/tmp"
            await sandbox.write_file("/data2/x.txt", "y")
            assert await sandbox.read_file_bytes("/data2/x.txt") == b"y"
            container = sandbox.container_id
        assert await gone(engine, container)

    on_engine(test)


def test_every_parameter_takes_effect(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "x").write_text("from the host")
    volume = f"python-{uuid.uuid4().hex[:8]}"
    name = f"python-{uuid.uuid4().hex[:8]}"

    async def test(engine: aiodocker.Docker) -> None:
        async with DockerSandbox(
            ENGINE,
            image=IMAGE,
            memory="300m",
            cpus="0.5",
            network="bridge",
            workdir="/srv/work",
            volumes={"/host": str(tmp_path)},
            named_volumes={"/named": volume},
            volumes_remove=True,
            env={"COLOUR": "red"},
            user="1234",
            name=name,
            read_only=True,
            shm_size="32m",
            cap_add=["NET_ADMIN"],
            cap_drop=["CHOWN"],
            ulimits={"nofile": 512, "nproc": (200, 300)},
            tmpfs={"/fast": "size=8m,mode=1777", "/srv/work": "mode=1777"},
            ports={8000: 0},
            platform="linux/amd64",
            extra_hosts={"db.internal": "10.1.2.3"},
            devices=["/dev/full:/dev/mine:r", "/dev/full:/dev/ours", "/dev/full"],
            dns=["10.9.8.7"],
        ) as sandbox:
            made = await (await engine.containers.get(name)).show()
            host = made["HostConfig"]
            assert made["Id"] == sandbox.container_id
            assert (host["Memory"], host["NanoCpus"], host["NetworkMode"]) == (300 << 20, 5 * 10**8, "bridge")
            assert host["ReadonlyRootfs"] and host["ShmSize"] == 32 << 20
            assert "NET_ADMIN" in str(host["CapAdd"]) and "CHOWN" in str(host["CapDrop"])
            assert "8000/tcp" in host["PortBindings"]
            limits = {each["Name"]: (each["Soft"], each["Hard"]) for each in host["Ulimits"]}
            assert (limits["nofile"], limits["nproc"]) == ((512, 512), (200, 300))
            devices = {each["PathInContainer"]: each["CgroupPermissions"] for each in host["Devices"]}
            assert devices == {"/dev/mine": "r", "/dev/ours": "rwm", "/dev/full": "rwm"}
            said = await sandbox.exec(
                "pwd; id -u; echo $COLOUR; cat /host/x; echo; ulimit -n; grep db.internal /etc/hosts; "
                "grep 10.9.8.7 /etc/resolv.conf; grep -c ' /fast ' /proc/mounts; ls -d /named /dev/mine; "
                "touch /nowhere 2>&1 | grep -o 'Read-only'"
            )
            lines = said.splitlines()
            assert lines[:5] == ["/srv/work", "1234", "red", "from the host", "512"]
            assert lines[5].split() == ["10.1.2.3", "db.internal"] and "10.9.8.7" in lines[6]
            assert lines[7] == "1" and sorted(lines[8:10]) == ["/dev/mine", "/named"]
            assert lines[10] == "Read-only"
        assert await gone(engine, name)
        with pytest.raises(DockerError):
            await engine.volumes.get(volume)

    on_engine(test)


def test_privileged_is_asked_for() -> None:
    async def test(engine: aiodocker.Docker) -> None:
        try:
            async with DockerSandbox(ENGINE, image=IMAGE, privileged=True) as sandbox:
                made = await (await engine.containers.get(sandbox.container_id)).show()
                assert made["HostConfig"]["Privileged"]
        except DockerError as error:
            # A machine that lacks a capability itself can't give it; nothing else asks for all.
            assert "unable to apply caps" in str(error)

    on_engine(test)


def test_one_that_is_there_is_attached_to_and_stays() -> None:
    name = f"python-{uuid.uuid4().hex[:8]}"

    async def test(engine: aiodocker.Docker) -> None:
        host = {"Init": True, "Binds": [f"{name}:/named"]}
        config: dict[str, Any] = {"Image": IMAGE, "Cmd": ["sleep", "1000"], "HostConfig": host}
        there = await engine.containers.create(config, name=name)
        try:
            assert not (await there.show())["State"]["Running"]
            async with DockerSandbox(
                ENGINE, name=name, workdir="/tmp", remove=True, volumes_remove=True
            ) as sandbox:
                assert sandbox.container_id == there.id
                assert await sandbox.exec("echo here > x; cat x; echo kept > /named/x") == "here"
            assert (await there.show())["State"]["Running"]
            # Again, where it is by itself; and the volume has what was written.
            async with DockerSandbox(ENGINE, name=name) as sandbox:
                assert await sandbox.exec("pwd; cat named/x") == "/\nkept"
                tools = {tool.name: tool for tool in sandbox.tools}
                assert await tools["shell"](command="cat x", cwd="named") == "kept"
        finally:
            await there.delete(force=True)
            await (await engine.volumes.get(name)).delete()

    on_engine(test)


def test_one_that_is_kept_stays() -> None:
    async def test(engine: aiodocker.Docker) -> None:
        async with DockerSandbox(ENGINE, image=IMAGE, remove=False) as sandbox:
            container = await engine.containers.get(sandbox.container_id)
        try:
            assert (await container.show())["Id"]
        finally:
            await container.delete(force=True)

    on_engine(test)


def test_it_is_removed_when_the_body_raises() -> None:
    async def test(engine: aiodocker.Docker) -> None:
        with pytest.raises(ZeroDivisionError):
            async with DockerSandbox(ENGINE, image=IMAGE) as sandbox:
                container = sandbox.container_id
                raise ZeroDivisionError
        assert await gone(engine, container)

    on_engine(test)


def test_one_that_was_stopped_behind_its_back_raises() -> None:
    async def test(engine: aiodocker.Docker) -> None:
        async with DockerSandbox(ENGINE, image=IMAGE) as sandbox:
            container = await engine.containers.get(sandbox.container_id)
            await container.kill()
            await container.wait()
            with pytest.raises(DockerError):
                await sandbox.exec("echo hi")
            with pytest.raises(HandlerError):
                await sandbox.tools[0](command="echo hi")
            assert not (await container.show())["State"]["Running"]

    on_engine(test)
