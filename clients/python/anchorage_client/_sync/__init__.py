"""The synchronous client, which `scripts/unasync.py` derives from `_async`."""
