"""Who stops waiting ends what they waited for; who waits together does not get in each other's way."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from ringfence import Sandbox, SyncSandbox


def test_a_cancelled_task_ends_its_job() -> None:
    async def main() -> None:
        async with Sandbox() as sandbox:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(sandbox.bash("sleep 1000"), 0.5)
            assert [job for job in await sandbox.processes.list() if job.running] == []

    asyncio.run(main())


def test_tasks_and_loops_share_a_sandbox() -> None:
    sandbox = Sandbox()

    async def main() -> list[str]:
        results = await asyncio.gather(*(sandbox.bash(f"echo {number}") for number in range(8)))
        return [result.stdout for result in results]

    expected = [f"{number}\n" for number in range(8)]
    assert asyncio.run(main()) == expected
    assert asyncio.run(main()) == expected  # connections of the loop before are let go
    asyncio.run(sandbox.close())


def test_threads_share_a_sandbox() -> None:
    with SyncSandbox() as sandbox, ThreadPoolExecutor(8) as pool:
        results = pool.map(lambda number: sandbox.bash(f"echo {number}").stdout, range(16))
        assert list(results) == [f"{number}\n" for number in range(16)]
        ids = set(pool.map(lambda _: sandbox.info().id, range(8)))
        assert len(ids) == 1


def test_the_first_calls_of_many_make_one_sandbox() -> None:
    sandbox = SyncSandbox()
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: sandbox.info().id, range(8)))) == 1
    sandbox.close()
