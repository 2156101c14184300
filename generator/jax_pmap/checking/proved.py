"""The proof of a patch, kept for the moment when somebody says yes to it.

`gen --diff` keeps what it proved, and the same question without `--diff` takes it, as long as nothing changed
that it depends on: the files that were imported or read, the options, the tool, the packages of the
interpreter and the environment's variables. What else a program reads (the clock, a folder's list, what a
library opens by itself) is not seen, so an answer is kept for an hour alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import time
from pathlib import Path
from typing import Any

from jax_pmap.checking.cache import FOLDER, Cache, digest
from jax_pmap.checking.environment import file_digests, machine_digest, unchanged
from jax_pmap.config import PYPROJECT, project_root
from jax_pmap.interpreter import interpreter_of
from jax_pmap.model import Backend, Generated, Refusal, RefusalError, Request, Say

#: Seconds an answer is kept.
KEPT = 3600.0
_NAME = "proved-{}.json"


def generate_or_recall(request: Request, say: Say, *, keep: bool) -> tuple[Generated | Refusal, float | None]:
    """The answer of `generate`, and how many seconds ago it was proved, None where it was proved now.

    Args:
        request: the question; see `Request`.
        say: told in a line what is going on.
        keep: whether to keep the answer for the next time this is asked.
    """
    from jax_pmap.pipeline import generate

    root = project_root(request.directory)
    kept_before = any((root / FOLDER).glob(_NAME.format("*")))
    key = _key(request) if keep or kept_before else None
    if key is None:
        return generate(request, say), None
    cache = Cache(root, _NAME.format(key))
    with contextlib.suppress(KeyError, TypeError, ValueError, RefusalError):
        kept = cache.get(key)
        age = time.time() - kept["made"] if kept is not None else KEPT
        if kept is not None and 0 <= age < KEPT and unchanged(kept["files"]):
            return _recalled(kept, request), age
    # What is imported now is what is proved, whatever is saved in an editor meanwhile.
    started = time.time()
    result = generate(request, say)
    if keep and isinstance(result, Generated):
        with contextlib.suppress(RefusalError):  # the function is gone by now
            files = _files(request, result)
            if all(_older(file, started) for file in files):
                cache.put(key, _kept(result, files))
                cache.save()
                _remove_old(root)
    return result, None


def _key(request: Request) -> str | None:
    """What is asked, of whom; None where that cannot be told, which `generate` then says."""
    try:
        python, environment = interpreter_of(request)
    except RefusalError:
        return None
    asked = [f"{field.name}={getattr(request, field.name)!r}" for field in dataclasses.fields(request)]
    return digest(*asked, machine_digest(python, environment))


def _files(request: Request, result: Generated) -> list[str]:
    """Files of the user's that the answer depends on, there or not."""
    from jax_pmap.checking.generated import users
    from jax_pmap.locate import locate

    # What is cut out of a module that cannot be imported is not among the imported files.
    paths = [locate(request.target, request.directory).path]
    named = shlex.split(request.run) if request.run else []
    named += [str(request.plan)] if request.plan else []
    named += [request.inputs.partition("::")[0]] if request.inputs else []
    paths += [request.directory / name for name in named if "\0" not in name]
    settings = project_root(request.directory) / PYPROJECT
    return sorted({*users(result.files), str(settings), *(str(path) for path in paths if path.is_file())})


def _older(file: str, moment: float) -> bool:
    try:
        return Path(file).stat().st_mtime < moment
    except OSError:
        return True


def _kept(result: Generated, files: list[str]) -> dict[str, Any]:
    from jax_pmap.report.as_json import evidence_to_dict, listings_to_list, plan_to_dict

    return {
        "made": time.time(),
        "files": file_digests(files),
        "code": result.code,
        "plan": plan_to_dict(result.plan),
        "backend": str(result.backend),
        "evidence": evidence_to_dict(result.evidence),
        "listings": listings_to_list(result.listings),
    }


def _recalled(kept: dict[str, Any], request: Request) -> Generated:
    from jax_pmap.locate import locate
    from jax_pmap.report.as_json import evidence_from_dict, listings_from_list, plan_from_dict

    edited = locate(request.target, request.directory) if request.in_place else None
    plan, evidence = plan_from_dict(kept["plan"]), evidence_from_dict(kept["evidence"])
    listings = listings_from_list(kept["listings"])
    return Generated(kept["code"], plan, Backend(kept["backend"]), evidence, edited, listings=listings)


def _remove_old(root: Path) -> None:
    """Remove what is kept no longer."""
    with contextlib.suppress(OSError):
        for path in (root / FOLDER).glob(_NAME.format("*")):
            if path.stat().st_mtime < time.time() - KEPT:
                path.unlink(missing_ok=True)
