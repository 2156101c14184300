"""The project: its root folder, and what `[tool.jax-pmap]` in its pyproject.toml sets."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from jax_pmap.model import Backend, Devices, Span, refused

PYPROJECT = "pyproject.toml"
TABLE = "tool.jax-pmap"
#: Longest time limit in seconds, and one more than the highest device id or count.
_LARGEST = 10**9


@dataclass(frozen=True, slots=True)
class CheckConfig:
    """``[tool.jax-pmap.check]``: what `jax-pmap check` does where the command line says nothing."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    #: Glob patterns of paths, from the project root, that are left out when a folder is checked.
    exclude: tuple[str, ...] = ()
    #: False: read only, as with ``--no-run``.
    run: bool = True


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """``[tool.jax-pmap.targets."FILE::FUNC"]``: options of one target, named as on the command line."""

    inputs: str | None = None
    arg: tuple[str, ...] = ()
    shard: tuple[str, ...] = ()
    replicate: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    donate: tuple[str, ...] = ()
    axis_name: str | None = None
    devices: Devices | None = None
    backend: Backend | None = None
    mesh: str | None = None
    spec: tuple[str, ...] | None = None
    fsdp: bool | None = None
    explicit: bool | None = None


@dataclass(frozen=True, slots=True)
class PathConfig:
    """``[tool.jax-pmap.paths."GLOB"]``: defaults for targets in files that the pattern fits."""

    axis_name: str | None = None
    devices: Devices | None = None
    backend: Backend | None = None
    timeout: float | None = None


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
    #: ``AXIS=N,...``, as `--mesh` takes it, ...
    mesh: str | None = None
    #: ... rules as `--spec` takes them, and whether large arrays are divided as with `--fsdp`.
    spec: tuple[str, ...] | None = None
    fsdp: bool | None = None
    #: Whether jit code has axes of jax's explicit mode.
    explicit: bool | None = None
    check: CheckConfig = CheckConfig()
    #: (target as written, its options), in the order of the file.
    targets: tuple[tuple[str, TargetConfig], ...] = ()
    #: (glob pattern, defaults), in the order of the file; a later one wins.
    paths: tuple[tuple[str, PathConfig], ...] = ()
    #: The project root, where the file names of targets start from.
    root: Path | None = field(default=None, compare=False)

    def for_target(self, target: str) -> tuple[Config, TargetConfig]:
        """The defaults for `target` as typed, those of its path put in, and the options of its own table.

        A bare name has the table of the one target that ends in it.

        Raises:
            RefusalError: JP018 where no table fits and one that is near to `target` names nothing.
        """
        named = [options for name, options in self.targets if name == target]
        if not named and "::" not in target and ":" not in target:
            named = [options for name, options in self.targets if re.split("::?", name)[-1] == target]
        if not named:
            self._check_misspelt(target)
        own = named[0] if len(named) == 1 else TargetConfig()
        config = self
        file = target.partition("::")[0]
        chosen = [options for pattern, options in self.paths if fnmatch.fnmatch(file, pattern)]
        for options in (*chosen, own):
            for name in _READERS:
                value = getattr(options, name, None)
                if value is not None:
                    config = dataclasses.replace(config, **{name: value})
        return config, own

    def _check_misspelt(self, target: str) -> None:
        """Refuse a table that was meant for `target`: it would be ignored in silence."""
        typed = _last(target)
        for name, _ in self.targets:
            files = "::" in target and "::" in name
            near = _near(typed, _last(name)) and (not files or _near(_file(target), _file(name)))
            if near and self.root is not None and not self._is_there(name, self.root):
                text = (self.root / PYPROJECT).read_text(encoding="utf-8-sig", errors="replace")
                _refuse(
                    text,
                    name,
                    f'`[{TABLE}.targets."{name}"]` in {PYPROJECT} names no function that is there, and it is '
                    f"near to `{target}`.",
                    f'Write the target as you type it: `[{TABLE}.targets."{target}"]`; or delete the table.',
                )

    def _is_there(self, name: str, root: Path) -> bool:
        """Whether the file of a table's target speaks of it, any file for a bare name; True for ``a.b:f``."""
        file, double, _ = name.partition("::")
        if not double and ":" in name:
            return True
        from jax_pmap.sources import TooManyFilesError, project_files, read_bytes

        word = re.compile(rf"\b{re.escape(_last(name))}\b".encode())
        try:
            found = (
                [folder / file for folder in (root, Path.cwd())] if double else project_files(root, (".py",))
            )
            return any(word.search(read_bytes(path) or b"") for path in found)
        except TooManyFilesError:
            return True


def _last(target: str) -> str:
    """The function's own name in a target as typed."""
    return re.split("::?", target)[-1].rpartition(".")[2]


def _file(target: str) -> str:
    return target.partition("::")[0]


