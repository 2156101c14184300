"""Generated files under `check`: fresh, stale, edited, refused, mended, and quick when nothing changed."""

import json
import sys
from pathlib import Path

from project import Project

from jax_pmap.checking.commands import read_header

HELPER = "def power(x):\n    return x**2\n"
STATS = """\
import jax.numpy as jnp

from helper import power


def rms(x):
    return jnp.sqrt(jnp.mean(power(x)))


def total(x):
    return jnp.sum(power(x))
"""


def codes(result):
    return [
        line.split()[1] for line in result.stdout.splitlines() if ".py:" in line and not line[0].isspace()
    ]


def test_the_life_of_two_generated_files(project: Project) -> None:
    project.write("src/helper.py", HELPER)
    project.write("src/stats.py", STATS)
    for name in ("rms", "total"):
        made = project.run(
            "gen", f"src/stats.py::{name}", "-q", "-o", f"src/{name}_pmap.py", "--arg", "x=f32[24]"
        )
        assert made.exit_code == 0, made.stderr

    fresh = project.run("check")
    assert (fresh.exit_code, fresh.stdout) == (0, "")
    unchanged = project.run("check")
    assert (unchanged.exit_code, unchanged.files) == (0, set())
    assert unchanged.workers == 0

    # A comment in the source changes nothing that is emitted; what it calls does not change the code either,
    # but is a reason to prove it again.
    project.write("src/helper.py", "def power(x):\n    return abs(x) ** 3\n")
    proved_again = project.run("check", "src/rms_pmap.py", "-v")
    assert (proved_again.exit_code, codes(proved_again)) == (0, [])
    assert "proving: src/rms_pmap.py again" in proved_again.stderr
    assert codes(project.run("check", "src/rms_pmap.py", "--no-run")) == ["JP150"]
    assert "src/rms_pmap.py" in project.run("check", "src/rms_pmap.py", "--fix").files
    assert project.run("check", "src/rms_pmap.py", "--no-run").exit_code == 0

    # The source changed: one is stale, and mended by --fix.
    project.write("src/stats.py", STATS.replace("return jnp.sqrt", "return 2 * jnp.sqrt"))
    stale = project.run("check", "src/rms_pmap.py")
    assert (stale.exit_code, codes(stale)) == (1, ["JP150"])
    assert "`src/stats.py::rms` changed since it was generated" in stale.stdout
    assert "+    return 2 * jnp.sqrt" in stale.stdout
    mended = project.run("check", "src/rms_pmap.py", "--fix")
    assert mended.exit_code == 0
    assert "src/rms_pmap.py" in mended.files
    assert "return 2 * jnp.sqrt" in Path("src/rms_pmap.py").read_text()

    # What it calls cannot be done shard by shard any more.
    project.write("src/helper.py", "import jax.numpy as jnp\n\n\ndef power(x):\n    return jnp.cumsum(x)\n")
    refused = project.run("check", "src/rms_pmap.py")
    assert (refused.exit_code, codes(refused)) == (1, ["JP152"])
    assert "JP043" in refused.stdout
    ignored = project.run("check", "src/rms_pmap.py", "--ignore", "JP15")
    assert ignored.exit_code == 0

    # Edits are found without running anything, and never overwritten.
    edited = Path("src/total_pmap.py").read_text().replace("psum", "pmean")
    Path("src/total_pmap.py").write_text(edited)
    found = project.run("check", "src/total_pmap.py", "--fix", "--output-format", "json")
    assert found.exit_code == 1
    (finding,) = json.loads(found.stdout)["findings"]
    assert finding["code"] == "JP151"
    assert "jax-pmap check --accept src/total_pmap.py" in finding["hint"]
    assert Path("src/total_pmap.py").read_text() == edited
    # What changed is named without a run too.
    by_hash = project.run("check", "--no-run", "src")
    assert codes(by_hash) == ["JP150", "JP151"]
    assert "`power` (src/helper.py:4) changed, which `src/stats.py::rms` uses" in by_hash.stdout


