"""Requests in, answers out: one JSON object a line on pipes of our own, never on stdout."""

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

Answer = dict[str, Any]


class Problem(Exception):
    """A failure the user can act on: `kind` names it, `data` goes to the generator as it is."""

    def __init__(self, kind: str, message: str, **data: Any) -> None:
        super().__init__(message)
        self.kind = kind
        self.data = data


def describe_exception(error: BaseException, hide: str = "") -> Answer:
    """`type`, `message`, the last `line` / `file` in user code and a `traceback` without our frames."""
    ours = os.path.dirname(os.path.abspath(__file__))
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((ours, "<frozen"))
        and (not hide or hide not in frame.filename)
        and f"{os.sep}jax{os.sep}_src{os.sep}" not in frame.filename
    ]
    message = str(error)
    if isinstance(error, SyntaxError):
        return {
            "type": type(error).__name__,
            "message": error.msg,
            "file": error.filename,
            "line": error.lineno or 0,
            "traceback": traceback.format_exception_only(type(error), error),
        }
    return {
        "type": type(error).__name__,
        "message": message,
        "file": frames[-1].filename if frames else None,
        "line": frames[-1].lineno if frames else 0,
        "frames": [[frame.filename, frame.lineno, frame.name] for frame in frames],
        "traceback": [
            *traceback.format_list(frames),
            *traceback.format_exception_only(type(error), error),
        ],
    }


def limit_memory(extra: int) -> None:
    """Let the process grow by `extra` bytes beyond what jax already maps, and no further."""
    try:
        import resource

        with open("/proc/self/statm") as statm:
            now = int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + extra, resource.RLIM_INFINITY))
    except (ImportError, OSError, ValueError):
        return  # No such limit on this system; the time limit still holds.


def hello(request: Answer) -> Answer:
    """Import NumPy and jax, make the simulated devices, then set the memory limit."""
    for name in ("numpy", "jax"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise Problem("interpreter", f"`import {name}` fails: {error}") from error
    import jax

    devices = jax.devices()
    if len(devices) < request["devices"] or devices[0].platform != "cpu":
        raise Problem(
            "interpreter", f"asked for {request['devices']} simulated CPU devices, jax made {devices}"
        )
    if request.get("memory"):
        limit_memory(request["memory"])
    return {"jax": jax.__version__, "python": sys.version.split()[0], "devices": len(devices)}


def serve(read_fd: int, write_fd: int) -> None:
    """Answer requests until the generator closes its end."""
    # User code may fork: its children must not hold, or write to, the protocol's pipes.
    os.set_inheritable(read_fd, False)
    os.set_inheritable(write_fd, False)
    pid = os.getpid()
    handlers: dict[str, Callable[[Answer], Answer]] = {"hello": hello}
    with os.fdopen(read_fd, "r", encoding="utf-8") as requests:
        for line in requests:
            request = json.loads(line)
            method = request.pop("method")
            try:
                if method not in handlers:
                    # Imported late: these modules import jax, and `hello` reports its absence.
                    methods = importlib.import_module(__package__ + ".methods")
                    handlers.update(methods.HANDLERS)
                answer: Answer = {"ok": handlers[method](request)}
            except Problem as problem:
                answer = {"problem": problem.kind, "message": str(problem), **problem.data}
            except MemoryError as error:
                answer = {"problem": "memory", "message": str(error), "error": describe_exception(error)}
            except BaseException as error:
                answer = {"problem": "bug", "message": repr(error), "traceback": traceback.format_exc()}
            if os.getpid() != pid:
                os._exit(0)  # A child the user's code forked and let run back to us.
            data = (json.dumps(answer, allow_nan=True) + "\n").encode()
            while data:
                data = data[os.write(write_fd, data) :]
    # Threads and exit handlers of the user's code must not keep the process.
    os._exit(0)
