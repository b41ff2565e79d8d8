"""What a command is to run: a script, or a module with -m."""

from __future__ import annotations

from nanprobe.errors import UsageError
from nanprobe.records import Target


def locate(target: str | None, module: str | None, script_args: tuple[str, ...]) -> Target:
    """The target of TARGET or -m NAME. Raises UsageError when both or neither are given, TargetNotFound."""
    from nanprobe.target.locate import locate_module, locate_script

    if module is not None and target is not None:
        raise UsageError(
            f"both -m {module} and {target} given; arguments for the module go after `--`: "
            f"nanprobe diagnose -m {module} -- {target}"
        )
    if module is not None:
        return locate_module(module, script_args)
    if target is None:
        raise UsageError(
            "nothing to diagnose; write `nanprobe diagnose train.py` or `nanprobe diagnose -m package.train`"
        )
    return locate_script(target, script_args)
