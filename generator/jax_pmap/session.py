"""The generator's end of the worker: start it, ask it, hold it to its limits, end it."""

from __future__ import annotations

import collections
import json
import os
import re
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from jax_pmap.model import Refusal, RefusalError, Span

Answer = dict[str, Any]

#: Bytes a worker may take beyond what jax itself maps, unless `--memory` says otherwise.
DEFAULT_MEMORY = 8 << 30
#: Lines of the user's own output that are kept for messages.
KEPT_LINES = 40
DEVICE_FLAG = "--xla_force_host_platform_device_count"


def worker_environment(base: Mapping[str, str], devices: int, home: str) -> dict[str, str]:
    """The worker's environment: CPU only, `devices` simulated devices, XLA_FLAGS of the user kept."""
    flags = re.sub(rf"{DEVICE_FLAG}=\S+", "", base.get("XLA_FLAGS", "")).split()
    environment = {
        **base,
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices),
        "XLA_FLAGS": " ".join([*flags, f"{DEVICE_FLAG}={devices}"]),
        "CUDA_VISIBLE_DEVICES": "",
        "HIP_VISIBLE_DEVICES": "",
        "TPU_SKIP_MDS_QUERY": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "MPLBACKEND": "Agg",
        "TMPDIR": home,
    }
    environment.pop("JAX_PLATFORM_NAME", None)
    # What selects the *generator's* packages must not leak into the user's interpreter.
    environment.pop("PYTHONHOME", None)
    return environment


