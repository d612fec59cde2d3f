"""Processes that localspec starts: none runs code of the working directory, and none outlives localspec."""

from localspec.children.json_child import JsonChild, Reply, replies_on_stdout
from localspec.children.programs import ROOT, SAFE, become, guarded, python, run, start, stop

__all__ = [
    "ROOT",
    "SAFE",
    "JsonChild",
    "Reply",
    "become",
    "guarded",
    "python",
    "replies_on_stdout",
    "run",
    "start",
    "stop",
]
