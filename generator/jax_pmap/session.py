"""The generator's end of the worker: start it, ask it, hold it to its limits, end it."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

from jax_pmap.home import Home
from jax_pmap.model import Refusal, RefusalError, Span, refused
from jax_pmap.problems import error_span, shown_file
from jax_pmap.worker import protocol
from jax_pmap.worker.origins import is_users
from jax_pmap.worker.protocol import Member, Problem, Request, Versions

A = TypeVar("A")

#: Bytes a worker may take beyond what jax itself maps, unless `--memory` says otherwise.
DEFAULT_MEMORY = 8 << 30
#: The share of its memory limit, and of its time limit, that a run may take where equality is derived.
ROOM, TIME = 3 / 8, 1 / 3
#: Lines of the user's own output that are kept for messages: XLA's come ahead of the stacks of all devices.
KEPT_LINES = 1000
DEVICE_FLAG = "--xla_force_host_platform_device_count"
#: What is being done before the first request.
STARTING = "starting Python with jax"
#: Seconds between looks at whether the worker still lives, and for it to say where it is.
LOOK = 0.25
#: Seconds a Python may take to run its first line; what takes longer is no Python.
START = 60.0
#: Exit status of a worker whose pipes the user's code closed; see `worker/server.py`.
CUT_OFF = 96
#: Signals by which native code ends itself.
CRASHES = frozenset({signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV})
#: Last words of native code that gets no memory.
OUT_OF_MEMORY = re.compile(
    r"bad_alloc|out of memory|OOM|Resource temporarily unavailable|mmap error: 12|pthread_create\(\) failed",
    re.I,
)
#: Last words of XLA where some devices wait at a collective for others that never come to it.
WAITED = re.compile(r"rendezvous", re.I)
#: A frame in faulthandler's dumps.
FRAME = re.compile(r'^  File "(.+)", line (\d+) in ', re.M)


def with_simulated(base: Mapping[str, str], devices: int) -> dict[str, str]:
    """An environment in which jax has CPU only and `devices` simulated devices; other XLA_FLAGS are kept."""
    flags = re.sub(rf"{DEVICE_FLAG}=\S+", "", base.get("XLA_FLAGS", "")).split()
    environment = {
        **base,
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices),
        "XLA_FLAGS": " ".join([*flags, f"{DEVICE_FLAG}={devices}"]),
    }
    environment.pop("JAX_PLATFORM_NAME", None)
    return environment


def worker_environment(base: Mapping[str, str], devices: int, home: str) -> dict[str, str]:
    """The worker's environment: simulated devices, quick compilation, no accelerator, a folder of its own."""
    simulated = with_simulated(base, devices)
    environment = {
        **simulated,
        "CUDA_VISIBLE_DEVICES": "",
        "HIP_VISIBLE_DEVICES": "",
        "TPU_SKIP_MDS_QUERY": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        # Our own filter shows the user's frames; jax's would add a note about itself.
        "JAX_TRACEBACK_FILTERING": "off",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "MPLBACKEND": "Agg",
        "TMPDIR": home,
        # glibc reserves address space for each thread that allocates, and the memory limit counts what is
        # reserved: without this, a loaded machine runs into it where a quiet one does not.
        "MALLOC_ARENA_MAX": "2",
    }
    environment.pop("JAX_DISABLE_JIT", None)
    # What selects the *generator's* packages must not leak into the user's interpreter.
    environment.pop("PYTHONHOME", None)
    return environment


@dataclass(frozen=True, slots=True)
class _Step:
    """Several requests that keep one time limit."""

    doing: str
    hint: str
    #: When it is over, by `time.monotonic`.
    until: float


