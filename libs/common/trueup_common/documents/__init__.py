"""Workflow documents: read, checked and evaluated the same way by every service; pure."""
