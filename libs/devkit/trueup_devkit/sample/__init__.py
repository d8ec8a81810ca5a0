"""The article that the demo publishes: Markdown with front matter, shipped with the package."""

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import yaml
from markdown_it import MarkdownIt

_FENCE = "---\n"
_WEB = "{web}"


def load_article(
    *, repository: str, zone_id: str, urls: Sequence[str] = (), web: str = "https://web.example"
) -> dict[str, Any]:
    """The article as the input of `seo-article-publish`, for one repository and one zone of the cache.

    `urls` are the pages besides its own that change with it, such as lists and feeds. `web` is where the article's
    links, sources and picture are: a plane visits them before it publishes.
    """
    text = files(__name__).joinpath("article.md").read_text(encoding="utf-8").replace(_WEB, web)
    _, front, body = text.split(_FENCE, 2)
    about = yaml.safe_load(front)
    return {
        "article_id": about["id"],
        "version": about["version"],
        "title": about["title"],
        "slug": about["slug"],
        "content": MarkdownIt().render(body.strip()),
        "excerpt": about["description"],
        "meta": {
            "description": about["description"],
            "json_ld": _structured(about),
            "citations": about["citations"],
            "featured_image": about["featured_image"],
        },
        "author": about["author"],
        "authored_at": about["authored_at"],
        "repository": repository,
        "zone_id": zone_id,
        "urls": list(urls),
    }


def _structured(about: dict[str, Any]) -> dict[str, Any]:
    """The article for machines, in the words of schema.org."""
    return {
        "@context": "https://schema.org",
        "@type": "Article",
        "headline": about["title"],
        "description": about["description"],
        "author": {"@type": "Organization", "name": about["author"]["name"]},
        "datePublished": about["authored_at"],
        "image": about["featured_image"],
        "citation": about["citations"],
    }