class Session:
    """One worker process for one run; a context manager that always ends the whole process group."""

    def __init__(
        self,
        python: Path,
        directory: Path,
        devices: int,
        timeout: float,
        memory: int | None,
        environment: Mapping[str, str] | None = None,
        member: Member | None = None,
    ) -> None:
        self.python = python
        self.directory = directory
        self.devices = devices
        self.timeout = timeout
        self.memory = DEFAULT_MEMORY if memory is None else memory
        #: Variables that the user's program has besides those of this process.
        self.environment = dict(environment or {})
        self.member = member
        if member is not None:
            self.environment["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] = "gloo"
        self.output: collections.deque[str] = collections.deque(maxlen=KEPT_LINES)
        self.versions = Versions("", "", False)
        #: Whether programs are compiled as they are to run for long; see `worker/compiling.py`.
        self.optimized = False
        self._step: _Step | None = None
        self._start()

    def _start(self) -> None:
        """Start a worker."""
        self._closed = False
        self._started = False
        self._greeted = False
        #: Where the worker leaves the line it was at when it crashed or ran out of time.
        self._place = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the session)
        self._home = Home()
        request_read, self._requests = os.pipe()
        self._answers, answer_write = os.pipe()
        self._worker = Path(__file__).with_name("worker")
        place = self._place.fileno()
        try:
            self._process = subprocess.Popen(
                [
                    str(self.python),
                    "-u",
                    str(self._worker / "boot.py"),
                    str(request_read),
                    str(answer_write),
                    str(place),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(request_read, answer_write, place),
                cwd=self.directory,
                env=worker_environment({**os.environ, **self.environment}, self.devices, self._home.name),
                start_new_session=True,
            )
        except OSError as error:
            for descriptor in (self._requests, self._answers):
                os.close(descriptor)
            self._place.close()
            self._home.cleanup()
            raise refused(
                "JP009",
                f"`{self.python}` could not be started: {error.strerror or error}",
                "Name the interpreter your code runs under: --python PATH",
            ) from error
        finally:
            os.close(request_read)
            os.close(answer_write)
        assert self._process.stdout is not None
        self._drain = threading.Thread(target=self._keep_output, args=(self._process.stdout,), daemon=True)
        self._drain.start()
        self._send(protocol.Hello())

    def __enter__(self) -> Session:
        """Nothing to do: the process is already starting while the generator imports its own modules."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the worker and everything it started."""
        self.close()

    def renew(self) -> None:
        """Make the worker ready for another target: nothing of the last one is kept."""
        self.output.clear()
        if self.ask(protocol.Forget(), "starting over"):
            self.restart()

    def close(self) -> None:
        """Kill the worker and what it started, reap it, remove its temporary folder."""
        if self._closed:
            return
        self._closed = True
        self._kill()
        self._process.wait()
        self._kill_strays()
        for descriptor in (self._requests, self._answers):
            os.close(descriptor)
        self._drain.join(timeout=1)
        if not self._drain.is_alive() and self._process.stdout is not None:
            self._process.stdout.close()
        self._place.close()
        self._home.cleanup()

    def restart(self) -> None:
        """End the worker and start a fresh one."""
        self.close()
        self._start()

    def _kill(self) -> None:
        # The group outlives its first process while the user's children are in it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _kill_strays(self) -> None:
        """Kill what left the process group (daemons): it is known by the folder in its environment."""
        mark = f"TMPDIR={self._home.name}".encode()
        for _ in range(3):
            found = [pid for pid in _processes() if mark in _environment_of(pid).split(b"\0")]
            for pid in found:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if not found:
                return

    def _keep_output(self, stream: IO[bytes]) -> None:
        """Drain the user's prints; only the last lines are kept, and no line at any length."""
        try:
            while chunk := os.read(stream.fileno(), 65536):
                self.output.extend(line[:500] for line in chunk.decode("utf-8", "replace").splitlines())
        except (OSError, ValueError):
            return

    def _send(self, request: Request[Any]) -> None:
        line = protocol.encode({"method": type(request).__name__, "request": request})
        data = (line + "\n").encode()
        try:
            while data:
                data = data[os.write(self._requests, data) :]
        except BrokenPipeError:
            return  # The worker is gone; reading its answer says so.

    @contextlib.contextmanager
    def within_limit(self, doing: str, hint: str) -> Iterator[None]:
        """Have all that is asked inside keep the time limit together, as one step, with steps inside it.

        Args:
            doing: the step, as a refusal says it.
            hint: what ends it sooner.
        """
        before = self._step
        self._step = before or _Step(doing, hint, time.monotonic() + self.timeout)
        try:
            yield
        finally:
            self._step = before

    def _receive(self, request: Request[A], doing: str) -> A:
        parts: list[bytes] = []
        began = time.monotonic()
        deadline = began + self.timeout
        if self._step is not None:
            deadline = min(deadline, self._step.until)
        first = min(deadline, began + START)
        while not parts or not parts[-1].endswith(b"\n"):
            now = time.monotonic()
            if now >= deadline:
                raise RefusalError(self._too_slow(doing, now - began))
            if not self._greeted and not parts and now >= first:
                raise RefusalError(self._no_python(f"is no Python: it did nothing for {START:g} s"))
            # A child of the worker may hold the pipe open: the end of the worker has to be seen as well.
            ended = self._process.poll() is not None
            wait = 0.0 if ended else min(LOOK, deadline - now)
            ready, _, _ = select.select([self._answers], [], [], wait)
            chunk = os.read(self._answers, 1 << 20) if ready else b""
            if chunk:
                self._started = True
                parts.append(chunk)
            elif ready or ended:
                raise RefusalError(self._ended(doing))
        answer = json.loads(b"".join(parts))
        if "ok" in answer:
            return request.read(answer["ok"])
        raise self._raised(protocol.decode(Problem, answer["problem"]), doing)

    def _too_slow(self, doing: str, took: float) -> Refusal:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGUSR2)  # The worker answers it with a traceback.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LOOK)
        self._kill()
        span = self._last_place()
        cure = "Take out what does not end, use smaller example inputs"
        if doing.startswith("importing"):
            cure = "Put what trains or downloads under `if __name__ == '__main__':`"
        elif doing == STARTING:
            cure = "Try again on a machine with less to do"
        elif self._step is not None and took < self.timeout / 2:
            # No one request is to blame.
            doing, cure = self._step.doing, self._step.hint
        return Refusal(
            "JP010",
            f"{doing} did not end within the time limit of {self.timeout:g} s"
            + (f"; it was at line {span.line} of `{Path(span.file).name}`" if span else ""),
            f"{cure}, or allow more: --timeout {max(60, 4 * self.timeout):g}",
            span,
            self.printed(),
        )

    def _ended(self, doing: str) -> Refusal:
        """What to say of a worker that is no longer there."""
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = CUT_OFF
        self._kill()
        self._process.wait()
        self._drain.join(timeout=1)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        if not self._greeted:
            what = "" if self._started else "is no Python: it "
            return self._no_python(f"{what}{how} before it could import jax")
        if code in (-signal.SIGKILL, -signal.SIGABRT) and OUT_OF_MEMORY.search("\n".join(self.output)):
            return self._out_of_memory(doing, self._last_place())
        hint = "Take out of the file, or put under `if __name__ == '__main__':`, what ends Python."
        if code == -signal.SIGABRT and WAITED.search("\n".join(self.output)):
            how += " (its devices waited for each other: some of them never came to a collective)"
            hint = (
                "Have all devices take the same way where one has a collective in it: what a `while_loop` or "
                "a `cond` goes by has to be the same on each, as what `jax.lax.pmean` returns is"
            )
        elif -code in CRASHES:
            how += " (native code crashed, of jax or of a package)"
            hint = (
                "Look at what it printed last, and run the command again. If it crashes again, call the "
                "function in plain Python: report what crashes there too to that package, and what does not "
                "to jax-pmap"
            )
        elif code == CUT_OFF:
            how, hint = "lost its connection", "Do not close file descriptors that are not yours."
        elif code == -signal.SIGKILL:
            hint = "If the system ran out of memory, use smaller example inputs, or set a limit: --memory 4G"
        elif code < 0:
            hint = "Something outside ended it. Run the same command again."
        return Refusal(
            "JP012",
            f"the process that runs your code {how} while {doing}",
            hint,
            self._last_place(),
            self.printed(),
        )

    def _no_python(self, how: str) -> Refusal:
        return Refusal(
            "JP009",
            f"`{self.python}` {how}",
            "Name the Python your code runs under, with jax installed: --python PATH",
            details=self.printed(),
        )

    def printed(self) -> tuple[str, ...]:
        """The last lines the user's code printed, as one detail."""
        lines = [line for line in self.output if line.strip()]
        return ("\n".join(["The last it printed:", *lines[-10:]]),) if lines else ()

    def _last_place(self) -> Span | None:
        """The user's line that the worker was at, of the dump it left when it crashed or was too slow."""
        data = os.pread(self._place.fileno(), 1 << 20, 0).decode("utf-8", "replace")
        for thread in reversed(data.split("\n\n")):
            frames = FRAME.findall(thread)
            if any(file == str(self._worker / "server.py") for file, _ in frames):
                for file, line in frames:
                    path = Path(file)
                    if is_users(file) and path.is_file():
                        return Span(shown_file(file, self.directory), int(line))
        return None

    def _out_of_memory(self, doing: str, span: Span | None) -> Refusal:
        return Refusal(
            "JP011",
            f"{doing} needs more than the memory limit of {_limit(self.memory)}",
            f"Use smaller example inputs, or a higher limit: --memory {max(1, self.memory * 4 >> 30)}G",
            span,
        )

    def ask(self, request: Request[A], doing: str) -> A:
        """Send one request and wait for its answer.

        Raises:
            RefusalError: the worker ran into a limit, ended, or met a problem every caller
                treats alike (import errors, an unusable interpreter, memory).
            Problem: any other one.
        """
        if not self._greeted:
            self.versions = self._receive(protocol.Hello(), STARTING)
            self._greeted = True
            devices = protocol.MakeDevices(self.devices, self.memory, self.optimized, self.member)
            self._send(devices)
            self._receive(devices, STARTING)
        self._send(request)
        return self._receive(request, doing)

    def _raised(self, problem: Problem, doing: str) -> Exception:
        """What to raise for a problem."""
        message = problem.message
        if problem.kind == "interpreter":
            hint = "Name the Python your code runs under, with jax installed: --python PATH"
            if self.python.absolute() == Path(sys.executable).absolute():
                hint += "\nOr activate its environment: this is the Python that jax-pmap itself runs under"
            elif "import" in message:
                hint += f"\nOr install it there: {self.python} -m pip install jax"
            if message.startswith("jax "):
                hint += f"\nOr upgrade it there: {self.python} -m pip install --upgrade jax"
            return refused("JP009", f"`{self.python}` cannot run your code: {message}", hint)
        if problem.kind == "memory" or out_of_memory(problem):
            return RefusalError(self._out_of_memory(doing, error_span(problem.error, self.directory)))
        if problem.kind == "bug":
            return RuntimeError(f"worker failed while {doing}\n{problem.traceback}")
        return problem


def _limit(size: int) -> str:
    """A limit in the units that `--memory` takes: ``"1 GiB"``, ``"10 MiB"``."""
    return f"{size / 2**30:.3g} GiB" if size >= 2**30 else f"{size / 2**20:.3g} MiB"


def out_of_memory(problem: Problem) -> bool:
    """Whether a problem is jax's or Python's way of saying that memory ran out."""
    text = f"{problem.error.type}: {problem.error.message}" if problem.error is not None else ""
    return bool(re.match(r"MemoryError|.*RESOURCE_EXHAUSTED|.*Out of memory|.*ArrayMemoryError", text))


def _processes() -> list[int]:
    """Process ids, where ``/proc`` lists them."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 (names only)
    except OSError:
        return []


def _environment_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # gone, or another user's
        return b""
