"""A hook of mkdocs: files of the repository that pages link to become part of the site, at the same place."""

import re
import shutil
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]


def on_post_build(config: Any) -> None:
    """Copy what links such as `../examples/train.py` lead to into the built site."""
    site = Path(config["site_dir"])
    for page in (REPOSITORY / "docs").glob("*.md"):
        for target in re.findall(r"\]\(\.\./([\w./-]+)\)", page.read_text(encoding="utf-8")):
            if (REPOSITORY / target).is_file():
                (site / target).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(REPOSITORY / target, site / target)
