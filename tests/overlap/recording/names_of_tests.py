"""A plugin of pytest that says to the recorder which test begins."""

from sitecustomize import RECORDER, current


def pytest_runtest_logstart(nodeid: str) -> None:
    current().write_text(nodeid)
    RECORDER.look()
