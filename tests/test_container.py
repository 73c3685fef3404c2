"""Dockerfile, .dockerignore and compose.yaml: what they ask of an engine, and their steps without one.

No engine runs here. The files are read the way an engine reads them and held to rules; the steps that
are no engine's business (what is copied, the start, the health check) run for real.
"""

import json
import os
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import psutil
import pytest
import yaml
from packaging.requirements import Requirement

from test_environment import EXTRAS, PROJECT, PYPROJECT

APP = "/opt/llamapar"
HOME = "/home/lab"
PORT = "8888"
KNOWN = {"ARG", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "RUN", "USER", "WORKDIR"}


# The Dockerfile


class Step(NamedTuple):
    """One instruction of the Dockerfile, its continued lines joined."""

    name: str
    text: str

    @property
    def options(self):
        """`--chown=lab:lab` and its like, before the arguments."""
        found = (re.fullmatch(r"--([a-z-]+)=(.+)", word) for word in self.text.split())
        return {match[1]: match[2] for match in found if match}

    @property
    def words(self):
        """The arguments: of the JSON form as an engine runs them, else split at spaces."""
        rest = re.sub(r"^(--[a-z-]+=\S+\s+)*(CMD\s+)?", "", self.text)
        return json.loads(rest) if rest.startswith("[") else rest.split()


