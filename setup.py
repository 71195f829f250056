"""The page on a package index: README.md with the names of its files in place of the links, which lead nowhere there.

Everything else is in pyproject.toml.
"""

import re
from pathlib import Path

from setuptools import setup


def without_relative_links(text: str) -> str:
    """Markdown whose links and pictures into the repository are the words or the path that they showed."""
    text = re.sub(r"^!\[[^]]*\]\((?!https?:)[^)]*\)\n+", "", text, flags=re.MULTILINE)

    def named(link: re.Match[str]) -> str:
        words, path = link.groups()
        return f"`{path}`" if words.strip("`") == path else f"{words} (`{path}`)"

    return re.sub(r"\[([^]]+)\]\((?!https?:|#)([^)]*)\)", named, text)


if __name__ == "__main__":
    readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    setup(long_description=without_relative_links(readme), long_description_content_type="text/markdown")
