"""The demos: one article through one workflow, on a plane of its own, while the world and the plane itself misbehave."""
