"""The sandbox world: local stand-ins for external systems that behave as documented and fail on command."""

from trueup_devkit.sandbox.connections import sandbox_connections
from trueup_devkit.sandbox.world import Sandbox

__all__ = ["Sandbox", "sandbox_connections"]
