"""``CodeExecutionTool`` of shipit_agent, on Ringfence: change the import, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from shipit_agent.tools.base import ToolContext, ToolOutput
from shipit_agent.tools.code_execution import CodeExecutionTool as _Original

from ..blocking import SyncSandbox
from ..errors import RingfenceError, Unavailable
from ._place import place

_NO_DOCKER = (
    "Error: docker is not installed or not on PATH. "
    "Install Docker Desktop or call the tool without sandbox=true."
)
#: What the program says of that.
_ABSENT = "there is no Docker engine"


class CodeExecutionTool(_Original):
    """Runs each snippet in a sandbox of its own.

    ``sandbox=True`` is a container as in the original: no network, the workspace read-only.
    ``sandbox=False`` is a native sandbox, in which the workspace can be written to; with
    ``trust="full"`` it is a local process, as in the original. ``on`` says where sandboxes are
    made instead of that: ``native``, ``docker``, or the address of a server.
    """

    #: As in the original, but for lua, which the image there does not have.
    SANDBOX_IMAGES: ClassVar[dict[str, str]] = {
        **_Original.SANDBOX_IMAGES,
        "lua": "nickblah/lua:5.4-alpine",
    }

    def __init__(
        self,
        *,
        trust: Literal["none", "full"] = "none",
        on: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.trust = trust
        self._on = on

    def run(self, context: ToolContext, **kwargs: Any) -> ToolOutput:
        sandbox = bool(kwargs.get("sandbox", False))
        if self.trust == "full" and not sandbox:
            return super().run(context, **kwargs)
        language = self._normalize_language(str(kwargs["language"]))
        if language not in self.LANGUAGE_COMMANDS:
            known = ", ".join(self.supported_languages())
            raise ValueError(f"Unsupported language: {kwargs['language']}; known are {known}")
        workspace = Path(str(kwargs.get("workspace_root") or self.workspace_root)).expanduser().resolve()
        workspace.mkdir(parents=True, exist_ok=True)
        network = bool(kwargs.get("network", False))
        image = kwargs.get("image") or self.SANDBOX_IMAGES.get(language)
        contained = sandbox and self._on != "native"
        elsewhere = ":" in (self._on or "")
        about = {
            "language": language,
            "supported_languages": self.supported_languages(),
            "workspace_root": str(workspace),
            "sandbox": sandbox,
            "sandbox_image": image if sandbox else None,
            "sandbox_network": network if sandbox else False,
        }
        ours = SyncSandbox(**place(self._on or ("docker" if sandbox else "native")))
        try:
            done = ours.run(
                str(kwargs["code"]),
                language,
                timeout=float(kwargs.get("timeout_seconds") or self.timeout_seconds),
                network=network and sandbox,
                image=image if contained and not elsewhere else None,
                # A server elsewhere has folders of its own.
                workspace=None if elsewhere else workspace,
                writable=not sandbox,
            )
        except Unavailable as error:
            # One that is there and refuses says why.
            absent = sandbox and _ABSENT in error.message
            text = _NO_DOCKER if absent else f"Error: {error}"
            return ToolOutput(text=text, metadata={**about, "ok": False, "error": str(error)})
        except RingfenceError as error:
            return ToolOutput(text=f"Error: {error}", metadata={**about, "ok": False, "error": str(error)})
        finally:
            ours.close()
        return ToolOutput(
            text=done.text,
            metadata={
                **about,
                "ok": done.ok,
                "exit_code": done.exit_code,
                "stdout": done.stdout,
                "stderr": done.stderr,
                "script_path": done.details["script_path"],
                "notes": list(done.notes),
                "duration": done.duration,
                "peak_memory": done.peak_memory,
                "truncated": done.truncated,
                **({"certificate": done.details["certificate"]} if done.certificate else {}),
                **({"error": done.error} if done.error else {}),
            },
        )
