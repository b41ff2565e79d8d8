"""How a command is run and how it ends: streams, signals, errors as messages, faults of nanprobe's own."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from nanprobe.errors import ExitCode, NanprobeError

_RUN_A_SCRIPT = ("diagnose", "sweep-scale", "init")
_ISSUES = "https://github.com/nanprobe/nanprobe/issues"
# Base of every complaint about the command line, whichever package typer takes it from.
_CommandLineError: type[Exception] = next(
    cls for cls in reversed(typer.BadParameter.__mro__) if hasattr(cls, "format_message")
)


_RUN_A_SCRIPT = (" diagnose", " sweep-scale", " init")


class Session:
    """What a command needs besides its options, and leaves for error messages."""

    def __init__(self, script_args: list[str]) -> None:
        self.script_args = tuple(script_args)
        self.run_directory: Path | None = None


def run(app: typer.Typer, argv: list[str] | None = None) -> int:
    """The `nanprobe` command; returns its exit code. Everything after the first `--` belongs to the user's script."""
    own, script_args = _split_arguments(sys.argv[1:] if argv is None else argv)
    _prepare_streams()
    session = Session(script_args)
    try:
        with _terminate_as_interrupt():
            command = typer.main.get_command(app)  # calling `app` would replace sys.excepthook for good
            return int(command.main(own, prog_name="nanprobe", standalone_mode=False, obj=session) or 0)
    except NanprobeError as error:
        return _fail(str(error), error.exit_code)
    except _CommandLineError as error:
        return _fail(_explain_command_line(error, script_args), ExitCode.USAGE)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", ExitCode.INCONCLUSIVE)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader of the report has gone; so may the rest of it
        return int(ExitCode.INCONCLUSIVE)
    except Exception:
        return _fail(_save_bug(session), ExitCode.INCONCLUSIVE)


def _split_arguments(argv: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in argv:
        return argv, []
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def _prepare_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]


@contextlib.contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """Let SIGTERM end a run as Ctrl-C does: children stopped, partial results reported."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _end_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_signals() -> list[signal.Signals]:
    return [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def _fail(message: str, code: ExitCode) -> int:
    print(f"nanprobe: {message}", file=sys.stderr)
    return int(code)


def _explain_command_line(error: Any, script_args: list[str]) -> str:
    message = error.format_message().rstrip(".").strip()
    message = message[:1].lower() + message[1:]
    command = getattr(getattr(error, "ctx", None), "command_path", None) or "nanprobe"
    unknown = message.startswith(("no such option", "got unexpected extra argument"))
    if unknown and not script_args and command.endswith(_RUN_A_SCRIPT):
        return f"{message}; arguments for the script go after `--`: {command} train.py -- ARGS"
    return f"{message}; see `{command} --help`"


def _save_bug(session: Session) -> str:
    """Keep the traceback of a fault of nanprobe's own, and say where."""
    folder = session.run_directory if session.run_directory and session.run_directory.is_dir() else None
    try:
        path = (folder or Path(tempfile.mkdtemp(prefix="nanprobe-"))) / "internal-error.txt"
        path.write_text(traceback.format_exc(), encoding="utf-8")
    except OSError:
        return "failed because of a fault of its own\n" + traceback.format_exc()
    kind, error, _ = sys.exc_info()
    what = f"{getattr(kind, '__name__', kind)}: {error}"
    return f"failed because of a fault of its own ({what}).\nPlease report it at {_ISSUES}, with {path}"