def test_hashes_alone_tell_what_is_stale_edited_and_gone(project: Project) -> None:
    """Without a run: nothing of the user's is imported, so a module that cannot be imported is no matter."""
    source = "import jax.numpy as jnp\n\n\ndef total(x):\n    return jnp.sum(x)\n"
    project.write("stats.py", source)
    made = project.run("gen", "total", "-q", "-o", "total_pmap.py", "--arg", "x=f32[24]")
    assert made.exit_code == 0, made.stderr
    assert project.run("check", "--no-run", "total_pmap.py").exit_code == 0

    project.write("stats.py", f"raise RuntimeError('imported')\n{source}")  # moved, and still the same text
    fresh = project.run("check", "--no-run", "total_pmap.py")
    assert (fresh.exit_code, fresh.stdout) == (0, "")
    project.write("stats.py", source.replace("jnp.sum(x)", "2 * jnp.sum(x)"))
    stale = project.run("check", "--no-run", "total_pmap.py")
    assert (stale.exit_code, codes(stale)) == (1, ["JP150"])
    assert "jax-pmap gen total --arg 'x=f32[24]' -o total_pmap.py" in stale.stdout
    assert stale.workers == 0
    project.write("stats.py", "")
    assert codes(project.run("check", "--no-run", "total_pmap.py")) == ["JP152"]


def test_an_edited_file_is_accepted_once_it_is_proved(project: Project) -> None:
    project.write("stats.py", "import jax.numpy as jnp\n\n\ndef total(x):\n    return jnp.sum(x)\n")
    made = project.run("gen", "total", "-q", "-o", "total_pmap.py", "--arg", "x=f32[24]")
    assert made.exit_code == 0, made.stderr
    path = Path("total_pmap.py")
    wrong = path.read_text().replace("psum", "pmean")
    path.write_text(wrong)
    refused = project.run("check", "--accept", "total_pmap.py")
    assert (refused.exit_code, codes(refused)) == (1, ["JP151"])
    assert "is not accepted: JP045" in refused.stdout
    assert "differs on 3, 4 and 8 devices too" in refused.stdout
    # What to type is for `check`, which has no `--layout`.
    assert "--layout" not in refused.stdout
    assert "Mend the edit and try again, `jax-pmap check --accept total_pmap.py`" in refused.stdout
    assert path.read_text() == wrong

    edited = wrong.replace("pmean", "psum").replace("AXIS", "MY_AXIS")
    path.write_text(edited)
    accepted = project.run("check", "--accept", "total_pmap.py")
    assert (accepted.exit_code, accepted.stdout, accepted.files) == (0, "", {"total_pmap.py"})
    assert "1 edited file accepted" in accepted.stderr
    body = edited.partition('"""Data-parallel')[2]
    assert path.read_text().endswith(body)
    # From here on it is proved as it is, kept from being overwritten, and no longer reported.
    tracked = project.run("check")
    assert (tracked.exit_code, tracked.stdout) == (0, "")
    assert "proving: total_pmap.py again" in tracked.stderr
    assert project.run("check").workers == 0
    says = ["jax-pmap check --accept total_pmap.py"]
    project.refused("JP016", "gen", "total", "-o", "total_pmap.py", "--arg", "x=f32[24]", says=says)
    project.refused(
        "JP018", "check", "--accept", "stats.py", says=["no header of a generated file"], exit_code=2
    )
    project.write("stats.py", "import jax.numpy as jnp\n\n\ndef total(x):\n    return 3 * jnp.sum(x)\n")
    stale = project.run("check", "--no-run")
    assert codes(stale) == ["JP150"]
    assert "check --accept total_pmap.py" in stale.stdout
    assert codes(project.run("check", "--fix")) == ["JP152"]
    assert path.read_text().endswith(body)


