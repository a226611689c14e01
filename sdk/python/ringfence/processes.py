"""What runs in the background of a sandbox."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

from ._events import Flow
from ._link import Link, work
from ._wire import Request
from .results import Event, Job, Result

Jobs = list[Job]

#: Longest wait of one request.
_WAIT = 25.0


class Processes:
    """``sandbox.processes``."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        timeout: float = 86_400,
    ) -> Job:
        """Starts a command that runs on whether anybody waits or not.

        With ``stdin``, it reads what :meth:`write` sends.
        """
        job = {**work(None, command, cwd=cwd, env=env, timeout=timeout), "detach": True}
        if stdin:
            job["stdin"] = {"stream": True}
        return Job.of((await self._link._job(job)).json())

    async def list(self) -> Jobs:
        """All jobs of the sandbox, in the order of their start."""
        return [Job.of(each) for each in (await self._link._get("/jobs")).json()["jobs"]]

    async def get(self, job: Job | str) -> Job:
        return Job.of((await self._link._get(_path(job))).json())

    async def wait(self, job: Job | str, timeout: float | None = None) -> Job:
        """Waits for the end, or for so many seconds: the job as it is then."""
        left = timeout
        while True:
            step = _WAIT if left is None else min(left, _WAIT)
            answer = await self._link._get(_path(job, "/wait"), timeout_seconds=step)
            now = Job.of(answer.json())
            left = None if left is None else left - step
            if not now.running or (left is not None and left <= 0):
                return now

    async def result(self, job: Job | str) -> Result:
        """The whole result of a job that has ended."""
        return Result.of((await self._link._get(_path(job, "/result"))).json())

    async def output(self, job: Job | str, stream: str = "stdout", offset: int = 0) -> bytes:
        """What is kept of one output stream, from an offset on."""
        return (await self._link._get(_path(job, f"/output/{stream}"), offset=offset)).body

    async def events(self, job: Job | str) -> AsyncGenerator[Event, None]:
        """What a job does, from its beginning; it runs on if you stop reading."""
        path = await self._link._path(_path(job, "/events"))
        request = Request("GET", path, headers={"accept": "text/event-stream"})
        flow = Flow(request, request, cancel=None)
        async with aclosing(self._link._client.events(flow)) as events:
            async for event in events:
                yield event

    async def write(self, job: Job | str, data: str | bytes, *, end: bool = False) -> None:
        """Sends to the standard input of a command that was started with ``stdin=True``."""
        path = await self._link._path(_path(job, "/stdin"))
        body = data.encode() if isinstance(data, str) else data
        headers = {"content-type": "application/octet-stream"}
        await self._link._client.call(Request("POST", path, {"end": end}, body, headers, patience=None))

    async def signal(self, job: Job | str, signal: str | int = "TERM", *, all: bool = False) -> None:
        """Sends a signal to a command, or to every process of it."""
        await self._link._post(_path(job, "/signal"), {"signal": str(signal), "all": all})

    async def kill(self, job: Job | str) -> None:
        """Kills whatever is left of a job, and forgets it with its output."""
        await self._link._delete(_path(job))


def _path(job: Job | str, rest: str = "") -> str:
    return f"/jobs/{job.job_id if isinstance(job, Job) else job}{rest}"