def parse(text):
    """The instructions of a Dockerfile; comments and empty lines are left out, as an engine does."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [Step(*line.split(maxsplit=1)) for line in joined.splitlines()]


STEPS = parse((PROJECT / "Dockerfile").read_text())


def steps(name):
    return [step for step in STEPS if step.name == name]


def only(name):
    (step,) = steps(name)
    return step


def pip_installs():
    """The words after `pip install`, of each one in the Dockerfile."""
    commands = [part for step in steps("RUN") for part in re.split(r"&&|;|\|", step.text)]
    found = [shlex.split(command) for command in commands if re.search(r"\b(pip3?|uv|conda)\b", command)]
    assert all(words[:2] == ["pip", "install"] for words in found)
    return [words[2:] for words in found]


def test_every_instruction_is_known_and_nothing_comes_from_elsewhere():
    assert {step.name for step in STEPS} <= KNOWN  # ADD, which fetches and unpacks, is not among them
    for step in STEPS:
        assert not re.search(r"https?://|\bcurl\b|\bwget\b|\bsudo\b", step.text), step
        assert not re.search(r"--(extra-)?index-url|--trusted-host|--pre\b", step.text), step


def test_image_holds_the_environment_of_make_lab():
    (words,) = pip_installs()
    assert words == ["-c", "constraints.txt", "-e", ".[lab]"]
    assert Requirement(words[-1].replace(".", "llamapar", 1)).extras <= set(EXTRAS)
    makefile = (PROJECT / "Makefile").read_text()
    recipe = re.search(
        r"^\$\(VENV\)/\.lab-installed:.*\n(?:\t.*\n)*?\t\$\(PIP\) (.+)\n", makefile, re.MULTILINE
    )
    assert recipe
    assert shlex.split(recipe[1]) == words[2:]
    assert re.search(r"^PIP := .* -c constraints\.txt$", makefile, re.MULTILINE)


def test_container_runs_as_a_user_who_can_write_what_has_to_be_written():
    default = only("ARG").text
    assert default == "UID=1000"
    user = only("USER")
    assert user.text == "$UID"
    after = {step.name for step in STEPS[STEPS.index(user) :]}
    assert not after & {"RUN", "COPY"}
    (useradd,) = [step.text for step in steps("RUN") if "useradd" in step.text]
    assert shlex.split(useradd) == ["useradd", "--create-home", "--no-log-init", "--uid", "$UID", "lab"]
    # useradd makes the home, and gives it to the user, only where nothing has made it before.
    assert only("WORKDIR").text == APP
    assert not PurePosixPath(APP).is_relative_to(HOME)
    words = only("ENTRYPOINT").words
    assert PurePosixPath(words[words.index("--state") + 1]).parent == PurePosixPath(HOME)
    for step in steps("COPY")[2:]:  # readable for the user whatever the modes in the checkout are
        assert step.options == {"chown": "lab:lab"}


def test_server_keeps_its_token_and_its_names():
    words = only("ENTRYPOINT").words
    assert only("EXPOSE").text == PORT
    assert f"--ServerApp.port={PORT}" in words
    assert "--ServerApp.allow_remote_access=False" in words
    for text in [(PROJECT / name).read_text() for name in ("Dockerfile", "compose.yaml")]:
        settings = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
        assert not re.search(r"token|password|disable_check_xsrf|allow_origin|allow.root", settings, re.I)


# .dockerignore


def sources():
    """What each COPY copies, a file or a folder, and where it goes below the work directory."""
    return [(source, step.words[-1]) for step in steps("COPY") for source in step.words[:-1]]


def test_the_build_gets_what_is_copied_and_nothing_that_is_private_or_made_by_tools():
    lines = (PROJECT / ".dockerignore").read_text().splitlines()[1:]
    allowed = {line[1:] for line in lines if line.startswith("!")}
    assert lines[0] == "*"
    assert allowed == {source.partition("/")[0] for source, _ in sources()}
    assert lines[1 + len(allowed) :] == ["**/__pycache__", "**/.ipynb_checkpoints", "notebooks/progress.json"]
    assert all((PROJECT / source).exists() for source, _ in sources())
    assert {*PYPROJECT["project"]["license-files"], "pyproject.toml"} <= allowed


# compose.yaml

COMPOSE = yaml.safe_load((PROJECT / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
CLOSED = {"init": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"]}
LAB = SERVICES["lab"]  # cpu is the same without GPUs


def filled_in(text, environment):
    """`${NAME:-default}` as Compose fills it in; any other use of a variable fails."""
    text = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda match: environment.get(match[1]) or match[2], text)
    assert "$" not in text
    return text


@pytest.mark.parametrize("environment", [{}, {"LAB_PORT": "9999", "LAB_UID": "1234", "LAB_ARGS": "--debug"}])
def test_compose_publishes_on_loopback_alone(environment):
    (published,) = LAB["ports"]
    assert filled_in(published, environment) == f"127.0.0.1:{environment.get('LAB_PORT', '8888')}:{PORT}"
    assert filled_in(LAB["command"], environment) == environment.get("LAB_ARGS", "")
    arguments = LAB["build"]["args"]
    assert set(arguments) == {only("ARG").text.partition("=")[0]}
    assert filled_in(arguments["UID"], environment) == environment.get("LAB_UID", "1000")


def test_compose_gives_the_container_no_more_than_it_needs():
    # So neither privileged, user, network_mode, pid, ipc, devices, environment nor a health check of its own.
    assert set(LAB) - {"build", "command", "deploy", "ports", "volumes"} == {*CLOSED, "shm_size"}
    assert {name: LAB[name] for name in CLOSED} == CLOSED
    assert (LAB["build"]["context"], LAB["shm_size"]) == (".", "1gb")


def test_what_the_lab_serves_is_the_checkout_s_own_folder():
    mounts = [volume.split(":") for volume in LAB["volumes"]]
    assert mounts == [["./notebooks", f"{APP}/notebooks"], ["./llamapar", f"{APP}/llamapar", "ro"]]
    assert all((PROJECT / source).is_dir() for source, *_ in mounts)
    words = only("ENTRYPOINT").words
    assert words[words.index("--root") + 1] == "notebooks"


def test_compose_serves_the_page_read_only_to_this_machine_alone():
    page = dict(SERVICES["page"])
    assert page.pop("image") == only("FROM").text
    assert page.pop("profiles") == ["page"]  # not with a bare `docker compose up`
    (published,) = page.pop("ports")
    assert filled_in(published, {}) == "127.0.0.1:8000:8000"
    assert filled_in(published, {"PAGE_PORT": "9999"}) == "127.0.0.1:9999:8000"
    (mount,) = page.pop("volumes")
    bound = {"type": "bind", "source": "./build/site", "target": "/site", "read_only": True}
    assert mount == bound | {"bind": {"create_host_path": False}}
    assert page.pop("command") == "python -m http.server 8000 --directory /site"
    assert page == {"user": "nobody", "read_only": True, **CLOSED}


# The steps themselves


class Image(NamedTuple):
    """What the image would hold, in folders of this machine: the project, the home, the programs."""

    app: Path
    home: Path
    programs: Path

    def here(self, words, port):
        """A command of the Dockerfile, with this machine's folders and port."""
        moved = {f"{APP}/": f"{self.app}/", f"{HOME}/": f"{self.home}/", PORT: str(port)}
        return [re.sub("|".join(moved), lambda match: moved[match[0]], word) for word in words]

    def environment(self):
        path = os.pathsep.join([str(self.programs), "/usr/local/bin", "/usr/bin", "/bin"])
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        return kept | {"PATH": path, "HOME": str(self.home)}


