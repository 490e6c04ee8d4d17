"""OpenTelemetry traces, if OTEL_EXPORTER_OTLP_ENDPOINT is set and the extra `otel` is installed."""

from __future__ import annotations

import logging
import os

from fastapi import FastAPI
from sqlalchemy import Engine

log = logging.getLogger("anchorage")


def install(app: FastAPI, engine: Engine) -> None:
    """Send a span for each request and SQL statement, as the OTEL_ environment variables say."""
    if not os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        return
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
        from opentelemetry.instrumentation.sqlalchemy import SQLAlchemyInstrumentor
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        log.warning(
            "no traces: %s is not installed; pip install 'anchorage-server[otel]'", error.name
        )
        return
    name = os.environ.get("OTEL_SERVICE_NAME", "anchorage")
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    SQLAlchemyInstrumentor().instrument(engine=engine, tracer_provider=provider)
    app.add_middleware(
        OpenTelemetryMiddleware, tracer_provider=provider, excluded_urls="livez,readyz,metrics"
    )
