# Two images: `rmq`, the last stage and so the default, and `spark`, which also has Spark and Java.
FROM python:3.11.9-slim-bookworm AS build
WORKDIR /src
COPY constraints.txt pyproject.toml pyspark_rmq.py pytest_rmq.py README.md LICENSE* ./
COPY rmq rmq
COPY lua lua
# Wheels alone, so that no C compiler is needed, on ARM neither.
RUN PIP_CONSTRAINT=constraints.txt PIP_ONLY_BINARY=:all: \
    pip wheel --no-cache-dir --wheel-dir /wheels '.[aio,cli,dashboard,metrics,otel]'

# PySpark has no wheel on the package index. It is pure Python and jars: building its wheel compiles nothing.
FROM build AS build-spark
RUN PIP_CONSTRAINT=constraints.txt \
    pip wheel --no-cache-dir --only-binary=:all: --no-binary=pyspark --wheel-dir /wheels '.[spark-local]'

FROM python:3.11.9-slim-bookworm AS base
RUN useradd --create-home rmq
WORKDIR /home/rmq
# All that is written goes to /tmp: the root file system may be read-only.
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 XDG_CACHE_HOME=/tmp/cache
# SIGTERM drains; `rmq` answers it itself
STOPSIGNAL SIGTERM
CMD ["rmq", "--help"]

FROM base AS spark
RUN --mount=type=bind,from=build-spark,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links=/wheels 'rmq[aio,cli,dashboard,metrics,otel,spark-local]'
# Spark's own programs, such as spark-class, need to be told where Java is.
RUN ln -s "$(XDG_CACHE_HOME=/opt python -c 'from rmq._processes.server_programs import java_home_for_spark as home; print(home())')" /opt/java
ENV JAVA_HOME=/opt/java
USER rmq

FROM base AS rmq
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links=/wheels 'rmq[aio,cli,dashboard,metrics,otel]'
USER rmq
