"""Requests in, answers out: one JSON object a line on pipes of our own, never on stdout."""

import contextlib
import faulthandler
import gc
import importlib
import importlib.util
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from . import opened, protocol, stubs
from .exceptions import describe_exception, text_of
from .protocol import Problem

#: What answers each kind of request.
Handlers = dict[type, Callable[[Any], object]]
#: Exit status when the pipes to the generator are gone.
CUT_OFF = 96
#: New objects between two looks for cycles among them. Traces make millions that live on, and every look
#: goes through the youngest of these: with Python's 700 that takes a seventh of the time of tracing.
GARBAGE = 50_000
#: The rest of the worker uses what jax has since.
OLDEST_JAX = (0, 6, 2)


def end_with_parent() -> None:
    """Ask Linux to kill this process when the generator is killed, which then cannot do so itself."""
    if sys.platform != "linux":
        return
    try:
        import ctypes

        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG
    except (ImportError, OSError, AttributeError):
        return  # The time limit's kill and the closed pipe remain.


def note_exit(place_fd: int) -> None:
    """Have `os._exit`, which leaves no traceback, leave one at `place_fd`."""
    really, pid = os._exit, os.getpid()

    def noted(status: int) -> NoReturn:
        if os.getpid() == pid:
            with contextlib.suppress(Exception):
                faulthandler.dump_traceback(place_fd)
        really(status)

    os._exit = noted


def limit_memory(extra: int) -> None:
    """Let the process grow by `extra` bytes beyond what jax already maps, and no further."""
    try:
        import resource

        with open("/proc/self/statm") as statm:
            now = int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + extra, resource.RLIM_INFINITY))
    except (ImportError, OSError, ValueError):
        return  # No such limit on this system; the time limit still holds.


def lift_memory_limit() -> None:
    """Make room to report that memory ran out, while the failed code's data is still held."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (ImportError, OSError, ValueError):
        return


def hello(request: protocol.Hello) -> protocol.Versions:
    """Import jax and NumPy."""
    # In this order: an environment without jax is told so, although it may lack NumPy too.
    for name in ("jax", "numpy"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise Problem("interpreter", f"`import {name}` fails: {error}") from error
    version = sys.modules["jax"].__version__
    if tuple(int(part) for part in re.findall(r"\d+", version)[:3]) < OLDEST_JAX:
        oldest = ".".join(map(str, OLDEST_JAX))
        raise Problem("interpreter", f"jax {version} is older than {oldest}, the first that jax-pmap can use")
    return protocol.Versions(
        version,
        sys.version.split()[0],
        importlib.util.find_spec("libtpu") is not None,
    )


def make_devices(request: protocol.MakeDevices) -> None:
    """Make the simulated devices, then set the memory limit; a member of several processes waits for them."""
    import jax
    import jaxlib.version

    from .compiling import COMPILING

    if not request.optimized:
        COMPILING.begin(jaxlib.version.__version__)
    member = request.member
    if member is not None:
        jax.distributed.initialize(member.address, member.processes, member.index)
    devices = jax.local_devices()
    if len(devices) < request.devices or devices[0].platform != "cpu":
        raise Problem("interpreter", f"asked for {request.devices} simulated CPU devices, jax made {devices}")
    if request.memory:
        limit_memory(request.memory)


def serve(read_fd: int, write_fd: int, place_fd: int) -> None:
    """Answer requests until the generator closes its end.

    Args:
        read_fd: where requests come from, one JSON object a line.
        write_fd: where answers go.
        place_fd: a file that takes Python's traceback at a crash and at SIGUSR2, which the generator sends
            when the time is over.
    """
    leave = os._exit
    end_with_parent()
    opened.watch()
    stubs.install()
    faulthandler.enable(place_fd)
    # Not `dump_traceback_later`: its thread reads the frames of one that runs, which can crash.
    faulthandler.register(signal.SIGUSR2, place_fd, all_threads=False)
    note_exit(place_fd)
    # User code may start processes: they must not hold, or write to, the protocol's pipes.
    for descriptor in (read_fd, write_fd, place_fd):
        os.set_inheritable(descriptor, False)
    os.register_at_fork(after_in_child=lambda: os.closerange(write_fd, write_fd + 1))
    pid = os.getpid()
    handlers: Handlers = {protocol.Hello: hello, protocol.MakeDevices: make_devices}
    try:
        with os.fdopen(read_fd, "r", encoding="utf-8") as requests:
            for line in requests:
                answer = answered(handlers, line)
                if os.getpid() != pid:
                    leave(0)  # A child the user's code forked and let run back to us.
                data = (answer + "\n").encode()
                while data:
                    data = data[os.write(write_fd, data) :]
    except OSError:
        leave(CUT_OFF)
    # Threads and exit handlers of the user's code must not keep the process.
    leave(0)


def answered(handlers: Handlers, line: str) -> str:
    """The answer to one request, or what went wrong, as JSON."""
    try:
        request = protocol.request_of(line)
        if type(request) not in handlers:
            # Imported late: these modules import jax, and `hello` reports its absence.
            methods = importlib.import_module(__package__ + ".methods")
            handlers.update(methods.HANDLERS)
            # What has been imported stays: no look for cycles has to go through it.
            gc.freeze()
            gc.set_threshold(GARBAGE)
        return protocol.encode({"ok": handlers[type(request)](request)})
    except Problem as error:
        problem = error
    except MemoryError as error:
        lift_memory_limit()
        problem = Problem("memory", text_of(error), error=describe_exception(error))
    except BaseException as error:
        problem = Problem("bug", text_of(error), traceback=traceback.format_exc())
    return protocol.encode({"problem": problem})
