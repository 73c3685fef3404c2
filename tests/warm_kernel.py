"""A notebook's kernel whose imports are done: it is forked from a process that made them once.

    python warm_kernel.py FOLDER CONNECTION_FILE

stands in for a kernel: Jupyter starts and ends it, and the kernel ends with it. The first one starts the
process in FOLDER that kernels are forked from, which ends soon after the folder is gone.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

PRELOAD = (
    "anywidget",
    "cloudpickle",
    "ipykernel.ipkernel",
    "ipywidgets",
    "plotly.graph_objects",
    "safetensors.torch",
    "torch.distributed._local_tensor",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.testing._internal.distributed.fake_pg",
)
"""What notebooks import besides the library, which registers its formats with the kernel that imports it."""


def spec(folder: Path) -> str:
    """The kernel.json of kernels that are forked in a folder."""
    words = [sys.executable, __file__, str(folder), "{connection_file}"]
    return json.dumps({"argv": words, "display_name": "Warm", "language": "python"})


def stand_in(folder: Path, connection_file: str) -> NoReturn:
    """Asks for a kernel and waits for its end."""
    source = None
    with socket.socket(socket.AF_UNIX) as kernel:
        while kernel.connect_ex(str(folder / "socket")):
            source = source or subprocess.Popen(
                [sys.executable, __file__, str(folder)], start_new_session=True
            )
            assert source.poll() is None, "the process that kernels are forked from has ended"
            time.sleep(0.02)
        signal.signal(signal.SIGINT, lambda *_: kernel.sendall(b"!"))
        environment = {
            k: v for k, v in os.environ.items() if k != "JPY_PARENT_PID"
        }  # which is the stand-in's
        kernel.sendall(json.dumps([connection_file, os.getcwd(), environment]).encode() + b"\n")
        kernel.recv(1)
    os._exit(0)


def serve(folder: Path) -> None:
    """Imports what there is to import, and forks a kernel for each stand-in."""
    del sys.path[0]  # the folder of this file
    os.environ.pop("JPY_PARENT_PID", None)  # which ipykernel would take for this process's parent
    for name in PRELOAD:
        importlib.import_module(name)
    gc.freeze()
    kernels: dict[socket.socket, int] = {}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen()
        while folder.exists():
            for ready in select.select([listener, *kernels], [], [], 0.2)[0]:
                if ready is listener:
                    asking, _ = listener.accept()
                    with asking.makefile() as lines:
                        asked = json.loads(lines.readline())
                    kernels[asking] = os.fork()
                    if not kernels[asking]:
                        asking.close()
                        become_kernel(*asked)
                elif ready.recv(1):
                    os.kill(kernels[ready], signal.SIGINT)
                else:  # its stand-in has ended
                    os.killpg(kernels[ready], signal.SIGKILL)
            for asking, pid in list(kernels.items()):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    del kernels[asking]
                    asking.close()


def become_kernel(connection_file: str, folder: str, environment: dict[str, str]) -> NoReturn:
    """The kernel that a stand-in asks for."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    from ipykernel.kernelapp import launch_new_instance

    sys.argv[:] = ["ipykernel_launcher.py", "-f", connection_file]
    launch_new_instance()
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[2:]:
        stand_in(Path(sys.argv[1]), sys.argv[2])
    serve(Path(sys.argv[1]))
