"""neff-cache's HTTP service: a FastAPI application over an object store and a small database."""
