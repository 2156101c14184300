"""Where the Jinja templates are: beside the package in a wheel, at the top of a checkout."""

from pathlib import Path


def templates_dir() -> Path:
    """Return the folder that holds the templates.

    Raises:
        FileNotFoundError: neither place holds it, so the installation is broken.
    """
    package = Path(__file__).resolve().parent
    candidates = (package / "templates", package.parents[1] / "templates")
    for folder in candidates:
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"no templates in {' or '.join(map(str, candidates))}: reinstall jax-pmap")
