"""Fixtures and Hypothesis profiles of all tests."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

from tests.gpu import engine as engine

SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)
settings.register_profile("dev", max_examples=20, deadline=None, suppress_health_check=SLOW)
settings.register_profile("ci", max_examples=30, deadline=None, derandomize=True, suppress_health_check=SLOW)
settings.register_profile("nightly", max_examples=2000, deadline=None, suppress_health_check=SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))
