"""A forked worker is to the user's code what an interpreter of its own is."""

from __future__ import annotations

import json
import sys

import pytest
from fork_server import OWN, ForkServer
from project import Project

LOOKS_AROUND = """
    import json, os, signal, sys, threading, traceback

    def target(descriptor):
        try:
            return os.readlink(f"/proc/self/fd/{descriptor}").partition(":")[0].partition("#")[0]
        except OSError:  # that of the listing
            return ""

    seen = {
        "modules": sorted(sys.modules),
        "main": sys.modules["__main__"].__file__,
        "environment": dict(os.environ),
        "path": sys.path,
        "argv": sys.argv,
        "folder": os.getcwd(),
        "leads": (os.getpid() == os.getpgrp(), os.getpid() == os.getsid(0)),
        "signals": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "descriptors": sorted(map(target, os.listdir("/proc/self/fd"))),
        "threads": threading.active_count(),
        "below": sorted({frame.filename for frame in traceback.extract_stack()[:-1]}),
    }
    with open("seen.json", "w") as file:
        json.dump(seen, file)


    def double(x):
        return 2 * x
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_forked_worker_is_as_good_as_new(
    project: Project, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("looks.py", LOOKS_AROUND)
    seen = []
    for fresh in (True, False, False):
        monkeypatch.setattr(fork_server, "fresh", fresh)
        made = project.run("plan", "looks.py::double", "--arg", "x=f32[24]")
        assert (made.exit_code, made.workers) == (0, 1), made.stderr
        seen.append(json.loads((project.folder / "seen.json").read_text()))
        for own in OWN - {"JAX_NUM_CPU_DEVICES"}:
            seen[-1]["environment"].pop(own, None)
        seen[-1]["below"] = [file for file in seen[-1]["below"] if not file.startswith("<frozen")]
    assert seen[0] == seen[1] == seen[2]
