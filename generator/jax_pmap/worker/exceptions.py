"""Exceptions of the user's code, as messages name them."""

import contextlib
import os
import re
import traceback
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from .protocol import Kind, Problem, Raised

P = ParamSpec("P")
T = TypeVar("T")
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def attempted(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "T | None":
    """What a call gives that runs the user's code; None where that raises anything.

    Memory that runs out is no answer, and a `Problem` is one already: both go on.
    """
    try:
        return call(*args, **kwargs)
    except (MemoryError, Problem):
        raise
    except BaseException:
        return None


@contextlib.contextmanager
def raising(kind: Kind, hide: str = "") -> Iterator[None]:
    """Have what the user's code raises inside for a `Problem` of a kind; see `describe_exception`."""
    try:
        yield
    except (MemoryError, Problem):
        raise
    except BaseException as error:
        raise Problem(kind, summary(error), error=describe_exception(error, hide)) from error


def is_ours(error: BaseException) -> bool:
    """Whether a line of this worker raised an exception, and nothing that it called: it is our own fault."""
    innermost = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)][-1:]
    return any(file.startswith(_HERE) for file in innermost)


def describe_exception(error: BaseException, hide: str = "") -> Raised:
    """An exception of the user's code, without our frames and those of files with `hide` in their names."""
    if isinstance(error, Problem) and error.error is not None:
        return error.error
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_HERE, "<frozen"))
        and (not hide or hide not in frame.filename)
        and f"{os.sep}jax{os.sep}_src{os.sep}" not in frame.filename
    ]
    message = cleaned(text_of(error))
    kind = type(error).__name__
    if isinstance(error, SyntaxError):
        blocks = traceback.format_exception_only(type(error), error)
        return Raised(kind, error.msg, error.filename, error.lineno or 0, traceback=tuple(blocks))
    return Raised(
        kind,
        message,
        frames[-1].filename if frames else None,
        (frames[-1].lineno or 0) if frames else 0,
        tuple((frame.filename, frame.lineno or 0, frame.name) for frame in frames),
        (*traceback.format_list(frames), f"{kind}: {message}"),
    )


def text_of(error: BaseException) -> str:
    """The message of an exception, also of one whose ``__str__`` fails; nothing JSON cannot carry."""
    try:
        text = str(error)
    except BaseException:
        text = "(its message cannot be shown)"
    return text.encode("utf-8", "backslashreplace").decode()


def cleaned(message: str) -> str:
    """A message without what jax and its callbacks add of our own lines."""
    # jax appends where its tracing began; those are our lines, not the user's.
    # XLA appends where in its own sources it was (jax 0.12).
    appended = r"\n(?:The error occurred while tracing|-{20}|See https://docs.jax|=== Source Location Trace)"
    message = re.split(appended, message)[0].strip()
    # An error in a callback carries the whole stack as text, down to our first file.
    head, stack, rest = message.partition("Traceback (most recent call last):")
    if stack:
        message = f"{head.strip()} {rest.strip().splitlines()[-1] if rest.strip() else ''}".strip()
    return message


def summary(error: BaseException) -> str:
    """Type and message of an exception, as the last line of a traceback has them."""
    text = cleaned(text_of(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
