"""Recommendations over HTTP: a run folder, answered for. Needs the extra `serve` (FastAPI, uvicorn)."""
