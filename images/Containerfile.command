# The command k3observe, and the bridge k3observe-notify: for CI, and beside Alertmanager.
#   podman build -f images/Containerfile.command -t k3observe .
#   podman run --rm -v "$PWD:/work" k3observe render -o bundle
ARG PYTHON=3.13
FROM docker.io/library/python:${PYTHON}-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY k3observe k3observe
COPY exporters exporters
COPY rules rules
COPY dashboards dashboards
RUN python -m venv /app && /app/bin/pip install --no-cache-dir -c constraints.txt ".[web]" \
 && /app/bin/pip uninstall -y pip

FROM docker.io/library/python:${PYTHON}-slim
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="k3observe" \
      org.opencontainers.image.description="Monitoring of mixture-of-experts serving from one file" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /app /app
ENV PATH=/app/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /work
ENTRYPOINT ["k3observe"]
