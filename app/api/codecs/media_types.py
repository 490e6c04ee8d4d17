"""The media types of bodies and answers."""

from __future__ import annotations

JSON = "application/json"
NPY = "application/x-npy"
ARROW = "application/vnd.apache.arrow.stream"
PARQUET = "application/vnd.apache.parquet"
MULTIPART = "multipart/form-data"
PROBLEM = "application/problem+json"

#: bodies that hold only vectors: their fields are in the query string
VECTORS = (NPY, ARROW, PARQUET)

#: those that the service can read and answer piece by piece
STREAMS = (NPY, ARROW)

#: those that have other columns next to the vectors
TABLES = (ARROW, PARQUET)
