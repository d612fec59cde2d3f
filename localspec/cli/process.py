"""The process of the command: its standard streams, Ctrl-C from the first moment, and the last handler.

This file imports nothing large, so that Ctrl-C during the imports of the command finds it ready.
"""

from __future__ import annotations

import atexit
import codecs
import gc
import io
import os
import signal
import sys
from contextlib import suppress
from typing import Any, NoReturn, cast

INTERRUPTED, BROKEN_PIPE, HUNG_UP, INTERNAL_ERROR = 130, 141, 129, 70  # exit codes


def main() -> NoReturn:
    """Run the command line and exit with its exit code."""
    quiet = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else it is ignored, as by nohup
    if quiet:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))
    open_standard_streams()
    terminals = [number for number in range(3) if os.isatty(number)]
    output = record_stdout()
    end = End()
    gc.disable()  # until a command begins (options.Command): imports leave no garbage
    try:
        from localspec.cli import app

        if quiet:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        end_in_order()
        app.main()
        code: Any = 0
    except SystemExit as leaving:
        code = leaving.code
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BaseException as error:
        if any(not os.isatty(number) for number in terminals):  # it was closed, and nobody reads this
            code = HUNG_UP
        else:
            code = 1 if output and output.caused(error) else report_unexpected(error)
    code = flushed(code, output)
    end.code = 0 if code is None else code
    sys.exit(code)


class End:
    """The end of the process: after all that waits for its exit, without taking apart what is in memory.

    The system takes a model's memory back faster than the libraries do, which keep a prompt waiting.
    Functions that were registered with `atexit` before this are not called. Until `code` is set the process
    ends as Python does.
    """

    def __init__(self) -> None:
        self.code: Any = None
        atexit.register(self._leave)  # the first that is registered is the last that is called

    def _leave(self) -> None:
        if not isinstance(self.code, int) or sys.flags.interactive:
            return
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):  # Python tells of it as ever
                return
        os._exit(self.code)


def end_in_order() -> None:
    """Let a closed terminal and SIGTERM end the process as an exit does; a second signal ends it at once."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _exit)


def _exit(number: int, frame: Any) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)
    sys.exit(128 + number)


def open_standard_streams() -> None:
    """Open the standard streams that were closed at the start on nothing, and let none fail at a character.

    Otherwise the next file that is opened would get a closed one's number, and the output. Bytes of stdin
    that are not of its encoding become surrogates, which `read_prompt` finds.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
        if getattr(sys, name) is None:
            mode = "r" if number == 0 else "w"
            setattr(sys, name, open(number, mode, encoding="utf-8", errors="replace", closefd=False))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="surrogateescape" if number == 0 else ESCAPED.name)


class _Escapes:
    """Writes characters that an encoding lacks as the escapes of JSON, and remembers that it did."""

    name = "localspec"

    def __init__(self) -> None:
        self.encoding = ""  # that lacked one
        codecs.register_error(self.name, self._escape)

    def _escape(self, error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        self.encoding = error.encoding
        units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
        pairs = zip(units[::2], units[1::2], strict=True)
        return "".join(f"\\u{high:02x}{low:02x}" for high, low in pairs), error.end


ESCAPED = _Escapes()


class RecordedOutput(io.FileIO):
    """A file that remembers why it could not be written: Python's buffers drop that, and the text."""

    def __init__(self, number: int) -> None:
        super().__init__(number, "w", closefd=False)
        self.fault: OSError | None = None

    def write(self, data: Any) -> int:
        """Write bytes; raises OSError."""
        try:
            return super().write(data)
        except OSError as error:
            self.fault = error
            raise

    def caused(self, error: BaseException) -> bool:
        """Return whether an error comes from a write that failed."""
        return isinstance(error, OSError) and self.fault is not None and error.errno == self.fault.errno


def record_stdout() -> RecordedOutput | None:
    """Let stdout remember its fault; None for a terminal, and where stdout is no file of the system's."""
    now = cast("io.TextIOWrapper", sys.stdout)
    if now is not sys.__stdout__ or now.isatty():
        return None
    output = RecordedOutput(1)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(output),
        now.encoding,
        now.errors,
        newline=None if os.name == "nt" else "\n",
    )
    return output


def flushed(code: Any, output: RecordedOutput | None) -> Any:
    """Write what is left for stdout, and return the exit code: never 0 if something was lost."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _drop_rest(stream)
    if ESCAPED.encoding:
        from localspec.cli import console

        console.say(
            f"The output has the encoding {ESCAPED.encoding}: characters that it lacks are written as "
            "\\uXXXX. `PYTHONIOENCODING=utf-8` writes them as they are",
            console.DIM,
        )
    fault = output.fault if output else None
    if fault is None:
        return code
    if isinstance(fault, BrokenPipeError):
        return code or BROKEN_PIPE
    from localspec.cli import console
    from localspec.errors import StorageError

    message = f"The output cannot be written: {fault.strerror}"
    console.show(StorageError(message, "Free some space, or write it elsewhere"))
    return code or 1


def report_unexpected(error: BaseException) -> int:
    """Print an error that is not one of localspec's own, and return its exit code.

    One of a file that the system cannot give or take, such as a name that is too long, is the user's.
    """
    from localspec.cli import console
    from localspec.errors import StorageError

    console.show_traceback()
    if isinstance(error, OSError) and error.filename is not None:
        console.show(StorageError(f"`{error.filename}` cannot be used: {error.strerror}", "Check it"))
        return StorageError.exit_code
    console.show_internal(error)
    return INTERNAL_ERROR


def _drop_rest(stream: Any) -> None:
    """Let what a stream still holds go to nothing, so that Python does not try again at its end."""
    with suppress(OSError, ValueError, io.UnsupportedOperation):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)
