"""Nothing is reported to anyone."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import localspec, sys
import openvino
from openvino.tools.ovc import telemetry_utils
assert sys.modules["openvino_telemetry"] is None
print(telemetry_utils.tm.__name__)
"""


def test_the_telemetry_of_openvino_is_not_there() -> None:
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert found.stdout.strip().endswith("telemetry_stub")
