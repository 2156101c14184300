"""The official schema of SARIF 2.1.0, from the package on npm that carries it."""

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

PACKAGE = "@microsoft/jest-sarif@1.0.0-beta.0"
MEMBER = "package/lib/schemas/sarif-2.1.0-rtm.5.json"
SHA256 = "2d99159ae54a3eea97f81781cff48780548657c35949f4b7f25e99a2ba4de4f8"
KEPT = Path(__file__).parents[1] / "build" / f"sarif-{SHA256[:16]}.json"


def official_schema(folder: Path) -> dict[str, Any]:
    """The schema, downloaded once into ``build/``; the test is skipped where npm has none."""
    if not KEPT.exists():
        text = _download(folder)
        KEPT.parent.mkdir(exist_ok=True)
        own = KEPT.with_suffix(f".{os.getpid()}")
        own.write_bytes(text)
        own.replace(KEPT)
    text = KEPT.read_bytes()
    assert hashlib.sha256(text).hexdigest() == SHA256
    return json.loads(text)


def _download(folder: Path) -> bytes:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm, which has the official schema, is not installed")
    command = [npm, "pack", "--silent", "--pack-destination", folder, PACKAGE]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=30)
    except subprocess.TimeoutExpired:
        pytest.skip("the registry of npm does not answer")
    found = list(folder.glob("*.tgz"))
    if done.returncode or not found:
        pytest.skip(f"npm does not give the schema: {done.stderr.strip()[-200:]}")
    with tarfile.open(found[0]) as archive:
        member = archive.extractfile(MEMBER)
        assert member is not None
        return member.read()
