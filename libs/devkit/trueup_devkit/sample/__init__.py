"""The article that the demo publishes: Markdown with front matter, shipped with the package."""

from importlib.resources import files
from typing import Any

import yaml
from markdown_it import MarkdownIt

_FENCE = "---\n"


def load_article() -> dict[str, Any]:
    """The article as a payload for `wordpress.create_draft`."""
    text = files(__name__).joinpath("article.md").read_text(encoding="utf-8")
    _, front, body = text.split(_FENCE, 2)
    about = yaml.safe_load(front)
    return {
        "title": about["title"],
        "content": MarkdownIt().render(body.strip()),
        "slug": about["slug"],
        "excerpt": about["description"],
        "meta": {
            "description": about["description"],
            "citations": about["citations"],
            "featured_image": about["featured_image"],
        },
    }
