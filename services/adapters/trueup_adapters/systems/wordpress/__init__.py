"""WordPress: posts through its REST API. Everything about a command type stands in `commands.py`."""

from typing import Final

from trueup_adapters.systems.wordpress.commands import WordPressAdapter

ADAPTER: Final = WordPressAdapter()
