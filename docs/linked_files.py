"""Hooks of mkdocs: files of the repository that pages link to join the site; short code is not broken."""

import re
import shutil
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]

#: Characters up to which code in a sentence stays in one piece: what a narrow screen has room for.
SHORT = 28


def on_page_content(html: str, **_: Any) -> str:
    """Mark short code, which browsers would break behind the hyphens of ``--devices``."""
    return re.sub(rf"<code>(?=[^<\n]{{1,{SHORT}}}</code>)", '<code class="short">', html)


def on_post_build(config: Any) -> None:
    """Copy what links such as `../examples/train.py` lead to into the built site."""
    site = Path(config["site_dir"])
    for page in (REPOSITORY / "docs").glob("*.md"):
        for target in re.findall(r"\]\(\.\./([\w./-]+)\)", page.read_text(encoding="utf-8")):
            if (REPOSITORY / target).is_file():
                (site / target).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(REPOSITORY / target, site / target)
