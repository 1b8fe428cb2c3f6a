FROM python:3.11.9-slim-bookworm AS build
WORKDIR /src
COPY constraints.txt pyproject.toml pyspark_rmq.py README.md LICENSE* ./
COPY rmq rmq
COPY lua lua
# Wheels alone, so that no C compiler is needed, on ARM neither.
RUN PIP_CONSTRAINT=constraints.txt PIP_ONLY_BINARY=:all: pip wheel --no-cache-dir --wheel-dir /wheels .

FROM python:3.11.9-slim-bookworm
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels pip install --no-cache-dir --no-index --find-links=/wheels rmq \
    && useradd --create-home rmq
USER rmq
WORKDIR /home/rmq
ENV PYTHONUNBUFFERED=1
# SIGTERM drains; `rmq` answers it itself
STOPSIGNAL SIGTERM
CMD ["rmq", "--help"]
