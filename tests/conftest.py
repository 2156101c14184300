"""What every test shares: where the repository is, a project to run the command in."""

from pathlib import Path

import pytest

pytest_plugins = ["project"]


@pytest.fixture(scope="session")
def repository() -> Path:
    """The top of the checkout."""
    return Path(__file__).resolve().parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--update-goldens`` writes what came out into the case files instead of comparing."""
    parser.addoption("--update-goldens", action="store_true", help="rewrite what the case files expect")


@pytest.fixture
def update_goldens(request: pytest.FixtureRequest) -> bool:
    """Whether case files are to be rewritten."""
    return bool(request.config.getoption("--update-goldens"))
