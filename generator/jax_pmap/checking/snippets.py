"""Pages whose blocks are run: on simulated devices, under the user's interpreter, one process per page."""

from __future__ import annotations

import ast
import builtins
import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax_pmap.checking.cache import Cache, digest
from jax_pmap.checking.environment import file_digests, machine_digest, unchanged
from jax_pmap.checking.findings import Finding
from jax_pmap.checking.module import Module
from jax_pmap.checking.pages import Block, blocks_of
from jax_pmap.checking.static import check_text
from jax_pmap.config import project_root, read_config
from jax_pmap.home import Home
from jax_pmap.interpreter import find_interpreter
from jax_pmap.locating.paths import import_name
from jax_pmap.model import RefusalError, Say, Span
from jax_pmap.sources import parse
from jax_pmap.threads import at_once
from jax_pmap.version import PACKAGE

#: Simulated devices where a page asks for no other number.
DEVICES = 8
#: Names that pages use without importing them again, and how they are imported.
KNOWN = {
    "jax": "import jax",
    "jnp": "import jax.numpy as jnp",
    "np": "import numpy as np",
    "lax": "from jax import lax",
    "random": "from jax import random",
    "functools": "import functools",
    "partial": "from functools import partial",
    "optax": "import optax",
    "nn": "from flax import linen as nn",
    "nnx": "from flax import nnx",
    "eqx": "import equinox as eqx",
    "Mesh": "from jax.sharding import Mesh",
    "NamedSharding": "from jax.sharding import NamedSharding",
    "PartitionSpec": "from jax.sharding import PartitionSpec",
    "P": "from jax.sharding import PartitionSpec as P",
}
#: What makes a page one about parallel code, so that it is run although nobody named it.
_PARALLEL = re.compile(r"\bpmap\b|shard_map|jax-pmap:|\bp(?:sum|mean|max|min)\b|NamedSharding|make_mesh")
_RUNNER = PACKAGE / "worker" / "snippets.py"
_WRONG_SIZE = re.compile(
    r"requires (\d+) logical devices|mapped axis|axis sizes|number of devices|divisible|partitioned \d+ times"
)


@dataclass(frozen=True, slots=True)
class Page:
    """A page to look at."""

    path: Path
    shown: str
    text: str
    #: True where the user named this very file.
    named: bool
    run: bool
    python: Path | None
    timeout: float


def check_pages(pages: list[Page], cache: Cache, say: Say) -> list[list[Finding]]:
    """What is wrong with every page, in the order of `pages`."""

    def one(page: Page) -> list[Finding]:
        say(f"reading: {page.shown}")
        try:
            return _check(page, cache, say)
        except RefusalError as error:
            refusal = error.refusal
            return [Finding(refusal.code, refusal.reason, refusal.hint, Span(page.shown, 1))]

    return at_once(one, pages)


def _check(page: Page, cache: Cache, say: Say) -> list[Finding]:
    blocks, bad = blocks_of(page.text, page.path.suffix)
    found = [_bad_marker(page, each.text, each.line) for each in bad]
    runnable = [block for block in blocks if not block.skip]
    about = "\n".join(block.code for block in blocks)
    is_about = page.path.suffix == ".py" or _PARALLEL.search(about + _markers(page.text))
    # A page about other things may leave out what it likes.
    whole = bool(page.named or bad or is_about)
    static = [] if page.path.suffix == ".py" else _static(page, blocks, whole)
    if not page.run or not runnable or not whole:
        return [*found, *static]
    directory = project_root(page.path.parent)
    interpreter = find_interpreter(page.python, directory, read_config(directory).python)
    key = digest("page", str(page.path), page.text, machine_digest(interpreter.path))
    kept = cache.get(key)
    if kept is not None and unchanged(kept["files"]):
        told = kept["found"]
    else:
        say(f"running: {page.shown}")
        told, files, complete = _run(page, runnable, interpreter.path)
        if complete:
            cache.put(key, {"found": told, "files": file_digests(files)})
    ran = [_finding(page, each) for each in told if not _is_explained(each, static)]
    return [*found, *static, *ran]


