"""The demo: one command, once, on a plane of its own, while the world and the plane itself misbehave."""
