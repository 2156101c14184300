"""Draw docs/images/report.svg: the terminal report of a real run, on examples/train.py.

python docs/make_picture.py
"""

import io
import os
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PICTURE = REPOSITORY / "docs" / "images" / "report.svg"
TARGET = "examples/train.py::train_step"
WIDTH = 84

# rich decides on colour by the environment; the picture is to have it wherever it is made.
os.environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
os.environ.pop("NO_COLOR", None)


def draw() -> str:
    """The report of one run as SVG.

    Raises:
        SystemExit: the run was refused; there is nothing to show.
    """
    import jax_pmap
    from jax_pmap.report import text

    request = jax_pmap.Request(target=TARGET, directory=REPOSITORY)
    result = jax_pmap.generate(request)
    if isinstance(result, jax_pmap.Refusal):
        sys.exit(f"{result.code}: {result.reason}")
    console = text.make_console(io.StringIO(), plain=False, width=WIDTH)
    console.record = True
    text.print_line(f"$ jax-pmap gen {TARGET} --axis-name batch > train_pmap.py", console)
    text.print_generated(result, console)
    return console.export_svg(title="jax-pmap", unique_id="report")


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
    print(PICTURE.relative_to(REPOSITORY))
