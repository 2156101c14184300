"""What `gen --diff` proved is there when somebody says yes to it, and never where anything changed."""

import json
import threading
import time
from pathlib import Path

import pytest
from project import Project

from jax_pmap.checking.cache import FOLDER, Cache, own_key
from jax_pmap.checking.proved import KEPT

STATS = """\
import jax.numpy as jnp

from helper import power


def total(x):
    return jnp.sum(power(x))
"""
WORDS = ("gen", "total", "-o", "total_pmap.py", "--arg", "x=f32[24]", "--no-run")
RECALLED = "the proof is that of "


def kept(project: Project) -> Path:
    (path,) = (project.folder / FOLDER).glob("proved-*.json")
    return path


def test_the_second_call_takes_the_proof_of_the_first(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("helper.py", "def power(x):\n    return x**2\n")
    project.write("stats.py", STATS)
    patch = project.run(*WORDS, "--diff")
    assert (patch.exit_code, RECALLED in patch.stderr) == (0, False), patch.stderr
    added = [line[1:] for line in patch.stdout.splitlines() if line[:1] == "+" and line[:3] != "+++"]

    asked_again = project.run(*WORDS, "--diff", "-v")
    assert (asked_again.stdout, asked_again.workers) == (patch.stdout, 0)
    written = project.run(*WORDS, "-v")
    assert (written.exit_code, written.files) == (0, {"total_pmap.py"})
    assert RECALLED in written.stderr
    assert "loading" not in written.stderr
    assert Path("total_pmap.py").read_text().splitlines() == added
    assert "\nwrote total_pmap.py\n" in written.stderr

    # An imported file, an option or a variable that jax reads: proved anew, and not kept without --diff.
    before = kept(project).read_bytes()
    for name, value in (("JAX_ENABLE_X64", "1"), ("JAX_DEFAULT_MATMUL_PRECISION", "highest")):
        with monkeypatch.context() as patched:
            patched.setenv(name, value)
            assert RECALLED not in project.run(*WORDS).stderr
    assert RECALLED not in project.run(*WORDS, "--axis-name", "i").stderr
    project.write("helper.py", "def power(x):\n    return x**4\n")
    changed = project.run(*WORDS)
    assert (changed.exit_code, RECALLED in changed.stderr) == (0, False)
    assert kept(project).read_bytes() == before

    # As it was, it holds again, for an hour.
    project.write("helper.py", "def power(x):\n    return x**2\n")
    assert RECALLED in project.run(*WORDS).stderr
    later = time.time() + KEPT
    monkeypatch.setattr("time.time", lambda: later)
    assert RECALLED not in project.run(*WORDS).stderr


READS = """\
import json
import os
from pathlib import Path

import jax.numpy as jnp

SETTINGS = json.loads(Path("settings.json").read_text())
REDUCED = jnp.sum if os.environ.get("REDUCED") == "sum" else jnp.mean


def total(x):
    return REDUCED(x) * SETTINGS["scale"]
"""


def test_what_a_module_reads_is_part_of_the_question(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of settings, a variable of the project's own: neither is imported, and both change the code."""
    project.write("settings.json", '{"scale": 1}')
    project.write("stats.py", READS)
    time.sleep(0.01)  # What is written while it is proved is not kept.
    assert project.run(*WORDS, "--diff").exit_code == 0
    assert RECALLED in project.run(*WORDS).stderr
    with monkeypatch.context() as patched:
        patched.setenv("REDUCED", "sum")
        assert RECALLED not in project.run(*WORDS).stderr
        assert "psum" in Path("total_pmap.py").read_text()
        assert project.run("check", "total_pmap.py").exit_code == 0
    assert " JP150 " in project.run("check", "total_pmap.py").stdout
    project.write("settings.json", '{"scale": 2}')
    assert RECALLED not in project.run(*WORDS).stderr


def test_a_cache_that_is_damaged_or_brought_along_is_not_believed(project: Project) -> None:
    project.write("helper.py", "def power(x):\n    return x**2\n")
    project.write("stats.py", STATS)
    first = project.run(*WORDS, "--diff")
    assert first.exit_code == 0, first.stderr
    path = kept(project)
    whole = path.read_text()
    forged = json.loads(whole)
    (entry,) = forged["entries"].values()
    entry["code"] = entry["code"].replace("psum", "pmean")
    unsigned = json.loads(whole)
    del unsigned["signed"]
    texts = ("", "{ damaged", "[]", "null", '{"entries": 3}', "[" * 100_000, whole[: len(whole) // 2])
    for text in (*texts, json.dumps(unsigned), json.dumps(forged)):
        path.write_text(text)
        assert Cache(project.folder, path.name).get(path.stem.removeprefix("proved-")) is None
    rebuilt = project.run(*WORDS, "--diff")
    assert (rebuilt.exit_code, rebuilt.stdout, RECALLED in rebuilt.stderr) == (0, first.stdout, False)
    assert RECALLED in project.run(*WORDS, "--diff").stderr


def test_two_at_once_leave_a_whole_file_and_one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    keys, found = set(), []

    def work(number: int) -> None:
        keys.add(own_key())
        for turn in range(10):
            cache = Cache(tmp_path, "one.json")
            found.append(cache.get("key"))
            cache.put("key", "x" * 1000 * (number + turn))
            cache.save()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 1
    assert None not in keys
    assert found.count(None) <= 4
    assert set("".join(text or "" for text in found)) == {"x"}
    assert {path.name for path in (tmp_path / FOLDER).iterdir()} == {".gitignore", "one.json"}
    assert [path.name for path in (tmp_path / "cache" / "jax-pmap").iterdir()] == ["key"]
    assert (tmp_path / "cache" / "jax-pmap" / "key").stat().st_mode & 0o777 == 0o600


def test_without_a_key_of_ones_own_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert own_key() is not None
    (tmp_path / "cache" / "jax-pmap" / "key").chmod(0o644)  # others may have read it
    cache = Cache(tmp_path)
    cache.put("key", 1)
    cache.save()
    assert not (tmp_path / FOLDER).exists()


def test_a_cache_that_leads_elsewhere_is_left_alone(tmp_path: Path) -> None:
    elsewhere, project = tmp_path / "elsewhere", tmp_path / "project"
    elsewhere.mkdir()
    project.mkdir()
    (project / FOLDER).symlink_to(elsewhere)
    cache = Cache(project)
    cache.put("key", 1)
    cache.save()
    assert list(elsewhere.iterdir()) == []