def copy_steps(image):
    for source, target in sources():
        (image.app / target).mkdir(parents=True, exist_ok=True)
        if source.endswith("/"):
            shutil.copytree(PROJECT / source, image.app / target, dirs_exist_ok=True)
        else:
            shutil.copy2(PROJECT / source, image.app / target)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(port, path, **headers):
    with closing(HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


@contextmanager
def started(image, *options):
    """The ENTRYPOINT running, found healthy, with its port and its log; it ends when the block is left."""
    port = free_port()
    log = image.home / "log.txt"
    words = image.here(only("ENTRYPOINT").words, port)
    with log.open("w") as lines:
        server = subprocess.Popen(
            ["/usr/bin/env", *words, *options],
            cwd=image.app,
            env=image.environment(),
            stdin=subprocess.DEVNULL,
            stdout=lines,
            stderr=lines,
        )
    try:
        end = time.monotonic() + 60
        while healthy(image, port) != 0:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.2)
        listening = psutil.Process(server.pid).net_connections("tcp")  # start.py became the server
        assert ("0.0.0.0", port) in [open_.laddr for open_ in listening if open_.status == psutil.CONN_LISTEN]
        yield port, log
        server.terminate()  # what an engine sends
        assert server.wait(timeout=60) == 0, log.read_text()
    finally:
        server.kill()
        server.wait()


def healthy(image, port):
    """The exit status of the HEALTHCHECK command."""
    words = image.here(only("HEALTHCHECK").words, port)
    done = subprocess.run(
        ["/usr/bin/env", *words], env=image.environment(), capture_output=True, check=False, timeout=30
    )
    return done.returncode


def check_the_server(image):
    """Start it as the image would, and ask it what a browser and the health check would."""
    assert healthy(image, free_port()) == 1  # nobody there
    with started(image) as (port, log):
        token = re.search(
            rf"http://127\.0\.0\.1:{port}/lab/tree/00_start_here\.ipynb\?token=(\w{{20,}})", log.read_text()
        )
        assert token, log.read_text()  # the link that `docker compose up` shows
        assert ask(port, "/api/contents")[0] == 403
        assert ask(port, "/lab")[0] == 302  # to the question for the token
        signed = {"Authorization": f"token {token[1]}"}
        status, listing = ask(port, "/api/contents", **signed)
        assert status == 200
        shown = {entry["name"] for entry in json.loads(listing)["content"]}
        assert {path.name for path in (PROJECT / "notebooks").glob("*.ipynb")} <= shown
        assert ask(port, "/api/contents", **signed, Host=f"localhost:{port}")[0] == 200
        assert ask(port, "/api/contents", **signed, Host=f"elsewhere.example:{port}")[0] == 403
        assert (image.home / "state").is_dir()


@pytest.mark.soak
def test_entrypoint_serves_and_the_health_check_agrees(tmp_path):
    image = Image(tmp_path / "app", tmp_path / "home", Path(sys.executable).parent)
    image.home.mkdir()
    copy_steps(image)
    check_the_server(image)
    chosen = secrets.token_hex(16)
    with started(image, f"--IdentityProvider.token={chosen}") as (port, _):  # LAB_ARGS
        assert ask(port, "/api/contents", Authorization=f"token {chosen}")[0] == 200
