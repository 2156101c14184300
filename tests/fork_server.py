"""Workers that are forked from a process in which jax is imported: half of what a short command costs.

A forked worker is a process of its own in which nothing of a user's has run, and no device has been made: it
runs `boot.py` as a new interpreter would. What it does not do is start that interpreter, so tests of how one
starts, of what a worker's memory is and of what it leaves behind ask for the fixture `fresh_interpreters`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import runpy
import select
import socket
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

#: Variables that differ from worker to worker, and that nothing but `become_worker` reads before it serves.
OWN = frozenset({"TMPDIR", "PYTEST_CURRENT_TEST", "XLA_FLAGS", "JAX_NUM_CPU_DEVICES"})
#: Processes that are kept to be forked, each for the workers of one environment.
KEPT = 3


class Forked:
    """What a session uses of a `subprocess.Popen`, for a process that another one forked."""

    def __init__(self, pid: int, status: int, stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        #: Has the exit status once the process has ended. It stays open as long as a thread may wait for it.
        self._status = status
        self._told = threading.Lock()
        weakref.finalize(self, os.close, status)

    def wait(self, timeout: float | None = None) -> int:
        """Raises: subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a forked worker", timeout or 0)
            with self._told:  # To one of the threads that wait.
                if self.returncode is None:
                    self.returncode = int(os.read(self._status, 16) or b"-9")
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode


class Server:
    """A process that has imported jax, and forks."""

    def __init__(self, program: Path, worker: Path, environment: dict[str, str]) -> None:
        self._workers: list[Forked] = []
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-u", str(program), str(theirs.fileno()), str(worker)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=environment,
            )

    def fork(self, command: Sequence[str], folder: str, environment: dict[str, str]) -> Forked:
        output, out = os.pipe()
        status, ended = os.pipe()
        request = json.dumps([command[2], folder, environment]).encode()
        try:
            socket.send_fds(self._channel, [request], [out, ended, *map(int, command[3:])])
        finally:
            os.close(out)
            os.close(ended)
        pid = int(self._channel.recv(16))
        self._workers.append(Forked(pid, status, open(output, "rb", buffering=0)))  # noqa: SIM115, PTH123
        return self._workers[-1]

    def living(self) -> list[int]:
        """Those that have not been waited for; the end of this process would be theirs."""
        self._workers = [worker for worker in self._workers if worker.returncode is None]
        return [worker.pid for worker in self._workers]

    def close(self) -> None:
        self._channel.close()
        self._process.wait()


class ForkServer:
    """Stands for the module `subprocess` where sessions start their workers."""

    def __init__(self, folder: Path, worker: Path) -> None:
        import py_compile  # Here alone: a worker has no module that `boot.py` does not bring.

        #: The folder of `boot.py`.
        self._worker = worker
        # Its frames are at the bottom of a worker's stack, where others would be taken for the user's.
        self._program = folder / "fork_server.pyc"
        py_compile.compile(__file__, str(self._program), str(worker / "boot.py"), doraise=True)
        #: Whether to start interpreters all the same.
        self.fresh = False
        #: Workers, forked or not, that were started so far.
        self.started = 0
        self._servers: dict[str, Server] = {}
        #: `check` and `verify` start workers from several threads.
        self._one_by_one = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def Popen(self, command: Sequence[str], **how: Any) -> Any:  # noqa: N802 (its name there)
        """A worker: forked, if the interpreter is the one that runs the tests."""
        with self._one_by_one:
            return self._start(command, how)

    def _start(self, command: Sequence[str], how: dict[str, Any]) -> Any:
        self.started += 1
        if self.fresh or command[0] != sys.executable or not hasattr(os, "pidfd_open"):
            return subprocess.Popen(command, **how)
        for other in [key for key, server in self._servers.items() if not server.living()][:-KEPT]:
            self._servers.pop(other).close()
        environment = how["env"]
        shared = {name: environment[name] for name in sorted(environment.keys() - OWN)}
        key = json.dumps(shared)
        server = self._servers.pop(key, None) or Server(self._program, self._worker, shared)
        self._servers[key] = server
        return server.fork(command, str(how["cwd"]), environment)

    def living(self) -> list[int]:
        """The forked processes that have not been waited for."""
        return [pid for server in self._servers.values() for pid in server.living()]

    def close(self) -> None:
        for server in self._servers.values():
            server.close()


def serve(channel: socket.socket) -> None:
    """Fork a worker for each request, and tell how each ended, until the other end closes."""
    gc.freeze()
    ended: dict[int, tuple[int, int]] = {}
    while True:
        for ready in select.select([channel, *ended], [], [])[0]:
            if ready is not channel:
                pid, status = ended.pop(ready)
                os.close(ready)
                os.write(status, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
                os.close(status)
                continue
            request, descriptors, _, _ = socket.recv_fds(channel, 1 << 20, 8)
            if not request:
                return
            out, status, *given = descriptors
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # The other thread is of OpenBLAS.
                pid = os.fork()
            if pid == 0:
                for other in (status, *ended, *(each for _, each in ended.values())):
                    os.close(other)
                become_worker(channel, out, given, *json.loads(request))
            for each in (out, *given):
                os.close(each)
            ended[os.pidfd_open(pid)] = pid, status


def become_worker(
    channel: socket.socket, out: int, given: list[int], boot: str, folder: str, environment: dict[str, str]
) -> None:
    """Be what `subprocess` makes of the arguments of `Session`; does not return."""
    try:
        os.setsid()
        channel.send(str(os.getpid()).encode())  # It has a group of its own, which can be ended.
        channel.close()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for stream, descriptor in enumerate((nothing, out, out)):
            os.dup2(descriptor, stream)
        os.close(nothing)
        os.close(out)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.modules["jax"].config.update("jax_num_cpu_devices", int(environment["JAX_NUM_CPU_DEVICES"]))
        sys.modules["numpy"].random.seed()  # Not the numbers of every other one.
        sys.argv[:] = [boot, *map(str, given)]
        runpy.run_path(boot, run_name="__main__")
    finally:
        os._exit(1)


def preload(folder: Path) -> None:
    """Import the modules of the worker, under the name that `boot.py` gives their package."""
    name = "_jax_pmap_worker"
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    importlib.import_module(f"{name}.methods")


if __name__ == "__main__":
    del sys.path[0]
    preload(Path(sys.argv[2]))
    with socket.socket(fileno=int(sys.argv[1])) as end:
        serve(end)
