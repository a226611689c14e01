"""Ringfence for Python: gives every AI agent a computer of its own."""

from .blocking import SyncSandbox
from .errors import (
    AlreadyExists,
    CommandFailed,
    Denied,
    InvalidInput,
    NotFound,
    OutOfRoom,
    RingfenceError,
    Unavailable,
    Unenforceable,
)
from .results import (
    Certificate,
    Edited,
    Enforced,
    Entry,
    Event,
    Job,
    Match,
    OutputFile,
    Result,
    Rich,
    Session,
    Skill,
    Skills,
    Snippet,
)
from .sandbox import Sandbox
from .tools import ToolAnswer

__all__ = [
    "AlreadyExists",
    "Certificate",
    "CommandFailed",
    "Denied",
    "Edited",
    "Enforced",
    "Entry",
    "Event",
    "InvalidInput",
    "Job",
    "Match",
    "NotFound",
    "OutOfRoom",
    "OutputFile",
    "Result",
    "Rich",
    "RingfenceError",
    "Sandbox",
    "Session",
    "Skill",
    "Skills",
    "Snippet",
    "SyncSandbox",
    "ToolAnswer",
    "Unavailable",
    "Unenforceable",
]
