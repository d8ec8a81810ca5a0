"""The demos: one article through one workflow, on a plane of its own, while world and plane misbehave."""
