"""The media types of bodies and answers."""

from __future__ import annotations

JSON = "application/json"
NPY = "application/x-npy"
ARROW = "application/vnd.apache.arrow.stream"
MULTIPART = "multipart/form-data"
PROBLEM = "application/problem+json"

#: bodies that hold only vectors: their fields are in the query string
VECTORS = (NPY, ARROW)
