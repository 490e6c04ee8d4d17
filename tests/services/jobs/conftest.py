"""The job that the tests of jobs run."""

from __future__ import annotations

import pytest

from app.services.context import Services
from app.services.jobs import submission
from app.storage import tables
from app.types import JobKind
from tests.services.helpers import CONTEXT


@pytest.fixture
def job(services: Services) -> tables.JobRow:
    return submission.submit_job(services, CONTEXT, JobKind.bootstrap, {"x": 1})
