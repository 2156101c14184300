"""What every test shares: where the repository is, a project to run the command in."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from fork_server import ForkServer

from jax_pmap import session

pytest_plugins = ["project"]

#: Tests that `make thorough` alone runs, by their ids; `make overlap` writes the file.
THOROUGH = frozenset(
    line
    for line in Path(__file__).with_name("thorough.txt").read_text().splitlines()
    if not line.startswith("#")
)
#: Those of them that are no test's, where all tests are collected.
UNKNOWN = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The top of the checkout."""
    return Path(__file__).resolve().parents[1]


def pytest_configure() -> None:
    """Take Ctrl-C also where a shell runs the tests in the background: all they start would ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark those that `make test` leaves out, and note those of them that are not there."""
    for item in items:
        if item.nodeid in THOROUGH:
            item.add_marker("thorough")
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        config.stash[UNKNOWN] = sorted(THOROUGH - {item.nodeid for item in items})


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--update-goldens`` writes what came out into the case files instead of comparing."""
    parser.addoption("--update-goldens", action="store_true", help="rewrite what the case files expect")


@pytest.fixture
def update_goldens(request: pytest.FixtureRequest) -> bool:
    """Whether case files are to be rewritten."""
    return bool(request.config.getoption("--update-goldens"))


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder for what a user keeps, in place of that of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """What sessions start their workers with."""
    server = ForkServer(tmp_path_factory.mktemp("forks"), Path(session.__file__).with_name("worker"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "subprocess", server)
        yield server
    server.close()


@pytest.fixture
def fresh_interpreters(fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each worker as users' are: as an interpreter of its own."""
    monkeypatch.setattr(fork_server, "fresh", True)
