"""The pool of rank processes: what it answers, and that no failure goes unexplained or leaves a process."""

import contextlib
import errno
import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path

import cloudpickle
import psutil
import pytest
import torch
import torch.distributed as dist

from inputs import few
from llamapar.errors import LlamaparError
from llamapar.execution.engines import pool as pool_module
from llamapar.execution.engines import server as server_module
from llamapar.execution.engines.pool import Pool, close_pool, pool
from llamapar.execution.engines.rank import Quiet, RankStatus, Reply, Slots
from llamapar.execution.engines.server import Server
from llamapar.execution.replies import Cancelled, PeerError, RankError, RankFailure, Scene, ending
from weights import exactly

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that ranks need not import pytest

ROOT = Path(__file__).resolve().parent.parent
HERE = "all_reduce over tp, [2, 8]"


pytestmark = pytest.mark.usefixtures("no_ranks_left")


@pytest.fixture
def times(counts):
    """How often a failure is provoked."""
    return range(counts(1, 2, 20))


# -- what ranks are asked to do --------------------------------------------------------------------


def where(context):
    return context.rank, context.world, str(context.device)


def meet(context):
    """One all-reduce of all ranks, announced as a recorder does."""
    x = torch.full((2, 8), float(context.rank))
    context.note(HERE)
    dist.all_reduce(x)
    context.note("")
    return float(x[0, 0])


def pids(ranks):
    return [answer.value for answer in ranks.run(lambda context: os.getpid())]


def on(code, name):
    """The words for a line of this file, in the function of that name."""
    lines = Path(__file__).read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if f"def {name}(" in line)
    line = next(i for i in range(start, len(lines)) if lines[i].strip() == code)
    return f"line {line + 1} of test_pool.py, in {name}: {code}"


def in_order(ranks):
    """The pool answers, and its ranks can talk to each other."""
    world = ranks.spec.world
    assert [answer.value for answer in ranks.run(meet)] == [sum(range(world))] * world


def text_of(error):
    return f"{type(error).__name__}: {error}"


