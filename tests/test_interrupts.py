"""Ctrl-C at any moment: of the command, which ends at once, and of a run in Python, which ends safely."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from llamapar import interrupts
from llamapar.interrupts import STATUS, deferred

PROJECT = Path(__file__).resolve().parent.parent
ENTRIES = {
    "module": [sys.executable, "-m", "llamapar"],
    "script": [str(Path(sys.executable).with_name("llamapar"))],
}
RUN = ["run", "attention", "--model", "tiny", "--tp", "2", "--device", "cpu"]
SOON = 10.0
"""Seconds for what takes a fraction of one, on a machine that has much else to do."""


@pytest.fixture(autouse=True)
def interruptible():
    """SIGINT as Python has it by default: a shell may have started the tests with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


# -- the command -----------------------------------------------------------------------------------


class Command:
    """A process of the command, in a process group of its own as a terminal's foreground one."""

    def __init__(self, words, found_first=None):
        places = os.pathsep.join(str(place) for place in (found_first, PROJECT) if place)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        environment = {**os.environ, "PYTHONPATH": places}
        self.process = subprocess.Popen(words, env=environment, **pipes, text=True, process_group=0)

    def interrupted(self, reached):
        """Exit status and stderr, after an interrupt as soon as `reached` is true; nothing lives on."""
        until(lambda: reached() or self.process.poll() is not None)
        children = []
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):  # it may have answered by then
            children = psutil.Process(self.process.pid).children(recursive=True)
            os.killpg(self.process.pid, signal.SIGINT)
        try:
            _, err = self.process.communicate(timeout=SOON)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            pytest.fail(f"Ctrl-C did not end it within {SOON:g} s")
        finally:
            _, alive = psutil.wait_procs(children, SOON)
        assert alive == []
        return self.process.returncode, err


def until(reached):
    end = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < end, "it never came so far"
        time.sleep(0.002)


@pytest.fixture
def stuck(tmp_path):
    """`stuck("torch", code)`: the folder of a module that runs `code` after it has made the file `begun`."""

    def make(module, code):
        begun = f"import pathlib, time\npathlib.Path({str(tmp_path / 'begun')!r}).touch()\n"
        (tmp_path / f"{module}.py").write_text(begun + textwrap.dedent(code))
        return tmp_path

    return make


HANGS = """
    for _ in range(60_000):
        time.sleep(0.01)  # not once for long: a signal just before a sleep is seen after it
"""
SWALLOWS = """
    for _ in range(60_000):
        try:
            time.sleep(0.01)
        except BaseException:  # as torch's modules do while they try what there is
            pass
"""


@pytest.mark.parametrize(
    ("entry", "module", "code"),
    [("module", "difflib", HANGS), ("script", "difflib", HANGS), ("script", "torch", SWALLOWS)],
)
def test_ctrl_c_while_modules_are_imported(entry, module, code, stuck):
    """One of llamapar's own first imports, and one of `run`, neither of which comes to an end."""
    folder = stuck(module, code)
    command = Command(ENTRIES[entry] + RUN, folder)
    assert command.interrupted((folder / "begun").exists) == (STATUS, "")


@pytest.mark.soak
def test_ctrl_c_while_the_server_of_the_ranks_starts():
    command = Command([*ENTRIES["module"], *RUN, "--engine", "processes"])
    assert command.interrupted(psutil.Process(command.process.pid).children) == (STATUS, "")


def test_ctrl_c_after_the_answer_changes_nothing(stuck):
    at_the_end = """
        import atexit
        atexit.register(lambda: (pathlib.Path(__file__).with_name("ended").touch(), time.sleep(0.5)))
    """
    folder = stuck("sitecustomize", at_the_end)
    command = Command([*ENTRIES["module"], "ranks", "--tp", "2"], folder)
    assert command.interrupted((folder / "ended").exists) == (0, "")


