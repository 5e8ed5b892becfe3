"""The programs a process has compiled, asked of the backend rather than of the arm.

So an arm needs no hooks, and one with two hundred programs is counted like one with a single one.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import jax

_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?[\w.\-]+ = ", re.MULTILINE)
_METADATA = re.compile(r", metadata=\{[^}]*\}|, (stack_frame_id|source_line)=\d+")
_NAME = re.compile(r"^HloModule \S+", re.MULTILINE)
_SOURCES = re.compile(r"^(FileNames|FunctionNames|FileLocations|StackFrames)\n(\d.*\n)*\n?", re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """What the optimised programs amount to.

    Attributes:
        live: How many executables the process still held when it was asked.
        instructions: Optimised HLO instructions in all of them, those inside fusions included.
        fingerprint: A hash of their code without names and source lines. Equal for two arms only if
            they compiled the very same programs.
    """

    live: int
    instructions: int
    fingerprint: str


def live_executables() -> list:
    """Every executable this process holds."""
    return list(jax.devices()[0].client.live_executables())


def describe(executables: Sequence) -> Programs:
    """Counts and fingerprints executables."""
    texts = [module.to_string() for exe in executables for module in exe.hlo_modules()]
    codes = sorted(hashlib.sha256(_code(text).encode()).hexdigest() for text in texts)
    return Programs(
        live=len(executables),
        instructions=sum(len(_INSTRUCTION.findall(text)) for text in texts),
        fingerprint=hashlib.sha256("\n".join(codes).encode()).hexdigest(),
    )


def _code(text: str) -> str:
    return _NAME.sub("HloModule", _SOURCES.sub("", _METADATA.sub("", text)))
