"""localspec: the same answers of a local language model, sooner."""

import sys
from typing import Any

# OpenVINO and NNCF report to their makers through this package, in a process of its own, where it is there.
_modules: dict[str, Any] = sys.modules  # None in it makes an import fail
_modules.setdefault("openvino_telemetry", None)
