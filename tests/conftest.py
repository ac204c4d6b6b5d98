"""What all tests share: how hard Hypothesis tries, and where the repository is."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile("ci", max_examples=50, deadline=None, derandomize=True, print_blob=True)
_default = "ci" if os.environ.get("CI") == "true" else "dev"
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", _default))


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).resolve().parents[1]