def _markers(text: str) -> str:
    return "jax-pmap:" if re.search(r"(?:<!--|^\s*\.\.)\s*jax-pmap:", text, re.MULTILINE) else ""


def _static(page: Page, blocks: list[Block], whole: bool) -> list[Finding]:
    """The rules over all blocks as one module in which every line is where the page has it.

    Names that nothing defines are reported of a page that should be `whole`.
    """
    lines = [""] * len(page.text.splitlines())
    indents = [0] * len(lines)
    for block in blocks:
        if block.kind != "python" or block.skip or block.expect_error is not None:
            continue
        if any(finding.code == "JP005" for finding in check_text(block.code, page.shown)):
            continue  # running it says so
        for number, line in enumerate(block.code.splitlines(), block.line - 1):
            if number < len(lines):
                lines[number], indents[number] = line, block.indent
    text = "\n".join(lines) + "\n"
    if not text.strip():
        return []
    module = Module(text, page.shown, parse(text, page.shown))
    missing = _undefined(module)
    # What everybody imports and the page forgot is known for what it is; its first line is never code.
    lines[0] = "; ".join(KNOWN[name] for name in sorted(missing.keys() & KNOWN.keys()))
    found = check_text("\n".join(lines) + "\n", page.shown)
    found += [
        module.finding(
            "JP160",
            node,
            f"`{name}` is used in a function and defined nowhere on this page",
            f"Define `{name}` in this block or in one before it",
        )
        for name, node in missing.items()
        if whole and name not in KNOWN and module.enclosing_function(node) is not None
    ]
    return [
        dataclasses.replace(finding, edits=(), span=_moved(finding.span, indents))
        for finding in found
        if finding.code != "JP005"
    ]


