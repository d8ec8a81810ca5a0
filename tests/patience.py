"""How long a test waits for what should come at once: it costs nothing where all is well, so it fits a slow machine."""

from typing import Final

PATIENCE_SECONDS: Final = 120.0
