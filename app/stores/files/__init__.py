"""Vectors in Parquet, Arrow IPC and npy files, on any file system that fsspec opens."""

from app.stores.files.store import FilesStore as FilesStore
