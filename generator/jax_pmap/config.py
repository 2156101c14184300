"""The project: its root folder, and what `[tool.jax-pmap]` in its pyproject.toml sets."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from jax_pmap.model import Backend, Devices, Refusal, RefusalError, Span

PYPROJECT = "pyproject.toml"
TABLE = "tool.jax-pmap"
#: Longest time limit in seconds, and one more than the highest device id or count.
_LARGEST = 10**9


@dataclass(frozen=True, slots=True)
class Config:
    """Defaults of a project; None where pyproject.toml says nothing. Options on the command line win."""

    #: Interpreter or virtual environment of the user's code, relative to the project root.
    python: str | None = None
    axis_name: str | None = None
    devices: Devices | None = None
    backend: Backend | None = None
    #: Seconds.
    timeout: float | None = None


def project_root(directory: Path) -> Path:
    """The nearest folder from `directory` upwards that holds pyproject.toml or .git, else `directory`."""
    directory = directory.absolute()
    for folder in (directory, *directory.parents):
        if is_project_root(folder):
            return folder
    return directory


def is_project_root(folder: Path) -> bool:
    """Whether `folder` holds pyproject.toml or .git."""
    return (folder / PYPROJECT).is_file() or (folder / ".git").exists()


def read_config(directory: Path) -> Config:
    """Read the configuration of the project that `directory` belongs to.

    Raises:
        RefusalError: JP018 for a pyproject.toml that cannot be read, an unknown key (the nearest known one
            is named) or a value of the wrong type.
    """
    path = project_root(directory) / PYPROJECT
    try:
        text = path.read_bytes().decode("utf-8-sig")
        document = tomllib.loads(text)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return Config()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        line = re.search(r"at line (\d+)", str(error))
        raise RefusalError(
            Refusal(
                "JP018",
                f"`{PYPROJECT}` cannot be read: {getattr(error, 'strerror', None) or error}.",
                f"Correct `{path.as_posix()}`; jax-pmap takes its defaults from `[{TABLE}]` there.",
                Span(PYPROJECT, int(line[1]) if line else 1),
            )
        ) from error
    tools = document.get("tool")
    if not isinstance(tools, dict):
        return Config()
    _check_table_name(tools, text)
    table = tools.get("jax-pmap", {})
    if not isinstance(table, dict):
        _refuse(
            text, "jax-pmap", f"`{TABLE}` in {PYPROJECT} is not a table.", f"Write `[{TABLE}]` above keys."
        )
    return _config(table, text)


def _check_table_name(tools: Mapping[str, Any], text: str) -> None:
    """A table under a misspelt name would be ignored in silence."""
    for name in tools:
        if name != "jax-pmap" and re.sub(r"[-_.]", "", name).lower() == "jaxpmap":
            _refuse(
                text,
                name,
                f"`[tool.{name}]` in {PYPROJECT} is not read by anybody.",
                f"Call it `[{TABLE}]`.",
            )


def _config(table: Mapping[str, Any], text: str) -> Config:
    values: dict[str, Any] = {}
    for written, value in table.items():
        key = written.replace("-", "_")
        if key not in _READERS:
            near = difflib.get_close_matches(key, _READERS, n=1)
            known = ", ".join(f"`{_typed(name)}`" for name in _READERS)
            _refuse(
                text,
                written,
                f"`{written}` is not a key of `[{TABLE}]` in {PYPROJECT}.",
                f"Did you mean `{_typed(near[0])}`?" if near else f"The keys are {known}.",
            )
        if key in values:
            _refuse(
                text,
                written,
                f"`{_typed(key)}` and `{key}` are both set under `[{TABLE}]` in {PYPROJECT}.",
                f"Keep `{_typed(key)}`.",
            )
        reader, expected = _READERS[key]
        values[key] = reader(value)
        if values[key] is None:
            _refuse(
                text,
                written,
                f"`{written}` under `[{TABLE}]` in {PYPROJECT} is `{_short(value)}`, not {expected[0]}.",
                f"Write for instance `{_typed(key)} = {expected[1]}`.",
            )
    return Config(**values)


def _typed(key: str) -> str:
    return key.replace("_", "-")


def _short(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# --- one reader per key: the value, or None when it cannot be one ------------------------


def _python(value: object) -> str | None:
    return value if isinstance(value, str) and value.strip() and "\0" not in value else None


def _axis_name(value: object) -> str | None:
    return value if isinstance(value, str) and value.isidentifier() else None


def _devices(value: object) -> Devices | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return Devices(count=value) if 0 < value < _LARGEST else None
    if not isinstance(value, list) or not value:
        return None
    ids = tuple(n for n in value if isinstance(n, int) and not isinstance(n, bool) and 0 <= n < _LARGEST)
    return Devices(ids=ids) if len(set(ids)) == len(value) else None


def _backend(value: object) -> Backend | None:
    return Backend(value) if isinstance(value, str) and value in tuple(Backend) else None


def _timeout(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value <= _LARGEST else None


#: Key -> reader, (what it takes, an example as TOML).
_READERS: dict[str, tuple[Callable[[object], Any], tuple[str, str]]] = {
    "python": (_python, ("the path of an interpreter or a virtual environment", '".venv"')),
    "axis_name": (_axis_name, ("an identifier", '"batch"')),
    "devices": (_devices, ("a device count or a list of different device ids", "4")),
    "backend": (_backend, (f"one of {', '.join(Backend)}", '"pmap"')),
    "timeout": (_timeout, ("a positive number of seconds", "600")),
}


def _refuse(text: str, key: str, reason: str, hint: str) -> NoReturn:
    raise RefusalError(Refusal("JP018", reason, hint, Span(PYPROJECT, _line_of(text, key))))


def _line_of(text: str, key: str) -> int:
    """Line on which `key` is set or `[tool.key]` opened; tomllib keeps no positions. 1 when in doubt."""
    name = rf"[\"']?{re.escape(key)}[\"']?"
    inside = False
    found = 1
    for number, line in enumerate(text.split("\n"), 1):
        header = re.match(r"\s*\[+\s*(.*?)\s*\]", line)
        if header:
            inside = header[1].replace('"', "").replace("'", "").replace(" ", "") == TABLE
            if re.search(rf"\.\s*{name}(\s*\.|$)", header[1]):
                found = number
        elif inside and re.match(rf"\s*{name}\s*[=.]", line):
            return number
    return found
