"""What this package is and where it lies: for every module that has to say so."""

from pathlib import Path

#: As in pyproject.toml; asking `importlib.metadata` takes longer than writing a file.
VERSION = "0.1.0"
#: The folder of the package.
PACKAGE = Path(__file__).parent