def gone(processes, within=5.0):
    end = time.monotonic() + within
    while any(map(_runs, processes)):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def _runs(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def failure(ranks, function, **settings):
    with pytest.raises(RankFailure, match=r".") as caught:
        ranks.run(function, **settings)
    return caught.value


# -- answers ---------------------------------------------------------------------------------------


def test_arguments_tensors_and_what_is_printed_travel():
    def add(context, x, n):
        print("rank", context.rank)
        return x + n * context.rank

    large = torch.arange(1 << 20)
    answers = pool(4).run(add, large, 10)
    for rank, answer in enumerate(answers):
        assert answer.value.equal(large + 10 * rank)
        assert answer.output == f"rank {rank}\n"


def test_warnings_logs_and_words_of_children_are_told():
    def speak(context, n):
        logging.getLogger("of a user").warning("first %d", n)
        warnings.warn("second", stacklevel=1)
        handler = logging.StreamHandler(sys.__stderr__)  # as one that a library made when it was imported
        handler.emit(logging.makeLogRecord({"msg": "third"}))
        subprocess.run(["sh", "-c", "echo fourth >&2"], check=True)

    ranks = pool(2)
    for n in range(2):  # a job has its own words alone
        for answer in ranks.run(speak, n):
            first, second, *more = answer.stderr.splitlines()
            assert first == f"first {n}"
            assert second.endswith(": UserWarning: second")
            assert more[-2:] == ["third", "fourth"]
            assert answer.output == ""
    assert [answer.stderr for answer in ranks.run(where)] == ["", ""]


def test_the_ranks_stay_warm_and_share_the_cores():
    ranks = pool(4)
    before = pids(ranks)
    ranks.run(lambda context: context.rank if dist.new_group([0, 1]) else None)
    assert pids(ranks) == before
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = ranks.run(lambda context: torch.get_num_threads())
    assert {answer.value for answer in threads} == {max(1, cores // 4)}
    assert psutil.Process(pool_module._server.process.pid).num_threads() == 1, "it can fork soundly"


def test_modules_of_the_kernel_are_found(tmp_path, monkeypatch):
    (tmp_path / "of_a_user.py").write_text("def answer(context):\n    return 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import of_a_user

    assert [answer.value for answer in pool(2).run(of_a_user.answer)] == [42, 42]


def test_one_pool_is_kept_for_the_same_arguments():
    first = pool(2)
    old = pids(first)
    assert pool(2) is first
    assert pool(3) is not first
    assert pool(3) is not pool(3, preload=["json"])
    assert first.closed
    assert gone(old)
    with pytest.raises(LlamaparError, match=r"^this pool cannot run anything\n  why  it is closed\n"):
        first.run(where)


PREPARING = """
    import os, torch
    asked = []
    def spy(*args):
        asked.append(os.environ.get("CUDA_VISIBLE_DEVICES"))
        return 2
    names = ("getDeviceCount", "init", "getDevice", "setDevice", "getCurrentRawStream")
    for name in names:  # a torch for CUDA on a machine with two GPUs
        setattr(torch._C, f"_cuda_{name}", spy)
    torch._C._cuda_isInBadFork = lambda: False
    assert torch.cuda.is_available() and asked == [None]
    from llamapar.execution.engines.processes import PRELOAD
    from llamapar.execution.engines.server import preload_imports
    for given in (None, "0,1", "MIG-of-a-uuid"):
        if given is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = given
        asked.clear()
        preload_imports(PRELOAD)
        print(asked, os.environ.get("CUDA_VISIBLE_DEVICES"), "PYTORCH_NVML_BASED_CUDA_CHECK" in os.environ)
"""


@pytest.mark.soak
def test_cuda_is_asked_for_nothing_before_the_fork(tmp_path):
    """Whoever has asked CUDA cannot use it after a fork; NVML, which can be asked, does not know MIG."""
    done = subprocess.run(
        script(tmp_path, PREPARING), capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.stdout.splitlines(), done.stderr) == (
        ["[] None False", "[] 0,1 False", "[] MIG-of-a-uuid False"],
        "",
    )


# -- a rank that raises ----------------------------------------------------------------------------


def test_the_first_to_raise_is_told_from_those_that_wait(times):
    def fail(context):
        return 1 / 0 if context.rank == 2 else meet(context)

    for _ in times:
        ranks = pool(4)
        answers = ranks.run(fail)
        waited = f"was waiting in {HERE} when rank 2 raised ZeroDivisionError: division by zero"
        assert [text_of(answer.error) for answer in answers] == [
            f"PeerError: rank 0 {waited}",
            f"PeerError: rank 1 {waited}",
            "ZeroDivisionError: division by zero",
            f"PeerError: rank 3 {waited}",
        ]
        assert min(answers, key=lambda answer: answer.at).rank == 2
        assert "return 1 / 0 if context.rank == 2" in answers[2].traceback
        files = re.findall(r'^  File "(.+)", line ', answers[2].traceback, flags=re.MULTILINE)
        assert files == [__file__]  # none of the package, whatever the folder is called
        in_order(ranks)


def test_the_cause_is_who_raised_first_not_who_has_the_lowest_rank():
    def raised(error, at):
        return Reply(False, None, error, "", at, "", "")

    notes = [RankStatus(1, (0, 1, 2), HERE), RankStatus(0, (), ""), RankStatus(0, (), "")]
    scene = Scene(notes, {1: raised("ValueError: late", 2.0), 2: raised("ValueError: early", 1.0)}, {})
    stopped, *_ = scene.answers()
    assert str(stopped.error) == f"rank 0 was waiting in {HERE} when rank 2 raised ValueError: early"


def test_a_rank_that_finishes_and_one_that_computes_are_told_apart():
    def fail(context):
        if context.rank == 0:
            raise SystemExit("enough")
        if context.rank == 2:
            meet(context)
        if context.rank == 3:
            time.sleep(0.6)  # answers before the patience with it ends
        return "done"

    answers = pool(4).run(fail)
    assert [text_of(answer.error) for answer in answers] == [
        "SystemExit: enough",
        "NoneType: None",
        f"PeerError: rank 2 was waiting in {HERE} when rank 0 raised SystemExit: enough",
        "NoneType: None",
    ]
    assert [answer.value for answer in answers] == [None, "done", None, "done"]


def test_a_call_that_nobody_announced_is_waited_for_no_longer_than_patience(monkeypatch):
    monkeypatch.setattr(pool_module, "PATIENCE", 0.5)
    answers = pool(2).run(lambda context: dist.all_reduce(torch.ones(1)) if context.rank else 1 / 0)
    assert text_of(answers[1].error) == (
        "PeerError: rank 1 was computing when rank 0 raised ZeroDivisionError: division by zero"
    )
    assert isinstance(answers[1].error, PeerError)


def test_all_errors_are_collected_and_what_cannot_travel_is_told_in_words():
    class Odd(Exception):
        def __init__(self, a, b):
            super().__init__("odd")

    def fail(context):
        time.sleep(0.5 * (3 - context.rank))  # longer than one rank starts after another on a busy machine
        if context.rank == 0:
            raise Odd(1, 2)
        if context.rank == 1:
            return (x for x in ())
        raise LlamaparError(f"tp={context.rank} is odd", "because", ["tp=2"])

    answers = pool(4).run(fail)
    odd, generator, *ours = [answer.error for answer in answers]
    assert isinstance(odd, RankError)
    assert str(odd).endswith("Odd: odd")
    assert text_of(generator) == "TypeError: cannot pickle 'generator' object"
    assert [getattr(error, "what", "") for error in ours] == ["tp=2 is odd", "tp=3 is odd"]
    assert str(ours[0]) == "tp=2 is odd\n  why  because\n  try  tp=2"
    assert min(answers, key=lambda answer: answer.at).rank == 3


# -- a rank that dies ------------------------------------------------------------------------------


def test_a_killed_rank_is_named(times):
    def die(context):
        if context.rank == 2:
            while not all(context._slots.read(rank).text for rank in (0, 1, 3)):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        return meet(context)

    for _ in times:
        ranks, started = pool(4), time.monotonic()
        error = failure(ranks, die)
        assert time.monotonic() - started < 10
        assert str(error) == (
            "rank 2 was killed by SIGKILL\n"
            "  why  the system kills a process that runs out of memory; "
            f"ranks 0, 1, 3: waiting in {HERE}\n"
            "  try  smaller sizes, or fewer ranks"
        )
        assert error.first == 2
        assert error.ranks == {r: "killed by SIGKILL" if r == 2 else f"waiting in {HERE}" for r in range(4)}
        in_order(ranks)


def test_a_rank_that_leaves_is_named_with_its_last_words():
    def leave(context):
        if context.rank == 1:
            os.write(2, b"terminate called\n")
            os._exit(3)
        return meet(context)

    for _ in range(2):  # the words of the first run are not shown again
        assert re.fullmatch(
            r"rank 1 exited with status 3\n  why  rank 0: (computing|waiting in .*)\n       terminate called",
            str(failure(pool(2), leave)),
        )


def test_a_rank_that_died_between_runs_is_replaced(times):
    for _ in times:
        ranks = pool(2)
        victim = pids(ranks)[1]
        os.kill(victim, signal.SIGKILL)
        end = time.monotonic() + 5
        while ranks._alive() and time.monotonic() < end:  # its threads end one by one
            time.sleep(0.01)
        in_order(ranks)
        assert victim not in pids(ranks)


def start_child(context):
    """A process of the rank's group."""
    return subprocess.Popen(["sleep", "60"]).pid


@pytest.mark.parametrize("how", few(["closed", "rank killed", "server killed"], 1))
def test_what_a_rank_started_ends_with_it(how, times):
    for _ in times:
        with Pool(2) as ranks:
            started = [answer.value for answer in ranks.run(start_child)]
            assert not gone(started, within=0)
            if how == "server killed":
                pool_module._server.process.kill()
            for pid in pids(ranks) if how == "rank killed" else ():
                os.kill(pid, signal.SIGKILL)
            if how != "closed":
                assert gone(started), "without anybody asking"
        assert gone(started)
        in_order(pool(2))


@pytest.mark.soak
def test_a_server_that_was_stopped_is_not_waited_for(monkeypatch, times):
    monkeypatch.setattr(server_module, "STOP", 1.0)
    for _ in times:
        ranks = pool(2)
        old, started = pids(ranks), time.monotonic()
        os.kill(pool_module._server.process.pid, signal.SIGSTOP)
        close_pool()
        assert time.monotonic() - started < 10
        assert gone([pool_module._server.process.pid, *old])
        assert pool_module._server.failed == "it was ended: no answer for 1 s"
        in_order(pool(2))


@pytest.mark.soak
def test_the_servers_death_is_survived(times):
    for _ in times[:5]:
        ranks = pool(2)
        old = pids(ranks)
        server = pool_module._server.process.pid
        timer = threading.Timer(0.3, os.kill, (server, signal.SIGKILL))
        timer.start()
        error = failure(ranks, lambda context: meet(context) if context.rank else time.sleep(60))
        timer.join()
        assert str(error) == (
            "the process that starts the ranks ended\n"
            "  why  it was killed by SIGKILL\n"
            "  try  run again: a new one is started"
        )
        assert gone([server, *old])
        in_order(ranks)


# -- a collective that a rank never joins ----------------------------------------------------------


def test_a_time_out_says_who_arrived_where(times):
    def skip(context):
        return 0.0 if context.rank == 2 else meet(context)

    for _ in times:
        ranks = pool(4)
        error = failure(ranks, skip, timeout=0.8)
        *lines, choice = str(error).splitlines()
        assert lines == [
            "time-out: no rank made progress for 0.8 s",
            f"  why  {HERE}: ranks 0, 1, 3 arrived; rank 2 never did, it finished",
            f"       ranks 0, 1, 3 stand on {on('dist.all_reduce(x)', 'meet')}",
        ]
        assert choice == "  try  timeout=1.6 if a rank only computes for long"
        assert error.first == 2
        in_order(ranks)


def test_a_time_out_knows_the_groups():
    def cross(context):
        if context.rank == 3:
            time.sleep(60)
        groups = {0: ("tp", [0, 1]), 1: ("cp", [1, 3]), 2: ("cp", [0, 2])}
        axis, group = groups[context.rank]
        context.note(f"all_gather over {axis}, [4]", group)
        time.sleep(61)

    error = failure(pool(4), cross, timeout=0.8)
    assert error.args[0].splitlines()[1:4] == [
        "  why  all_gather over tp, [4]: rank 0 arrived; rank 1 never did, "
        "it is waiting in all_gather over cp, [4]",
        "       all_gather over cp, [4]: rank 1 arrived; rank 3 never did, it is computing",
        "       all_gather over cp, [4]: rank 2 arrived; rank 0 never did, "
        "it is waiting in all_gather over tp, [4]",
    ]
    assert error.args[0].splitlines()[4:] == [
        f"       ranks 0, 1, 2 stand on {on('time.sleep(61)', 'cross')}",
        f"       rank 3 stands on {on('time.sleep(60)', 'cross')}",
        "  try  timeout=1.6 if a rank only computes for long",
    ]


def test_a_rank_that_never_returns_is_given_up_though_none_waits(times):
    def sleep(context):
        if context.rank == 1:
            return
        if context.rank == 0:
            time.sleep(1e9)
        while True:
            pass

    for _ in times:
        ranks = pool(3)
        old, started = pids(ranks), time.monotonic()
        error = failure(ranks, sleep, timeout=0.8)
        assert time.monotonic() - started < 20
        *lines, spinning, last = str(error).splitlines()
        assert lines == [
            "time-out: no rank made progress for 0.8 s",
            "  why  ranks 0, 2: computing; rank 1: finished; "
            "progress is to enter or leave a collective, or to end",
            f"       rank 0 stands on {on('time.sleep(1e9)', 'sleep')}",
        ]
        assert spinning.removeprefix("       rank 2 stands on ") in (
            on("while True:", "sleep"),
            on("pass", "sleep"),
        )
        assert last == "  try  timeout=1.6 if a rank only computes for long"
        assert (error.first, error.ranks) == (0, {0: "computing", 1: "finished", 2: "computing"})
        assert gone(old)
        in_order(ranks)


def test_a_higher_timeout_lets_a_rank_compute():
    with pytest.raises(RankFailure, match=r"\n  try  timeout=0\.8 if a rank only computes for long$"):
        pool(2).run(lambda context: time.sleep(0.7), timeout=0.4)
    answers = pool(2).run(lambda context: time.sleep(0.7), timeout=0.8)
    assert [answer.error for answer in answers] == [None, None]


def test_a_note_is_progress():
    def talk(context):
        for _ in range(8 if context.rank else 0):
            context.note("")
            time.sleep(0.2)
        return meet(context)

    assert [answer.value for answer in pool(2).run(talk, timeout=0.6)] == [1, 1]


def test_a_kernel_that_was_stopped_has_not_waited(monkeypatch):
    clock = iter([0.0, 0.0, 0.5, 1.0, 900.0, 900.5, 901.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    still = Quiet()
    assert [still.look("the same") for _ in range(5)] == [0, 0.5, 1.0, 1.0, 1.5]
    assert still.look("another") == 0


# -- giving up -------------------------------------------------------------------------------------


def stuck(context):
    """Half of the ranks wait for the others, which compute without end."""
    if context.rank % 2:
        meet(context)
    x = torch.ones(64, 64)
    while True:
        x @ x


@pytest.fixture
def interruptible():
    """SIGINT as Python has it by default: a shell may have started the tests with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_the_run(times):
    for _ in times:
        ranks = pool(4)
        old = pids(ranks)
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt, match=r"^$"):
            ranks.run(stuck)
        timer.join()
        assert gone(old)
        in_order(ranks)


def test_a_run_can_be_cancelled(times):
    said = f"the run was cancelled\n  why  ranks 0, 2: computing; ranks 1, 3: waiting in {HERE}"
    for _ in times:
        ranks = pool(4)
        old = pids(ranks)
        with pytest.raises(Cancelled, match=exactly(said)):
            ranks.run(stuck, cancel=lambda ranks=ranks: all(ranks._slots.read(rank).text for rank in (1, 3)))
        assert gone(old)
        in_order(ranks)


def test_close_leaves_nothing_behind():
    ranks = pool(4)
    old, folder = pids(ranks), Path(ranks._folder)
    assert folder.is_dir()
    close_pool()
    assert gone(old, within=0)
    assert not folder.exists()


def test_one_run_at_a_time():
    ranks, said = pool(2), []

    def other():
        with pytest.raises(LlamaparError, match=r"^the ranks are busy\n  why  a run in another thread"):
            ranks.run(where)
        said.append("refused")

    thread = threading.Timer(0.1, other)
    thread.start()
    ranks.run(lambda context: time.sleep(0.4))
    thread.join()
    assert said == ["refused"]


# -- other processes -------------------------------------------------------------------------------


def script(tmp_path, body):
    path = tmp_path / f"script{len(list(tmp_path.iterdir()))}.py"
    path.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{textwrap.dedent(body)}")
    return [sys.executable, str(path)]


BUSY = """
    import os, torch, torch.distributed as dist
    from llamapar.execution.engines import pool as p
    def busy(context):
        print(end="")
        if context.rank == 0:
            dist.all_reduce(torch.ones(1))
        x = torch.ones(256, 256)
        while True:
            x @ x
    ranks = p.pool(3)
    pids = [answer.value for answer in ranks.run(lambda context: os.getpid())]
    print(p._server.process.pid, *pids, ranks._folder, flush=True)
    ranks.run(busy)
"""


@pytest.mark.soak
def test_nothing_outlives_a_killed_kernel(tmp_path, times):
    for _ in times:
        with subprocess.Popen(script(tmp_path, BUSY), stdout=subprocess.PIPE, text=True) as kernel:
            *found, folder = kernel.stdout.readline().split()
            processes = [int(pid) for pid in found]
            time.sleep(0.2)
            assert len(processes) == 4
            assert not gone(processes, within=0)
            kernel.kill()
        assert gone(processes)
        assert not Path(folder).exists()


SLOW = """
    import pathlib, time
    pathlib.Path({begun!r}).touch()
    time.sleep(600)
"""
STARTING = """
    from llamapar.execution.engines.pool import Pool
    Pool(2, preload=("slow",)).run(print)
"""


@pytest.fixture
def begun(tmp_path):
    """Made by `slow`, a module that never comes to the end of its import, in place of torch that is slow."""
    path = tmp_path / "begun"
    (tmp_path / "slow.py").write_text(textwrap.dedent(SLOW.format(begun=str(path))))
    return path


@pytest.mark.soak
def test_a_kernel_killed_while_its_server_imports_leaves_nothing(tmp_path, begun, times):
    for _ in times:
        begun.unlink(missing_ok=True)
        with subprocess.Popen(script(tmp_path, STARTING)) as kernel:
            end = time.monotonic() + 60
            while not begun.exists() and time.monotonic() < end:
                time.sleep(0.01)
            servers = [child.pid for child in psutil.Process(kernel.pid).children()]
            kernel.kill()
        assert len(servers) == 1
        assert gone(servers)


@pytest.mark.soak
def test_a_run_is_cancelled_while_the_server_imports(begun, monkeypatch):
    monkeypatch.syspath_prepend(str(begun.parent))
    monkeypatch.setattr(pool_module, "_server", None)
    with pytest.raises(Cancelled, match=r"^the run was cancelled\n  why  torch was still being imported for"):
        Pool(2, preload=("slow",)).run(where, cancel=begun.exists)


def test_a_fork_of_the_kernel_leaves_the_ranks_alone():
    ranks = pool(2)
    old = pids(ranks)
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child touches nothing that threads hold
        child = os.fork()
    if child == 0:
        try:
            ranks.run(where)
        except LlamaparError as error:
            os.write(writing, error.why.encode())
        finally:  # whatever happens, it is no second run of the tests
            ranks.close()
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        assert told.read() == f"its ranks belong to process {os.getpid()}"
    os.waitpid(child, 0)
    assert pids(ranks) == old


def test_the_ranks_listen_on_loopback_only():
    ranks = pool(4)
    in_order(ranks)
    listening = [
        connection.laddr.ip
        for pid in pids(ranks)
        for connection in psutil.Process(pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening  # gloo does listen: the test would notice
    assert set(listening) <= {"127.0.0.1", "::1"}


# -- wrong use -------------------------------------------------------------------------------------


def test_gpus_are_taken_in_turn(monkeypatch):
    monkeypatch.setattr("llamapar.spmd.compat.gpus", lambda: 2)
    assert Pool(4, device="cuda").spec.devices == (0, 1)


def test_a_function_that_cannot_be_sent_is_refused(monkeypatch):
    lock = threading.Lock()
    told = (
        "the function cannot be sent to the ranks\n"
        "  why  TypeError: cannot pickle '_thread.lock' object\n"
        "  try  make inside the function what cannot be sent"
    )
    with pytest.raises(LlamaparError, match=exactly(told)):
        pool(2).run(lambda context: lock)
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(LlamaparError, match=r"  try  pip install cloudpickle, which can send functions of a"):
        pool(2).run(lambda context: 1)


@pytest.mark.soak
def test_a_module_that_the_server_cannot_import_is_named():
    told = (
        "the process that starts the ranks could not start\n"
        "  why  ModuleNotFoundError: No module named 'no_such_module'"
    )
    with pytest.raises(RankFailure, match=f"^{re.escape(told)}\n.*") as caught:
        Server(("no_such_module",))
    assert "import_module(name)" in caught.value.__notes__[0]


# -- small parts -----------------------------------------------------------------------------------


def test_a_note_is_read_as_it_was_written(tmp_path):
    slots = Slots(str(tmp_path / "slots"), 64)
    reader = Slots(str(tmp_path / "slots"), 64)
    assert reader.read(63) == (0, (), "", 0)
    slots.write(63, HERE, [1, 63], 7)
    assert reader.read(63) == (2, (1, 63), HERE, 7)
    slots.write(63, "×" * 500)
    notes, ranks, text, _ = reader.read(63)
    assert (notes, ranks) == (4, tuple(range(64)))
    assert set(text) == {"×"}
    assert reader.read(62) == (0, (), "", 0)
    slots.move(63)
    assert reader.read(63) == (5, ranks, text, 0)


def test_notes_have_their_room_on_the_disk(tmp_path):
    """A hole would be filled when a rank writes, and end its process where the disk is full by then."""
    Slots(str(tmp_path / "slots"), 64)
    Slots(str(tmp_path / "slots"), 64).write(63, HERE)
    found = (tmp_path / "slots").stat()
    assert found.st_size == 64 * Slots.SIZE
    assert found.st_blocks * 512 >= found.st_size


def test_a_disk_that_is_full_is_told(monkeypatch):
    def full(path, world):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pool_module, "Slots", full)
    said = (
        r"^.+: No space left on device\n  why  the ranks note there(.|\n)+  try  a folder with room, named by"
    )
    with pytest.raises(LlamaparError, match=f"{said} the variable TMPDIR$"):
        Pool(2).run(where)


def test_the_words_for_an_end():
    assert ending(0) == "exited with status 0"
    assert ending(-11) == "was killed by SIGSEGV"
    assert ending(-40) == "was killed by signal 40"
