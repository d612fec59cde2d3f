"""An MCP server that lists the tools, and returns the results, which its command line says, sound or not."""

from __future__ import annotations

import json
import sys

TOOLS, RESULT = map(json.loads, sys.argv[1:])

for line in sys.stdin:
    request = json.loads(line)
    results = {
        "initialize": {
            "protocolVersion": request.get("params", {}).get("protocolVersion"),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "raw", "version": "1"},
        },
        "tools/list": {"tools": TOOLS},
        "tools/call": RESULT,
    }
    if "id" in request:
        known = request["method"] in results
        answer = (
            {"result": results[request["method"]]} if known else {"error": {"code": -32601, "message": ""}}
        )
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
