"""What can go wrong, and the exit code each kind of failure carries.

NanprobeError               base of all; `exit_code` says how the command ends
├── UsageError (2)          the command line, a file or an option is wrong
│   ├── TargetNotFound      the script or module to run is not there, or cannot be read
│   ├── RecipeInvalid       a recipe is not there, is no YAML, or says what makes no sense
│   └── OutputNotWritable   the run directory cannot be made or written
├── RunUnreadable (2)       a run directory is truncated, foreign, or of a newer schema
└── CouldNotConclude (3)    the target ran, but not far enough to say anything
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How a nanprobe command ends; part of the contract with CI scripts."""

    HEALTHY = 0
    FAILING = 1
    USAGE = 2
    INCONCLUSIVE = 3


class NanprobeError(Exception):
    """Base of every error nanprobe raises on purpose; its text is shown to the user as it is."""

    exit_code: ExitCode = ExitCode.INCONCLUSIVE


class UsageError(NanprobeError):
    """The command line, a file or an option is wrong."""

    exit_code = ExitCode.USAGE


class TargetNotFound(UsageError):
    """The script or module to run is not there, or cannot be read."""


class RecipeInvalid(UsageError):
    """A recipe is not there, is no YAML, or says what makes no sense; a line for each thing that is wrong."""


class OutputNotWritable(UsageError):
    """The run directory cannot be made or written."""


class RunUnreadable(NanprobeError):
    """A run directory is truncated, foreign, or of a newer schema."""

    exit_code = ExitCode.USAGE


class CouldNotConclude(NanprobeError):
    """The target ran, but not far enough to say anything."""
