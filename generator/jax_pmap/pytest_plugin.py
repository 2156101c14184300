"""The pytest plugin: ``@pytest.mark.devices(8)`` runs a test in a fresh process with simulated devices.

jax settles its devices when it starts, so a test cannot ask for another number in a process where it already
runs. Each marked test is run by a pytest of its own, and its reports are handed on as if it had run here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

#: In the environment of the process that runs one marked test: where its reports go.
REPORTS = "JAX_PMAP_PYTEST_REPORTS"
#: Lines of what a crashed process printed last.
_TAIL = 40


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers", "devices(count): run the test in a fresh process with `count` simulated jax devices"
    )


def _count(item: pytest.Item) -> int | None:
    """The devices that `item` asks for, None where it does not ask.

    Raises:
        ValueError: for a marker that names no number of devices.
    """
    marker = item.get_closest_marker("devices")
    if marker is None:
        return None
    values = (*marker.args, *marker.kwargs.values())
    if len(values) == 1 and type(values[0]) is int and values[0] > 0:
        return values[0]
    given = ", ".join(
        (*map(repr, marker.args), *(f"{name}={value!r}" for name, value in marker.kwargs.items()))
    )
    raise ValueError(
        f"`@pytest.mark.devices` takes one positive number, such as devices(8); here it is devices({given})"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Run a marked test in a process of its own and hand its reports on."""
    if os.environ.get(REPORTS):
        return None
    try:
        count = _count(item)
    except ValueError as error:
        reports = [_failed(item, str(error))]  # the other tests run
    else:
        if count is None:
            return None
        reports = _reports(item, count)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In the process of one test: keep its reports for the process that started it."""
    path = os.environ.get(REPORTS)
    if path and _CONFIG:
        data = _CONFIG[0].hook.pytest_report_to_serializable(config=_CONFIG[0], report=report)
        with Path(path).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(data) + "\n")


_CONFIG: list[pytest.Config] = []


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remember the configuration, which the hook for reports is not given."""
    _CONFIG[:] = [session.config]


def _reports(item: pytest.Item, count: int) -> list[Any]:
    config = item.config
    with tempfile.TemporaryDirectory(prefix="jax-pmap-") as folder:
        reports = Path(folder) / "reports"
        command = [sys.executable, "-m", "pytest", item.nodeid, "-q", "--rootdir", str(config.rootpath)]
        if config.inipath is not None:
            command += ["-c", str(config.inipath)]
        if config.pluginmanager.hasplugin("xdist"):
            command += ["-n", "0"]
        command += ["-p", "no:cacheprovider"]
        process = subprocess.Popen(
            command,
            cwd=config.rootpath,
            env={**_environment(os.environ, count), REPORTS: str(reports)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            printed, _ = process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
        lines = reports.read_text(encoding="utf-8").splitlines() if reports.is_file() else []
    found = [_report(config, json.loads(line)) for line in lines]
    if any(report.when == "teardown" for report in found):
        return found
    return [*found, _crashed(item, process.returncode, printed.decode("utf-8", "replace"))]


def _report(config: pytest.Config, data: dict[str, Any]) -> Any:
    """A report as pytest wrote it; JSON makes lists of what pytest wants as tuples."""
    report = config.hook.pytest_report_from_serializable(config=config, data=data)
    report.location = tuple(report.location)
    if isinstance(report.longrepr, list):
        report.longrepr = tuple(report.longrepr)
    return report


def _crashed(item: pytest.Item, code: int, printed: str) -> pytest.TestReport:
    """The report of a process that ended before its test did."""
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
    tail = "\n".join(printed.rstrip().splitlines()[-_TAIL:])
    return _failed(item, f"the process with the simulated devices {how}\n{tail}")


def _failed(item: pytest.Item, why: str) -> pytest.TestReport:
    """The report of a test that could not be run."""
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="failed",
        longrepr=why,
        when="call",
    )


def _environment(base: Mapping[str, str], count: int) -> dict[str, str]:
    """The environment of a test with `count` simulated devices."""
    from jax_pmap.session import with_simulated

    environment = with_simulated(base, count)
    # What pytest and its plugins left for this process is not for another one.
    for name in ("PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        environment.pop(name, None)
    return environment
