"""What the tests of the Python package share. They run in the environment of
scripts/python_package.sh.
"""

from __future__ import annotations

import importlib.util

_MISSING = [name for name in ("foscar", "torch") if importlib.util.find_spec(name) is None]
if _MISSING:
    collect_ignore_glob = ["*"]
else:
    import pytest
    import torch


def pytest_terminal_summary(terminalreporter) -> None:
    if _MISSING:
        names = " and ".join(_MISSING)
        terminalreporter.write_line(
            f"tests/python left out: {names} not installed here (scripts/python_package.sh "
            f"does that)"
        )


def pytest_configure(config) -> None:
    config.addinivalue_line("markers", "cuda: needs a CUDA device")


def pytest_collection_modifyitems(items) -> None:
    if _MISSING or torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device here"))
