"""API keys, the audit log and idempotent requests."""
