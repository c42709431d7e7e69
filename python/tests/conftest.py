import pytest

import openmok


@pytest.fixture(autouse=True)
def fresh_workspaces():
    yield
    openmok.clear_workspaces()
