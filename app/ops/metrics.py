"""Prometheus metrics. No label holds a client's name, which other projects could read."""

from __future__ import annotations

from functools import lru_cache

from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics

disable_created_metrics()  # type: ignore[no-untyped-call]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_LONG_SECONDS = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 14_400)
_BATCH = (1, 4, 16, 64, 256, 1024, 4096, 16_384, 65_536)

REQUEST_SECONDS = Histogram(
    "anchorage_request_seconds",
    "Time from the first byte of the request to the last byte of the answer.",
    ["method", "route", "status"],
    buckets=_SECONDS,
)
IN_FLIGHT = Gauge(
    "anchorage_requests_in_flight", "Requests in progress.", multiprocess_mode="livesum"
)
IN_FLIGHT_BYTES = Gauge(
    "anchorage_request_bytes_in_flight",
    "Bytes reserved for bodies and answers of requests in progress.",
    multiprocess_mode="livesum",
)
DEPENDENCY_UP = Gauge(
    "anchorage_dependency_up",
    "Whether the database, Redis or the models answered this reading (1) or not (0).",
    ["dependency"],
    multiprocess_mode="livemostrecent",
)
DATA_BYTES = Gauge(
    "anchorage_data_bytes",
    "Size of the file system that holds the blobs, by state: total or free.",
    ["state"],
    multiprocess_mode="livemostrecent",
)
REFUSALS = Counter(
    "anchorage_refused_total", "Refused requests, by the code of their problem document.", ["code"]
)
BATCH_VECTORS = Histogram(
    "anchorage_batch_vectors", "Vectors in one request.", ["operation"], buckets=_BATCH
)
CACHE_LOOKUPS = Counter(
    "anchorage_cache_total",
    "Cache look-ups by outcome: found in memory or Redis, or computed; Redis corrupt or away.",
    ["kind", "outcome"],
)


@lru_cache(maxsize=256)
def cache_outcome(kind: str, outcome: str) -> Counter:
    """Returns the counter of one kind and outcome, and looks up its labels only once."""
    return CACHE_LOOKUPS.labels(kind, outcome)


CACHE_BYTES = Gauge(
    "anchorage_cache_bytes", "Bytes in the in-process cache.", multiprocess_mode="livesum"
)
JOB_SECONDS = Histogram(
    "anchorage_job_seconds",
    "Duration of one attempt of a job.",
    ["kind", "outcome"],
    buckets=_LONG_SECONDS,
)
LEASES_RENEWED = Gauge(
    "anchorage_worker_seen_timestamp_seconds",
    "Time when this process last renewed its leases.",
    multiprocess_mode="livemax",
)
REQUEUED_JOBS = Counter(
    "anchorage_jobs_requeued_total",
    "Jobs requeued because their worker stopped renewing its lease.",
)
ENCODE_WAITING = Gauge(
    "anchorage_encode_waiting_inputs", "Inputs waiting for a batch.", multiprocess_mode="livesum"
)
ENCODE_BATCH = Histogram(
    "anchorage_encode_batch_inputs", "Inputs in one batch of a model.", buckets=_BATCH
)
ENCODE_TOKENS = Counter(
    "anchorage_encode_tokens_total", "Tokens in batches: of inputs, and padding.", ["kind"]
)
ENCODE_WAIT_SECONDS = Histogram(
    "anchorage_encode_wait_seconds", "Time that inputs wait for their batch.", buckets=_SECONDS
)
ENCODE_DROPPED = Counter(
    "anchorage_encode_dropped_total", "Inputs that were not encoded because their client left."
)
NATIVE_TEXTS = Counter(
    "anchorage_native_texts_total",
    "Texts for native scores: embedded, cached, or missing: refused, late or over the budget.",
    ["outcome"],
)
MODELS = Gauge(
    "anchorage_models_loaded", "Models of encoders in memory.", multiprocess_mode="livesum"
)
MODEL_BYTES = Gauge("anchorage_model_bytes", "Bytes of loaded models.", multiprocess_mode="livesum")
MODEL_LOADS = Counter(
    "anchorage_model_loads_total",
    "Models by outcome: loaded, refused, or unloaded to make room.",
    ["outcome"],
)
