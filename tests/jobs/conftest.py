"""The job that the tests of jobs run."""

from __future__ import annotations

import pytest

from app.context import Services
from app.db import tables
from app.jobs import submission
from app.types import JobKind
from tests.helpers import CONTEXT


@pytest.fixture
def job(services: Services) -> tables.JobRow:
    return submission.submit_job(services, CONTEXT, JobKind.bootstrap, {"x": 1})
