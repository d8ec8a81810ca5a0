"""`python -m trueup_devkit.sample`: the start of the sample article on the running plane's sandbox, as JSON."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from trueup_devkit.gateway_client import GatewayClient
from trueup_devkit.sample import load_article
from trueup_devkit.sandbox.systems.cloudflare import ZONES
from trueup_devkit.sandbox.systems.web import web_url
from trueup_devkit.state_folder import DEFAULT_FOLDER, StateFolder


def main() -> None:
    """Print what `trueup start` takes."""
    parser = argparse.ArgumentParser(
        prog="python -m trueup_devkit.sample",
        description="The sample article as a start of seo-article-publish, for `trueup start`.",
        epilog="example: python -m trueup_devkit.sample > article.json",
    )
    parser.add_argument("--state-dir", type=Path, default=DEFAULT_FOLDER, help="folder of the plane's state")
    given = parser.parse_args()
    state = StateFolder(given.state_dir.resolve()).running_state()
    site = GatewayClient(str(state.sandbox_url)).get("/")["systems"]["wordpress"]
    article = load_article(repository="acme/articles", zone_id=ZONES["acme"], web=web_url(site))
    key = f"article-{article['article_id']}-v{article['version']}"
    print(json.dumps({"idempotency_key": key, "definition": "seo-article-publish", "input": article}, indent=2))


if __name__ == "__main__":
    main()