class Session:
    """One worker process for one run; a context manager that always ends the whole process group."""

    def __init__(
        self, python: Path, directory: Path, devices: int, timeout: float, memory: int | None
    ) -> None:
        self.python = python
        self.directory = directory
        self.devices = devices
        self.timeout = timeout
        self.deadline = time.monotonic() + timeout
        self.memory = DEFAULT_MEMORY if memory is None else memory
        self.output: collections.deque[str] = collections.deque(maxlen=KEPT_LINES)
        self.versions: Answer = {}
        self._pending: list[bytes] = []
        self._home = tempfile.TemporaryDirectory(prefix="jax-pmap-", ignore_cleanup_errors=True)
        request_read, self._requests = os.pipe()
        self._answers, answer_write = os.pipe()
        boot = Path(__file__).with_name("worker") / "boot.py"
        try:
            self._process = subprocess.Popen(
                [str(python), "-u", str(boot), str(request_read), str(answer_write)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(request_read, answer_write),
                cwd=directory,
                env=worker_environment(os.environ, devices, self._home.name),
                start_new_session=True,
            )
        except OSError as error:
            for descriptor in (self._requests, self._answers):
                os.close(descriptor)
            self._home.cleanup()
            raise RefusalError(
                Refusal(
                    "JP009",
                    f"`{python}` could not be started: {error.strerror or error}",
                    "Name the interpreter your code runs under: --python PATH",
                )
            ) from error
        finally:
            os.close(request_read)
            os.close(answer_write)
        assert self._process.stdout is not None
        self._drain = threading.Thread(target=self._keep_output, args=(self._process.stdout,), daemon=True)
        self._drain.start()
        self._send("hello", {"devices": devices, "memory": self.memory})
        self._greeted = False

    def __enter__(self) -> Session:
        """Nothing to do: the process is already starting while the generator imports its own modules."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the worker and everything it started."""
        self.close()

    def close(self) -> None:
        """Kill the process group, reap the worker, remove its temporary folder."""
        if self._process.returncode is None:
            self._kill()
            self._process.wait()
            os.close(self._requests)
            os.close(self._answers)
            self._drain.join(timeout=1)
            self._home.cleanup()

    def _kill(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            self._process.kill()

    def _keep_output(self, stream: IO[bytes]) -> None:
        """Drain the user's prints; only the last lines are kept, and no line at any length."""
        try:
            while chunk := os.read(stream.fileno(), 65536):
                self.output.extend(line[:500] for line in chunk.decode("utf-8", "replace").splitlines())
        except (OSError, ValueError):
            return

    def _send(self, method: str, request: Answer) -> None:
        data = (json.dumps({"method": method, **request}) + "\n").encode()
        try:
            while data:
                data = data[os.write(self._requests, data) :]
        except BrokenPipeError:
            return  # The worker is gone; reading its answer says so.

    def _receive(self, doing: str) -> Answer:
        parts: list[bytes] = []
        while not parts or not parts[-1].endswith(b"\n"):
            left = self.deadline - time.monotonic()
            ready, _, _ = select.select([self._answers], [], [], max(0.0, left))
            if not ready:
                self._kill()
                raise RefusalError(
                    Refusal(
                        "JP010",
                        f"{doing} did not end within the time limit of {self.timeout:g} s",
                        f"Use smaller example inputs, or a longer limit: --timeout {max(60, 4 * self.timeout):g}",
                        details=tuple(self.output),
                    )
                )
            chunk = os.read(self._answers, 1 << 20)
            if not chunk:
                raise RefusalError(self._ended(doing))
            parts.append(chunk)
        answer: Answer = json.loads(b"".join(parts))
        return answer

    def _ended(self, doing: str) -> Refusal:
        """What to say of a worker that is no longer there."""
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._kill()
            code = self._process.wait()
        self._drain.join(timeout=1)
        how = f"was killed by signal {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        output = "\n".join(self.output)
        if not self._greeted:
            return Refusal(
                "JP009",
                f"`{self.python}` {how} before it could import jax",
                "Name the interpreter your code runs under: --python PATH",
                details=tuple(self.output),
            )
        if code in (-signal.SIGKILL, -signal.SIGABRT) and re.search(
            "bad_alloc|out of memory|OOM", output, re.I
        ):
            return self._out_of_memory(doing)
        return Refusal(
            "JP012",
            f"the process that runs your code {how} while {doing}",
            "Something in the module or the function ends or crashes the process (os._exit, a fatal signal); "
            "take that out of what runs at import.",
            details=tuple(self.output),
        )

    def _out_of_memory(self, doing: str) -> Refusal:
        return Refusal(
            "JP011",
            f"{doing} needs more than the memory limit of {self.memory / 2**30:.3g} GiB",
            f"Use smaller example inputs, or a higher limit: --memory {max(1, self.memory * 4 >> 30)}G",
        )

    def ask(self, method: str, doing: str, **request: Any) -> Answer:
        """Send one request and wait for its answer.

        Raises:
            RefusalError: the worker ran into a limit, ended, or met a problem every caller
                treats alike (import errors, an unusable interpreter, memory).
        """
        if not self._greeted:
            self.versions = self._checked(self._receive("starting the worker"), "starting the worker")
            self._greeted = True
        self._send(method, request)
        return self._checked(self._receive(doing), doing)

    def _checked(self, answer: Answer, doing: str) -> Answer:
        if "ok" in answer:
            ok: Answer = answer["ok"]
            return ok
        problem, message = answer["problem"], answer["message"]
        if problem == "interpreter":
            raise RefusalError(
                Refusal(
                    "JP009",
                    f"`{self.python}` cannot run your code: {message}",
                    "Name the interpreter your code runs under (--python PATH), or install jax there: "
                    f"{self.python} -m pip install jax",
                )
            )
        if problem == "memory" or out_of_memory(answer):
            raise RefusalError(self._out_of_memory(doing))
        if problem == "bug":
            raise RuntimeError(f"worker failed while {doing}\n{answer['traceback']}")
        raise WorkerProblem(problem, message, answer)


def out_of_memory(answer: Answer) -> bool:
    """Whether a problem is jax's or Python's way of saying that memory ran out."""
    error = answer.get("error") or {}
    text = f"{error.get('type', '')}: {error.get('message', '')}"
    return bool(re.match(r"MemoryError|.*RESOURCE_EXHAUSTED|.*Out of memory|.*ArrayMemoryError", text))


class WorkerProblem(Exception):
    """A failure in the user's code or inputs; the stage that asked knows which code it is."""

    def __init__(self, kind: str, message: str, data: Answer) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.data = data

    @property
    def error(self) -> Answer:
        """The user's exception as the worker described it, or an empty dict."""
        error: Answer = self.data.get("error") or {}
        return error


def error_span(error: Answer, prefer: Path | None = None) -> Span | None:
    """The deepest frame in user code, or the deepest one in the file `prefer`."""
    frames: Sequence[Sequence[Any]] = error.get("frames", ())
    if prefer is not None:
        for file, line, _ in reversed(frames):
            if Path(file) == prefer:
                return Span(str(file), int(line))
    if error.get("file"):
        return Span(str(error["file"]), int(error["line"] or 0))
    return None


def error_details(error: Answer) -> tuple[str, ...]:
    """The user's own traceback, line by line."""
    return tuple(line for block in error.get("traceback", ()) for line in block.rstrip().splitlines())
