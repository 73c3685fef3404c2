# The workbook with a torch that knows CUDA; compose.yaml runs it: `docker compose up`.
#
# A plain Python, not nvidia/cuda: torch's wheels for Linux bring the CUDA libraries that they were built
# with, so those of a CUDA image would lie there a second time, unused. The driver comes from the host,
# through the NVIDIA Container Toolkit. Python 3.11 on Debian 12 is what the tests run on.
FROM python:3.11-slim-bookworm

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore

WORKDIR /opt/llamapar

# Everything that is pinned, before any of the project's own code: editing that installs nothing anew.
# Of the package only the file with its version is there; the rest is copied further down.
COPY pyproject.toml hatch_build.py constraints.txt LICENSE ./
COPY llamapar/__init__.py llamapar/
RUN touch README.md \
    && pip install -c constraints.txt -e '.[lab]'

# Notebooks are mounted from the checkout: with the number of whoever owns it, saving them works.
ARG UID=1000
RUN useradd --create-home --no-log-init --uid "$UID" lab

COPY --chown=lab:lab jupyter/ jupyter/
COPY --chown=lab:lab llamapar/ llamapar/
COPY --chown=lab:lab notebooks/ notebooks/

USER $UID
EXPOSE 8888

# The project's own start, as in `make lab`, with its token; options that follow are those of jupyter lab.
# It serves the folder that is mounted, so whatever is saved is kept. In the container it has to listen on
# every address (compose.yaml publishes it on loopback alone); as on loopback it answers to 127.0.0.1 and
# localhost only.
ENTRYPOINT ["python", "jupyter/start.py", "--root", "notebooks", "--state", "/home/lab/state", \
            "00_start_here.ipynb", "--no-browser", "--ip", "0.0.0.0", "--ServerApp.port=8888", \
            "--ServerApp.port_retries=0", "--ServerApp.allow_remote_access=False"]

# /api says the server's version, and needs no token for it.
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "from http.client import HTTPConnection as Server; lab = Server('127.0.0.1', 8888, timeout=4); lab.request('GET', '/api'); raise SystemExit(lab.getresponse().status != 200)"]
