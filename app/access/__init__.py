"""API keys, projects and the audit log."""
