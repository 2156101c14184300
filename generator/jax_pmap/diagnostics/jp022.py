"""JP022: not confined to the project."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP022",
    title="not confined to the project",
    exit_code=2,
    meaning=(
        "`jax-pmap --confined` runs the project's own code and touches no other file: no `--run`, no "
        "`--python`, no `py:` in `--arg`, no target, inputs, plan or output outside the project or in a "
        "folder of installed code (`.venv`, `site-packages`, `node_modules`, `build`). Its `check` reads "
        "only: with `--no-run`, without `--fix` and `--accept`."
    ),
    why=(
        "A command line that somebody approved beforehand, as the Claude Code plugin has it, must not be "
        "made to run another program by what is appended to it. It still imports the module of the target, "
        "which runs that file and what it imports, under the interpreter that pyproject.toml, `$VIRTUAL_ENV` "
        "or `.venv` names: that much is what was approved."
    ),
    cure=("Read the line, and run it without `--confined` if it does what you want."),
    example="$ jax-pmap --confined plan train_step --run 'python train.py'",
    fixed="$ jax-pmap plan train_step --run 'python train.py'",
    fixed_language="console",
)