def test_an_edited_file_that_was_made_from_shapes_is_accepted_where_it_is_equal(project: Project) -> None:
    inputs = "def inputs():\n    return (jax.ShapeDtypeStruct((24,), 'float32'),)\n"
    project.write("stats.py", f"import jax\n\n\ndef total(x):\n    return jax.numpy.sum(x)\n\n\n{inputs}")
    words = ("gen", "total", "-q", "-o", "total_pmap.py", "--inputs", "stats.py::inputs")
    made = project.run(*words)
    assert made.exit_code == 0, made.stderr
    path = Path("total_pmap.py")
    generated = path.read_text()
    path.write_text(generated.replace("jax.lax.psum", "jax.lax.pmean"))
    refused = project.run("check", "--accept", "total_pmap.py")
    assert (refused.exit_code, codes(refused)) == (1, ["JP151"])
    assert "is not accepted: JP045" in refused.stdout
    path.write_text(generated + "# Mine.\n")
    accepted = project.run("check", "--accept", "total_pmap.py")
    assert accepted.exit_code == 0, accepted.stdout
    assert "run on 3, 8 devices" in path.read_text().partition("# Content")[0]


def header(command: str) -> str:
    return (
        f"# Generated by jax-pmap 0.1.0. Edit freely; regenerate with:\n#   {command}\n"
        "# Source: pkg/stats.py::rms sha256:0123456789abcdef\n# Proved: 2 devices\n"
    )


def test_the_folder_a_command_was_typed_in(tmp_path: Path) -> None:
    """The recorded paths are relative to it, and it is not recorded."""
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "stats.py").write_text(STATS)
    path = tmp_path / "pkg" / "stats_pmap.py"
    for command, folder in [
        ("jax-pmap gen pkg/stats.py::rms -o pkg/stats_pmap.py", tmp_path),
        ("jax-pmap gen stats.py::rms -o stats_pmap.py", tmp_path / "pkg"),
        ("jax-pmap gen stats.py::rms", tmp_path / "pkg"),
        ("jax-pmap gen pkg/stats.py::rms --devices 4", tmp_path),
    ]:
        recorded = read_header(header(command), path, "stats_pmap.py")
        assert recorded.request.directory == folder, command
        assert recorded.command == command
        assert recorded.line == 2


def test_a_header_that_no_longer_reads(project: Project) -> None:
    for command in ("jax-pmap gen x.py::f --no-such-option", "jax-pmap gen 'x.py::f", "another tool"):
        project.write("made_pmap.py", header(command))
        result = project.run("check")
        assert (result.exit_code, codes(result)) == (2, ["JP018"]), command
    assert sys.executable not in result.stdout


def test_a_generated_file_that_cannot_be_decoded(project: Project) -> None:
    Path("made_pmap.py").write_bytes(header("jax-pmap gen x.py::f").encode() + b"x = '\xff'\n")
    result = project.run("check")
    assert (result.exit_code, codes(result)) == (2, ["JP005"])


LOOKS = """
import json
from pathlib import Path

import jax.numpy as jnp

try:
    from local import FACTOR
except ImportError:
    FACTOR = 1
try:
    SCALE = json.loads(Path("scale.json").read_text())
except FileNotFoundError:
    SCALE = 1


def total(x):
    return FACTOR * SCALE * jnp.sum(x)
"""


def test_files_that_were_looked_for_and_are_there_now(project: Project) -> None:
    """Of a generated file, and of one that was edited and accepted."""
    project.write("stats.py", LOOKS)
    assert project.run("gen", "total", "-q", "-o", "total_pmap.py", "--arg", "x=f32[24]").exit_code == 0
    text = Path("total_pmap.py").read_text()
    # Of the constants of the source, it has what they are now.
    edited = text.replace("FACTOR", "1").replace("SCALE", "1").replace("import 1, 1", "import total as whole")
    Path("own_pmap.py").write_text(edited)
    assert project.run("check", "--accept", "own_pmap.py").exit_code == 0
    assert project.run("check").exit_code == 0
    assert project.run("check").workers == 0
    for name, content in (("local.py", "FACTOR = 3\n"), ("scale.json", "5")):
        project.write(name, content)
        found = project.run("check", "own_pmap.py")
        assert codes(found) == ["JP152"], name
        assert project.run("check", "total_pmap.py").workers == 1
        Path(name).unlink()


