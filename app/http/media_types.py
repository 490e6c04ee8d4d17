"""The media types of bodies and answers."""

from __future__ import annotations

JSON = "application/json"
NPY = "application/x-npy"
PROBLEM = "application/problem+json"
