# Targets: cpu (the default) and cuda. BuildKit builds only the stages that the target needs.
ARG PYTHON=3.11

# The image gets Python and this virtual environment, and nothing else.
FROM python:${PYTHON}-slim AS build
RUN python3 -m venv --without-pip /venv
# pip reads these: another index, or a folder or page of wheels.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
# Removes what no process reads: tests of packages (except numpy's, which numpy imports), C headers, torch's
# test programs, and the bytecode of 2,000 models, because a process imports one or two of them.
RUN printf '%s\n' 'cd /venv/lib/python*/site-packages || exit' \
    'find . -depth -type d \( -name tests -o -name test -o -name include \) ! -path "./numpy/*" -exec rm -rf {} +' \
    'find torch/bin -type f ! -name torch_shm_manager -delete' \
    'if [ -d transformers ]; then find transformers/models -name __pycache__ -exec rm -rf {} +; fi' > /usr/local/bin/slim-venv \
 && chmod 755 /usr/local/bin/slim-venv
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build

# Lists the dependencies in separate files, so that other changes in pyproject.toml do not install them again.
FROM build AS requirements
ARG EXTRAS="text vision onnx pgvector qdrant milvus chroma"
COPY pyproject.toml .
RUN python3 -c "import sys, tomllib; \
    whole = tomllib.load(open('pyproject.toml', 'rb')); \
    project = whole['project']; \
    extras = [line for extra in sys.argv[1:] for line in project['optional-dependencies'][extra]]; \
    print(*project['dependencies'], *extras, sep='\n', file=open('run.txt', 'w')); \
    print(*whole['build-system']['requires'], sep='\n', file=open('build.txt', 'w'))" $EXTRAS

# Installs the service without its dependencies, so that a change of the source makes a small layer.
FROM build AS service
COPY --from=requirements /build/build.txt .
RUN pip install -r build.txt
COPY pyproject.toml README.md LICENSE anchorage_server.py ./
COPY app app
COPY workers workers
COPY migrations migrations
COPY docs/reference/errors.md docs/reference/errors.md
COPY clients/python/anchorage_client clients/python/anchorage_client
RUN pip wheel --no-deps --no-build-isolation --wheel-dir dist . \
 && pip --python /venv/bin/python install --no-deps --no-index --prefix /service dist/*.whl

FROM python:${PYTHON}-slim AS runtime
# A fixed uid, so that volumes keep their owner. A new volume gets the owner of /data.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin anchorage \
 && install -d -o anchorage -g anchorage -m 750 /data
# The service writes to /data and /tmp only. It requires API keys, because it listens beyond loopback.
# PASSIVE makes waiting threads of torch sleep; spinning threads would take the cores from other containers.
ENV PATH=/venv/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    ANCHORAGE_HOST=0.0.0.0 ANCHORAGE_DATA_DIR=/data HF_HOME=/data/huggingface HF_HUB_OFFLINE=1 \
    OMP_WAIT_POLICY=PASSIVE
WORKDIR /tmp
USER 10001:10001
EXPOSE 8080
ENTRYPOINT ["anchorage"]
CMD ["serve"]

FROM build AS dependencies-cpu
COPY constraints.txt .
# PyTorch's index has builds without CUDA libraries. Empty: torch comes from the same index as the rest.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip --python /venv/bin/python install --no-deps ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -c constraints.txt torch
COPY --from=requirements /build/run.txt .
RUN pip --python /venv/bin/python install -c constraints.txt -r run.txt && slim-venv

FROM runtime AS cpu
COPY --from=dependencies-cpu /venv /venv
COPY --from=service /service /venv

FROM build AS dependencies-cuda
COPY constraints.txt .
COPY --from=requirements /build/run.txt .
RUN pip --python /venv/bin/python install -c constraints.txt -r run.txt && slim-venv

FROM runtime AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=dependencies-cuda /venv /venv
COPY --from=service /service /venv

FROM cpu