EDITED = """
import jax.numpy as jnp


def error(x, y):
    return jnp.mean((x - y) ** 2)
"""
#: Edits of what stands around the mapped function: what they make of the first text, and what is said of it.
AROUND = [
    ("    yield from ahead\n", "", "of 2 batches `place` gives 1"),
    ("return jax.device_put(leaf", "return 2 * jax.device_put(leaf", "arrays of jax"),
    (
        "            return leaf\n",
        "            return leaf[:: 1 - 2 * path[0].idx]\n",
        "batches that `place` puts",
    ),
    ("raise ValueError(", "print(", "of shape (B, 1), which it does not refuse"),
]


def test_what_a_proof_of_an_edit_does_not_show_is_said(project: Project) -> None:
    project.write("stats.py", "import jax.numpy as jnp\n\n\ndef mean(x):\n    return jnp.mean(x)\n")
    words = ("gen", "mean", "-q", "-o", "mean_pmap.py", "--arg", "x=f32[24]")
    assert project.run(*words).exit_code == 0
    text = Path("mean_pmap.py").read_text()
    ends = "return jax.lax.pmean(jnp.mean(x), axis_name=AXIS)"
    assert ends in text
    edits = {
        "jax.lax.psum(jnp.mean(x), AXIS) / min(jax.local_device_count(), 8)": 1,
        "jax.lax.pmean(jnp.mean(x) * (n := min(jax.local_device_count(), 8)), AXIS) / n": 0,
    }
    for edited, code in edits.items():
        Path("mean_pmap.py").write_text(text.replace(ends, f"return {edited}"))
        found = project.run("check", "--accept", "mean_pmap.py", "--output-format", "json")
        assert found.exit_code == code, found.stderr
        document = json.loads(found.stdout)
        if code:
            assert "on 64 devices" in document["findings"][0]["message"]
    [note] = document["notes"]
    assert note["file"] == "mean_pmap.py"
    assert "on 3, 5 and 64 devices it works in another way" in note["note"]
    assert f"mean_pmap.py: note: {note['note']}" in found.stderr


def test_edits_around_the_mapped_function_are_proved_too(project: Project) -> None:
    """What the drop-in does with arrays of jax, with what `place` has put ahead, and with other ranks."""
    project.write("stats.py", EDITED)
    words = ("--arg", "x=f32[24]", "--arg", "y=f32[24]", "--helper", "place")
    assert project.run("gen", "error", "-q", "-o", "error_pmap.py", *words).exit_code == 0
    text = Path("error_pmap.py").read_text()
    for before, after, says in AROUND:
        assert before in text
        Path("error_pmap.py").write_text(text.replace(before, after))
        refused = project.run("check", "--accept", "error_pmap.py")
        assert codes(refused) == ["JP151"], after
        assert says in refused.stdout
    Path("error_pmap.py").write_text(text.replace("len(ahead) > 1", "len(ahead) > 3"))
    assert project.run("check", "--accept", "error_pmap.py").exit_code == 0


def test_rows_that_a_file_says_it_drops_are_no_error_of_an_edit(project: Project) -> None:
    project.write("stats.py", "import jax.numpy as jnp\n\n\ndef mean(x):\n    return jnp.mean(x)\n")
    words = ("--arg", "x=f32[24]", "--remainder", "drop")
    assert project.run("gen", "mean", "-q", "-o", "mean_pmap.py", *words).exit_code == 0
    text = Path("mean_pmap.py").read_text()
    others = text.replace("np.arange(rows // count * count)", "np.arange(rows % count, rows)")
    for edited, found in ((others, ["JP151"]), (text.replace("AXIS", "ROWS"), [])):
        assert edited != text
        Path("mean_pmap.py").write_text(edited)
        assert codes(project.run("check", "--accept", "mean_pmap.py")) == found