def _near(one: str, other: str) -> bool:
    """Whether one is the other with a slip of the finger."""
    return sorted(one) == sorted(other) or difflib.SequenceMatcher(None, one, other).ratio() >= 0.75


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
        raise refused(
            "JP018",
            f"`{PYPROJECT}` cannot be read: {getattr(error, 'strerror', None) or error}.",
            f"Correct `{path.as_posix()}`; jax-pmap takes its defaults from `[{TABLE}]` there.",
            Span(PYPROJECT, int(line[1]) if line else 1),
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
    return Config(**_values(table, _READERS, TABLE, text), root=path.parent)


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


def _values(
    table: Mapping[str, Any], readers: Mapping[str, _Reader], where: str, text: str
) -> dict[str, Any]:
    """The values of a table by key; keys may be written with hyphens or underscores."""
    values: dict[str, Any] = {}
    for written, value in table.items():
        key = written.replace("-", "_")
        if key in _TABLES and where == TABLE:
            values[key] = _table(key, value, text)
            continue
        if key not in readers:
            names = [*readers, *(_TABLES if where == TABLE else ())]
            near = difflib.get_close_matches(key, names, n=1)
            known = ", ".join(f"`{_typed(name)}`" for name in names)
            _refuse(
                text,
                written,
                f"`{written}` is not a key of `[{where}]` in {PYPROJECT}.",
                f"Did you mean `{_typed(near[0])}`?" if near else f"The keys are {known}.",
            )
        if key in values:
            _refuse(
                text,
                written,
                f"`{_typed(key)}` and `{key}` are both set under `[{where}]` in {PYPROJECT}.",
                f"Keep `{_typed(key)}`.",
            )
        reader, expected = readers[key]
        values[key] = reader(value)
        if values[key] is None:
            _refuse(
                text,
                written,
                f"`{written}` under `[{where}]` in {PYPROJECT} is `{_short(value)}`, not {expected[0]}.",
                f"Write for instance `{_typed(key)} = {expected[1]}`.",
            )
    return values


def _table(key: str, value: object, text: str) -> Any:
    """The table `key` below ours: settings of `check`, or one table per target or pattern."""
    record, readers = _TABLES[key]
    where = f"{TABLE}.{key}"
    if not isinstance(value, dict):
        _refuse(text, key, f"`{where}` in {PYPROJECT} is not a table.", f"Write `[{where}]` above keys.")
    if key == "check":
        return record(**_values(value, readers, where, text))
    entries = []
    for name, options in value.items():
        inner = f'{where}."{name}"'
        if not isinstance(options, dict):
            _refuse(text, key, f"`{inner}` in {PYPROJECT} is not a table.", f"Write `[{inner}]` above keys.")
        entries.append((name, record(**_values(options, readers, inner, text))))
    return tuple(entries)


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


def _mesh(value: object) -> str | None:
    fits = isinstance(value, str) and re.fullmatch(r"\s*\w+\s*=\s*\d+\s*(,\s*\w+\s*=\s*\d+\s*)*", value)
    return str(value) if fits else None


def _timeout(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value <= _LARGEST else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _texts(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, list) or not all(isinstance(each, str) and each.strip() for each in value):
        return None
    return tuple(value)


def _codes(value: object) -> tuple[str, ...] | None:
    texts = _texts(value)
    if texts is None or not all(re.fullmatch(r"(?i)JP\d{0,3}", each) for each in texts):
        return None
    return tuple(each.upper() for each in texts)


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


#: Keys that arrange devices in several axes: as soon as one is given by hand, none of them counts.
MESH = ("mesh", "spec", "fsdp")
_Reader: TypeAlias = tuple[Callable[[object], Any], tuple[str, str]]

#: Key -> reader, (what it takes, an example as TOML).
_READERS: dict[str, _Reader] = {
    "python": (_python, ("the path of an interpreter or a virtual environment", '".venv"')),
    "axis_name": (_axis_name, ("an identifier", '"batch"')),
    "devices": (_devices, ("a device count or a list of different device ids", "4")),
    "backend": (_backend, (f"one of {', '.join(Backend)}", '"pmap"')),
    "timeout": (_timeout, ("a positive number of seconds", "600")),
    "mesh": (_mesh, ("axes with their sizes", '"data=4,model=2"')),
    "spec": (_texts, ("a list of PATHS=AXES rules", '[".*kernel=None,model"]')),
    "fsdp": (_flag, ("true or false", "true")),
    "explicit": (_flag, ("true or false", "true")),
}


_DEFAULTS = {key: _READERS[key] for key in ("axis_name", "devices", "backend", "timeout")}
_NAMES = (_texts, ("a list of argument names", '["x"]'))
_TABLES: dict[str, tuple[type, dict[str, _Reader]]] = {
    "check": (
        CheckConfig,
        {
            "select": (_codes, ("a list of codes", '["JP1"]')),
            "ignore": (_codes, ("a list of codes", '["JP113"]')),
            "exclude": (_texts, ("a list of glob patterns", '["vendor/*"]')),
            "run": (_flag, ("true or false", "false")),
        },
    ),
    "targets": (
        TargetConfig,
        {
            "inputs": (_text, ("FILE::callable or module:callable", '"train.py::make_inputs"')),
            "arg": (_texts, ("a list of NAME=SPEC texts", '["x=f32[24,8]"]')),
            **dict.fromkeys(("shard", "replicate", "static", "key", "donate"), _NAMES),
            **{name: _READERS[name] for name in ("axis_name", "devices", "backend", *MESH, "explicit")},
        },
    ),
    "paths": (PathConfig, _DEFAULTS),
}


def _refuse(text: str, key: str, reason: str, hint: str) -> NoReturn:
    raise refused("JP018", reason, hint, Span(PYPROJECT, _line_of(text, key)))


def _line_of(text: str, key: str) -> int:
    """Line on which `key` is set or `[tool.key]` opened; tomllib keeps no positions. 1 when in doubt."""
    name = rf"[\"']?{re.escape(key)}[\"']?"
    inside = False
    found = 1
    for number, line in enumerate(text.split("\n"), 1):
        header = re.match(r"\s*\[+\s*(.*?)\s*\]", line)
        if header:
            plain = header[1].replace('"', "").replace("'", "").replace(" ", "")
            inside = plain == TABLE or plain.startswith(f"{TABLE}.")
            if re.search(rf"\.\s*{name}(\s*\.|$)", header[1]):
                found = number
        elif inside and re.match(rf"\s*{name}\s*[=.]", line):
            return number
    return found
