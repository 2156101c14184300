"""Draw docs/images/report.svg: the terminal report of a real run, on examples/train.py.

python docs/make_picture.py
"""

import io
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PICTURE = REPOSITORY / "docs" / "images" / "report.svg"
TARGET = "examples/train.py::train_step"
WIDTH = 84


def draw() -> str:
    """The report of one run as SVG.

    Raises:
        SystemExit: the run was refused; there is nothing to show.
    """
    from rich.console import Console
    from rich.text import Text

    import jax_pmap
    from jax_pmap.report import text
    from jax_pmap.report.console import make_console, print_line

    request = jax_pmap.Request(target=TARGET, directory=REPOSITORY)
    result = jax_pmap.generate(request)
    if isinstance(result, jax_pmap.Refusal):
        sys.exit(f"{result.code}: {result.reason}")
    stream = io.StringIO()
    console = make_console(stream, plain=False, width=WIDTH)
    print_line(f"$ jax-pmap gen {TARGET} --axis-name batch > train_pmap.py", console)
    text.print_generated(result, console)
    picture = Console(
        file=io.StringIO(), width=WIDTH, record=True, force_terminal=True, color_system="standard"
    )
    picture.print(Text.from_ansi(stream.getvalue().rstrip("\n")), soft_wrap=True)
    return picture.export_svg(title="jax-pmap", unique_id="report")


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
    print(PICTURE.relative_to(REPOSITORY))
