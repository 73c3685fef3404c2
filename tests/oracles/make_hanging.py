"""A small training script whose ranks can be made to hang: the program of make_stacks.py.

    python make_hanging.py RANK WORLD FOLDER FAULT CULPRIT

Four ranks over gloo, in pairs for tensor parallelism and in pairs for data parallelism, or in two stages of
two. A fault makes one rank, or one stage, do something else in the second step.
"""

import faulthandler
import os
import pdb  # noqa: T100
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

PATIENCE = 6.0
"""Seconds from the start of the second step until each rank writes where it stands."""


class Batches(torch.utils.data.Dataset):
    def __init__(self, stuck):
        self.stuck = stuck

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if self.stuck and index >= 2:
            time.sleep(1000)
        return torch.ones(4, 8)


class Trainer:
    def __init__(self, rank, folder, fault, culprit):
        self.rank, self.folder, self.fault = rank, folder, fault
        self.faulty = rank == culprit or (culprit == -1 and rank >= 2)
        pairs = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
        (self.tp,), (self.dp,) = (
            [group for ranks, group in made if rank in ranks]
            for made in ([(ranks, dist.new_group(ranks)) for ranks in pair] for pair in pairs)
        )
        self.weight = torch.ones(8, 8)
        stuck = fault == "data" and self.faulty
        self.batches = iter(torch.utils.data.DataLoader(Batches(stuck), batch_size=1, num_workers=1))
        for group in (self.tp, self.dp, dist.group.WORLD):
            dist.all_reduce(torch.ones(1), group=group)

    def wrong(self, fault):
        return self.number == 1 and self.fault == fault and self.faulty

    def train(self):
        for number in range(8):
            self.number = number
            if number == 1:
                report(self.rank, self.folder)
            if self.wrong("leaves"):
                break
            self.step()
        self.finish()

    def step(self):
        batch = next(self.batches)[0]
        if self.fault.startswith("stages"):
            self.exchange(batch)
        else:
            self.compute(batch)

    def compute(self, batch):
        hidden = self.forward(batch)
        if self.wrong("evaluates"):
            self.evaluate(batch)
        if self.wrong("raises"):
            try:
                raise ValueError("loss is nan")
            except ValueError:
                self.give_up()
        self.backward(hidden)
        self.reduce_gradients()
        if self.number == 1 and self.fault in ("saves", "asks"):
            self.checkpoint()
        self.log_loss(hidden.sum())

    def forward(self, batch):
        hidden = batch @ self.weight
        if self.wrong("skips"):
            return hidden
        if self.wrong("order of groups"):
            self.average(hidden)
            self.sum_over_tp(hidden)
        else:
            self.sum_over_tp(hidden)
            self.average(hidden)
        return hidden

    def sum_over_tp(self, hidden):
        dist.all_reduce(hidden, group=self.tp)

    def average(self, hidden):
        dist.all_reduce(hidden, group=self.dp)

    def backward(self, hidden):
        if self.wrong("order"):
            self.reduce_norm()
            self.gather_statistics(hidden)
        else:
            self.gather_statistics(hidden)
            self.reduce_norm()

    def gather_statistics(self, hidden):
        parts = [torch.ones(4) for _ in range(4)]
        dist.all_gather(parts, torch.ones(4))

    def reduce_norm(self):
        dist.all_reduce(torch.ones(3 if self.wrong("size") else 1))

    def reduce_gradients(self):
        if self.wrong("sends"):
            dist.send(torch.ones(2**20), (self.rank + 1) % 4)
        if self.wrong("stops"):
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.all_reduce(torch.ones(64), op=dist.ReduceOp.SUM)

    def log_loss(self, loss):
        if self.wrong("lock"):
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        if self.wrong("objects"):
            dist.all_gather_object([None] * 4, {"loss": 1.0})
        dist.all_reduce(loss)

    def checkpoint(self):
        if self.faulty and self.fault == "saves":
            os.mkfifo(f"{self.folder}/model.pt")
            torch.save(self.weight, f"{self.folder}/model.pt")
        if self.faulty and self.fault == "asks":
            pdb.set_trace()  # noqa: T100
        dist.barrier()

    def evaluate(self, batch):
        while True:
            batch = (batch @ self.weight).tanh()

    def give_up(self):
        dist.barrier()

    def exchange(self, batch):
        stage, peer = self.rank // 2, (self.rank + 2) % 4
        if self.number == 1 and self.fault == "stages receive":
            self.receive(batch, peer)
            self.transmit(batch, peer)
        elif self.number == 1 and self.fault == "stages send":
            big = torch.ones(2**20)
            self.transmit(big, peer)
            self.receive(big, peer)
        elif stage == 0:
            self.transmit(batch, peer)
            self.receive(batch, peer)
        else:
            self.receive(batch, peer)
            self.transmit(batch, peer)

    def receive(self, batch, peer):
        dist.recv(batch, peer)

    def transmit(self, batch, peer):
        dist.send(batch, peer)

    def finish(self):
        done = threading.Event()
        done.wait()


def report(rank, folder):
    """Both of what a rank can tell of itself, from outside of its main thread."""
    file = Path(folder, f"stack_rank_{rank}.txt").open("w")  # noqa: SIM115 (it stays open for the C thread)
    faulthandler.dump_traceback_later(PATIENCE, file=file)
    report.file = file

    def dump():
        data = torch._C._distributed_c10d._dump_fr_trace()
        Path(f"{folder}/record_rank_{rank}").write_bytes(data)

    thread = threading.Timer(PATIENCE + 0.5, dump)
    thread.daemon = True
    thread.start()


def main():
    rank, world, folder, fault, culprit = sys.argv[1:]
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", int(world))
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(world))
    Trainer(int(rank), folder, fault, int(culprit)).train()


if __name__ == "__main__":
    main()
