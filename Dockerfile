# syntax=docker/dockerfile:1
# Two images: `server`, the default, and `backend` for training on this host's CPU:
#   docker build -t neff-cache-server .
#   docker build -t neff-cache-backend --target backend .

FROM python:3.12-slim AS wheel
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY client client
COPY cache_server cache_server
COPY neuron_backend neuron_backend
COPY migrations migrations
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim AS backend
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
COPY --from=wheel /source/constraints.txt /wheels/*.whl /wheels/
RUN pip install --no-cache-dir -c /wheels/constraints.txt torch "$(ls /wheels/*.whl)[torch]" \
    && neff-cache backend build \
    && useradd --create-home --uid 10001 neff
USER 10001
WORKDIR /home/neff
ENTRYPOINT ["python"]

FROM python:3.12-slim AS server
COPY --from=wheel /source/constraints.txt /wheels/*.whl /wheels/
RUN pip install --no-cache-dir -c /wheels/constraints.txt "$(ls /wheels/*.whl)[server]" \
    && rm -r /wheels \
    && useradd --system --uid 10001 --home-dir /data --create-home neff
USER 10001
ENV NEFF_CACHE_DATA_DIR=/data \
    PYTHONUNBUFFERED=1
# for SQLite and a local store; with PostgreSQL and a bucket nothing is written here
VOLUME /data
EXPOSE 8080
ENTRYPOINT ["neff-cache"]
CMD ["serve"]
