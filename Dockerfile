# syntax=docker/dockerfile:1
# The service. FAISS on the CPU by default, on the GPU with
#   docker build --build-arg FAISS=faiss-gpu .
# PyPI's torch for Linux is built for CUDA; for a smaller image without it give the CPU index that
# PyTorch's installation page names:  docker build --build-arg TORCH_INDEX=...
# Run:  docker run -v ./my-index:/index:ro -p 50051:50051 IMAGE
FROM python:3.11-slim AS build
ARG TORCH_INDEX=
ARG FAISS=faiss-cpu
WORKDIR /source
RUN python -m venv /opt/uec
ENV PATH=/opt/uec/bin:$PATH
RUN if [ -n "$TORCH_INDEX" ]; then pip install --no-cache-dir --index-url "$TORCH_INDEX" torch; fi
COPY pyproject.toml setup.cfg README.md LICENSE ./
COPY uec ./uec
COPY server ./server
RUN pip install --no-cache-dir '.[server]' \
    && if [ "$FAISS" != faiss-cpu ]; then \
         pip uninstall --yes faiss-cpu && pip install --no-cache-dir "$FAISS"; fi

FROM python:3.11-slim
RUN apt-get update \
    && apt-get install --no-install-recommends --yes libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 uec
COPY --from=build /opt/uec /opt/uec
ENV PATH=/opt/uec/bin:$PATH \
    PYTHONUNBUFFERED=1
USER uec
EXPOSE 50051
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "from uec.client import Client; import sys; c = Client('127.0.0.1:50051', timeout_s=4.0); sys.exit(0 if c.health() == 'SERVING' else 1)"]
ENTRYPOINT ["uec", "serve", "--index", "/index", "--address", "0.0.0.0:50051"]
