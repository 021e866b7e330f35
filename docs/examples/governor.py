"""A governor: agents may read and write below /workspace with these tools, and do nothing else."""
import json
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOOLS = {"list_directory", "read_file", "write_file"}

def verdict(intent):
    if intent["tool"] not in TOOLS:
        return {"verdict": "DENIED", "intent_id": intent["intent_id"], "reason": f"use one of {sorted(TOOLS)}"}
    expires = datetime.now(timezone.utc) + timedelta(minutes=5)  # the run has to start before
    limits = {"max_memory_mb": 64, "timeout_seconds": 30, "filesystem_scope": ["/workspace/**"]}
    return {"verdict": "APPROVED", "intent_id": intent["intent_id"], "capability_manifest": limits,
            "expires_at": expires.isoformat(timespec="seconds")}

class Governor(BaseHTTPRequestHandler):
    def do_POST(self):
        call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        print(call["method"], call["params"].get("status", ""), flush=True)  # a2g/report has a status
        result = verdict(call["params"]) if call["method"] == "a2g/intent" else {}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": result}).encode())

ThreadingHTTPServer(("127.0.0.1", 7410), Governor).serve_forever()
