"""`llamapar schedule`: a timeline for people, a table for scripts, and refusals in words."""

from __future__ import annotations

import json
from typing import Any

import pytest

import llamapar as lp
from llamapar.cli.plain_commands import PLAIN
from llamapar.place.orders import ORDERS

PAPER = "schedule interleaved-1f1b --pp 16 --virtual-stages 8 --micro-batches 16"


def test_the_table_as_json(run: Any) -> None:
    status, out, err = run(f"{PAPER} --json")
    told = json.loads(out)
    assert (status, err, list(told)) == (0, "", ["bubble", "in_flight", "ranks"])
    assert told["bubble"] == 15 / 128
    assert len(told["in_flight"]) == 16
    assert told["in_flight"][-1] == 7 * 16 + 1
    assert (told["ranks"][0][0], told["ranks"][15][113]) == (["F", 0, 0], ["B", 127, 0])
    assert sum(map(len, told["ranks"])) == 4096


@pytest.mark.parametrize("name", ORDERS)
def test_every_schedule_is_that_of_python(run: Any, name: str) -> None:
    made = lp.schedule(name, pp=4, micro_batches=8)
    command = f"schedule {name} --pp 4 --micro-batches 8"
    status, out, _ = run(f"{command} --json")
    assert (status, json.loads(out)) == (0, made.timeline().as_dict())
    table = [[lp.Action(*entry) for entry in row] for row in json.loads(out)["ranks"]]
    assert tuple(map(tuple, table)) == made.ranks
    assert run(command)[1] == f"{made.timeline()}\n"


def test_a_timeline_as_text(run: Any) -> None:
    assert run("schedule gpipe --pp 2 --micro-batches 2") == (
        0,
        "GPipe, pp=2, 2 micro-batches: bubble 50.00% of compute\n"
        "rank 0 F0 F1 .........B0--- B1---\n"
        "rank 1 ...F0 F1 B0--- B1--- ......\n"
        "idle 33.33% of the time; chunks in flight at most, by rank: 2, 2\n"
        "F forward, B backward, each with its micro-batch; dots are bubbles\n",
        "",
    )


def test_rounds_of_the_flexible_schedule(run: Any) -> None:
    out = run("schedule flexible --pp 4 --micro-batches 12 --nc 6 --json")[1]
    assert json.loads(out)["in_flight"] == [13, 11, 9, 7]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "schedule",
            "llamapar: a schedule is needed\n"
            f"  why  schedules are {', '.join(ORDERS)}\n"
            "  try  llamapar schedule 1f1b, or llamapar schedule interleaved-1f1b\n",
        ),
        (
            "schedule 1f1b --pp 4",
            "llamapar: a number of micro-batches is needed\n"
            "  why  a schedule is the order in which ranks take them\n"
            "  try  --micro-batches 8\n",
        ),
        (
            "schedule 1f1b --pp 4 --virtual-stages 2 --micro-batches 8",
            "llamapar: 1F1B with virtual_stages=2\n"
            "  why  it has 1 on each rank\n"
            "  try  --virtual-stages 1, or interleaved-1f1b\n",
        ),
        (
            "schedule zbvv --pp 4 --micro-batches 8",
            f"llamapar: schedule='zbvv' is not known\n  why  known are {', '.join(ORDERS)}\n  try  zbv\n",
        ),
        (
            "schedule 1f1b 4 --micro-batches 8",
            "llamapar: '4' is one word too many\n  try  --pp 4\n",
        ),
    ],
)
def test_refusals(run: Any, words: str, told: str) -> None:
    assert run(words) == (2, "", told)


def test_a_refusal_as_json(run: Any) -> None:
    status, out, _ = run("schedule interleaved-1f1b --pp 4 --micro-batches 9 --json")
    assert status == 2
    assert json.loads(out) == {
        "error": {
            "field": "micro_batches",
            "message": "interleaved 1F1B with 9 micro-batches for pp=4",
            "why": "its 2 rounds, of at least pp each, have to be equal",
            "choose": ["--micro-batches 8", "--micro-batches 12"],
        }
    }


def test_help_and_its_examples(run: Any) -> None:
    status, out, err = run("schedule --help")
    assert (status, err) == (0, "")
    assert out.isascii()
    assert "exit status: 0 found, 2 bad usage or bad input\n" in out
    assert "\n    schedule " in run("--help")[1]
    for line in PLAIN["schedule"].example.splitlines():
        status, out, err = run(line.strip().removeprefix("llamapar "))
        assert (status, err) == (0, "")
        assert out
