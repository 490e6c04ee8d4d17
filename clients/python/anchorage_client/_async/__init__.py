"""The asynchronous client. `scripts/unasync.py` derives `_sync` from this folder."""
