"""In place of pip, for the pages of docs/: checks that what is to be installed of this project is there."""

import re
import sys
import tomllib
from pathlib import Path

EXTRAS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]

if __name__ == "__main__":
    for word in sys.argv[1:]:
        if named := re.search(r"\[(.*)\]", word):
            missing = set(named[1].split(",")) - EXTRAS.keys()
            if missing:
                sys.exit(f"pyproject.toml has no extra {missing}")