@pytest.mark.parametrize("engine", ["local", "processes"])
@pytest.mark.parametrize(
    "entry",
    [
        pytest.param("module", marks=[pytest.mark.soak, pytest.mark.deep]),
        pytest.param("script", marks=pytest.mark.deep),
    ],
)
def test_ctrl_c_at_every_moment(entry, engine, stuck, deep):
    """From soon after Python itself has started to the answer, in steps of 2 s, or of 0.1 s."""
    tenths = 1 if deep else 20
    folder = stuck("sitecustomize", "")
    for step in range(1000):
        (folder / "begun").unlink(missing_ok=True)
        command = Command([*ENTRIES[entry], *RUN, "--engine", engine], folder)
        until((folder / "begun").exists)
        at = time.monotonic() + 0.5 + 0.1 * tenths * step
        status, err = command.interrupted(lambda at=at: time.monotonic() > at)
        if status == 0:
            assert step * tenths > 5  # it had the time to answer
            return
        # A slow start says after 5 s that it is running; nothing else may be said.
        said = [line for line in err.splitlines() if not line.startswith("llamapar: running ")]
        assert (status, said) == (STATUS, []), f"after {0.1 * tenths * step:.1f} s"


# -- a run in Python -------------------------------------------------------------------------------


def python(code):
    """What a process that ends well writes to stdout and stderr."""
    command, environment = [sys.executable, "-c", code], {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


IN_PYTHON = """
    import os, signal, sys, threading, time
    import psutil
    import llamapar as lp

    signal.signal(signal.SIGINT, signal.default_int_handler)
    me = psutil.Process()

    def interrupted(moment):
        def strike():
            while not moment():
                time.sleep(0.001)
            struck.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        struck = []
        thread = threading.Thread(target=strike)
        thread.start()
        try:
            while True:
                run()
        except KeyboardInterrupt:
            assert time.monotonic() - struck[0] < 20
        thread.join()

    def run():
        return lp.run("block", "tiny", {"tp": 2, "cp": 2}, engine="processes", device="cpu")

    interrupted(lambda: "torch" in sys.modules)
    assert "torch.distributed" in sys.modules
    interrupted(me.children)
    assert me.children() == []
    assert run().ok
    assert lp.run("mlp", "tiny", {"tp": 2}, device="cpu").ok
    print("right")
"""


@pytest.mark.soak
def test_an_interrupt_of_the_first_run_spoils_no_later_one():
    """While torch is imported, and while the server of the ranks starts."""
    assert python(textwrap.dedent(IN_PYTHON)) == ("right\n", "")


def strike():
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("checks", [False, True])
def test_an_interrupt_waits_for_a_check_or_the_end_of_the_block(checks):
    reached = []

    def block():
        with deferred() as check:
            strike()
            reached.append("past the interrupt")
            if checks:
                check()
            reached.append("past the check")

    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        block()
    assert reached == ["past the interrupt", "past the check"][: 1 if checks else 2]
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        strike()  # as before


def test_an_interrupt_is_raised_whatever_else_was():
    def raises():
        with deferred():
            strike()
            raise ValueError("in the block")

    def handles():
        try:
            raise ValueError("before the block")
        except ValueError:
            with deferred():
                strike()

    for block in (raises, handles):
        with pytest.raises(KeyboardInterrupt, match=r"^$"):
            block()


def test_what_somebody_else_decided_about_sigint_stays():
    for handler in (signal.SIG_IGN, signal.SIG_DFL, lambda *_: None):
        signal.signal(signal.SIGINT, handler)
        with deferred() as check:
            assert signal.getsignal(signal.SIGINT) is handler
            check()
        with interrupts.raised():
            assert signal.getsignal(signal.SIGINT) is handler
        interrupts.no_more()
        assert signal.getsignal(signal.SIGINT) is handler


def test_another_thread_leaves_sigint_alone():
    def other():
        with deferred():
            return signal.getsignal(signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(other).result() is signal.default_int_handler


BROKEN = """
import builtins, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
genuine = builtins.__import__

def stopping(name, *args):
    if name == "torch.autograd" or (args[2:] and args[2] and "autograd" in args[2]):
        builtins.__import__ = genuine
        os.kill(os.getpid(), signal.SIGINT)
    return genuine(name, *args)

builtins.__import__ = stopping
try:
    import torch
except KeyboardInterrupt:
    pass
import llamapar as lp
for name in ("run", "tape", "run"):
    try:
        getattr(lp, name)
    except lp.LlamaparError as error:
        print(error)
sys.stdout.flush()
os._exit(0)  # such a torch may fail as Python ends
"""


def test_a_torch_that_an_interrupt_left_half_imported_asks_for_a_restart():
    half = "torch is half imported in this process: its import was interrupted, and cannot be done again\n"
    half += "  why  lp.{} needs it\n  try  a restart of the kernel, or of Python\n"
    assert python(BROKEN) == ("".join(half.format(name) for name in ("run", "tape", "run")), "")
