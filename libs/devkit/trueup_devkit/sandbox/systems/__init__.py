"""The systems of the sandbox world: to add one, write its file and one line in the table.

The order of the table is the order of the ports after the control port, so new systems go to the end.
"""

from collections.abc import Callable
from typing import Final

from trueup_devkit.sandbox.store import Store
from trueup_devkit.sandbox.system import System
from trueup_devkit.sandbox.systems.bench import BenchStub
from trueup_devkit.sandbox.systems.cloudflare import Cloudflare
from trueup_devkit.sandbox.systems.github import GitHub
from trueup_devkit.sandbox.systems.monitoring import Monitoring
from trueup_devkit.sandbox.systems.wordpress import WordPress

SYSTEMS: Final[dict[str, Callable[[Store, str], System]]] = {
    "wordpress": WordPress,
    "bench": BenchStub,
    "monitoring": Monitoring,
    "cloudflare": Cloudflare,
    "github": GitHub,
}
