"""The bounds of docs/design.md on a result in BF16 against one in FP64 on the same inputs."""

import numpy as np


def assert_within_bounds(name, found, expected):
    """Frobenius error, each row's error, each element's; exactly 0 where a row is expected 0."""
    found = np.asarray(found, np.float64)
    expected = np.asarray(expected, np.float64)
    assert found.shape == expected.shape, name
    if found.size == 0:
        return
    rows = (-1, found.shape[-1] if found.ndim > 1 else 1)
    error, right = (found - expected).reshape(rows), expected.reshape(rows)
    total = np.linalg.norm(error) / max(np.linalg.norm(right), 1e-300)
    assert total < 4e-3, f"{name}: relative error {total}"
    if found.ndim == 1:
        return
    norms = np.linalg.norm(right, axis=1)
    row_error = np.linalg.norm(error, axis=1)
    worst = int(np.argmax(row_error - 1.5e-2 * norms))
    assert (row_error <= 1.5e-2 * norms).all(), f"{name}: row {worst}: {row_error[worst]}"
    rms = norms[:, None] / np.sqrt(rows[1])
    over = np.abs(error) - (0.05 * rms + 2.0**-7 * np.abs(right))
    assert (over <= 0).all(), f"{name}: an element is {over.max()} over its bound"


def assert_total_within_bounds(name, found, expected, bound=4e-3):
    """The Frobenius error alone, for router gradients, whose rows hold K numbers."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape, name
    total = np.linalg.norm(found - expected) / max(np.linalg.norm(expected), 1e-300)
    assert total < bound, f"{name}: relative error {total}"