def _undefined(module: Module) -> dict[str, ast.Name]:
    """Names that are read and that nothing on the page, and no builtin, binds."""
    stars = any(isinstance(n, ast.ImportFrom) and n.names[0].name == "*" for n in module.nodes)
    names = [n for n in module.nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    found: dict[str, ast.Name] = {}
    for node in [] if stars else names:
        bound = module.bindings(node) is not None or hasattr(builtins, node.id)
        if not bound and not node.id.startswith("__"):
            found.setdefault(node.id, node)
    return found


def _moved(span: Span, indents: list[int]) -> Span:
    indent = indents[span.line - 1] if 0 < span.line <= len(indents) else 0
    return dataclasses.replace(span, column=span.column + indent, end_column=span.end_column + indent)


def _is_explained(told: dict[str, Any], static: list[Finding]) -> bool:
    """Whether a rule has already said what is wrong with the statement."""
    return told["what"] == "error" and any(
        told["line"] <= finding.span.line <= told["end_line"] for finding in static
    )


# --- running ------------------------------------------------------------------------------


def _run(page: Page, blocks: list[Block], python: Path) -> tuple[list[dict[str, Any]], list[str], bool]:
    """What the blocks did, the project's files they imported, and whether all of them ran."""
    groups: list[tuple[int, list[Block]]] = [(DEVICES, [])]
    for block in blocks:
        if block.devices is not None and block.devices != groups[-1][0]:
            groups.append((block.devices, []))
        groups[-1][1].append(block)
    told: list[dict[str, Any]] = []
    files: set[str] = set()
    complete = True
    with Home() as home:
        for devices, group in groups:
            if not group:
                continue
            answer = _run_group(page, group, devices, python, Path(home))
            complete = complete and "found" in answer
            told += answer.get("found", [])
            told += answer.get("problems", [])
            files |= set(answer.get("files", []))
        used = {file for file in files if _is_ours(file) and not file.startswith(home)}
    return told, sorted(used), complete


def _is_ours(file: str) -> bool:
    from jax_pmap.worker.origins import is_users

    return is_users(file)


def _run_group(page: Page, blocks: list[Block], devices: int, python: Path, home: Path) -> dict[str, Any]:
    from jax_pmap.session import worker_environment

    folder = home / f"run{devices}"
    folder.mkdir(exist_ok=True)
    request = home / "request.json"
    project, start = project_root(page.path.parent), import_name(page.path)[1]
    document = {
        "path": str(page.path),
        "lines": page.text.splitlines(),
        "module": page.path.suffix == ".py",
        # Nothing inside a package: a module of it is not the one of Python's that has its name.
        "sys_path": [str(folder), str(start), str(project), str(project / "src")],
        "known": KNOWN,
        "blocks": [dataclasses.asdict(block) for block in blocks],
    }
    request.write_text(json.dumps(document), encoding="utf-8")
    answer = request.with_name("request.json.answer")
    answer.unlink(missing_ok=True)
    process = subprocess.Popen(
        [str(python), str(_RUNNER), str(request)],
        cwd=folder,
        env=worker_environment(os.environ, devices, str(home)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        _, errors = process.communicate(timeout=page.timeout)
    except subprocess.TimeoutExpired:
        why = f"the page did not end within {page.timeout:g} s"
        return {"problems": [_problem(blocks[0].line, "TimeoutError", why)]}
    finally:
        # The group outlives its first process while the page's own children are in it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    if not answer.is_file():
        last = (errors.decode("utf-8", "replace").strip().splitlines() or [""])[-1]
        why = f"the process that ran the page exited with code {process.returncode}: {last}".rstrip(": ")
        return {"problems": [_problem(blocks[0].line, "SystemExit", why)]}
    result: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    if "no_jax" in result:
        from jax_pmap.model import refused

        raise refused(
            "JP009",
            f"`{python}` cannot run the blocks: {result['no_jax']}",
            "Name the Python your code runs under, with jax installed: --python PATH",
            None,
        )
    if "no_module" in result:
        return {"problems": [_problem(blocks[0].line, "ImportError", result["no_module"])]}
    return result


def _problem(line: int, kind: str, message: str) -> dict[str, Any]:
    return {
        "what": "error",
        "line": line,
        "end_line": line,
        "type": kind,
        "message": message,
        "name": "",
        "trace": [],
    }


# --- what to say --------------------------------------------------------------------------


def _bad_marker(page: Page, text: str, line: int) -> Finding:
    return Finding(
        "JP160",
        f"the marker `jax-pmap: {text}` before this block cannot be read",
        "Write `skip`, `devices=4`, `expect-error`, `expect-error TypeError`, `output` or `file=NAME.py`",
        Span(page.shown, line),
    )


def _finding(page: Page, told: dict[str, Any]) -> Finding:
    what, span = told["what"], Span(page.shown, told.get("at") or told["line"])
    if what == "import":
        return Finding(
            "JP160",
            f"`{told['name']}` is used before it is imported",
            f"Put `{told['statement']}` into this block, or into one before it",
            span,
        )
    if what == "error":
        details = ("".join(told["trace"]),) if len(told["trace"]) > 1 else ()
        message = f"this block fails: {told['type']}: {told['message']}"
        return Finding("JP160", message, _cure(told), span, (), details)
    if what == "output":
        details = (f"shown:\n{_indented(told['want'])}\nprinted:\n{_indented(told['got'])}",)
        return Finding(
            "JP161",
            "the page shows another output than the block prints",
            "Show what is printed",
            span,
            (),
            details,
        )
    want = f"`{told['want']}`" if told["want"] else "an error"
    if what == "no-error":
        return Finding("JP162", f"this block is to raise {want}, and it runs", "Take out the marker", span)
    return Finding(
        "JP162",
        f"this block is to raise {want}, and it raises {told['got']}",
        "Name that error in the marker",
        span,
    )


def _cure(told: dict[str, Any]) -> str:
    if told["type"] in ("ModuleNotFoundError", "ImportError") and told["name"]:
        return (
            f"Install `{told['name']}` in the environment the pages are run in, or mark the block: "
            "`<!-- jax-pmap: skip -->`"
        )
    if told["type"] == "NameError" and told["name"]:
        return f"Define `{told['name']}` in this block or in one before it"
    if _WRONG_SIZE.search(told["message"]):
        return (
            f"Pages run on {DEVICES} simulated devices: write the size with `jax.local_device_count()`, or "
            "mark the "
            "block with the number it is for: `<!-- jax-pmap: devices=4 -->`"
        )
    return "Mend the block; where it is to fail, mark it: `<!-- jax-pmap: expect-error -->`"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.rstrip().splitlines()[:12]) or "  (nothing)"
