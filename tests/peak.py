"""Peak memory of one call: anonymous pages, which are ours alone, and all resident ones.

File pages that are mapped count as resident and are the kernel's to take back; anonymous ones are not.
"""

from __future__ import annotations

import threading
from pathlib import Path


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


class Peak:
    """`with Peak() as peak: …`; then peak.anonymous and peak.resident, bytes above those at the start."""

    def __enter__(self) -> Peak:
        self._base = self._now()
        self._most = (0, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._look()
        self.anonymous, self.resident = self._most

    def _now(self) -> tuple[int, int]:
        return _status("RssAnon"), _status("VmRSS")

    def _look(self) -> None:
        now = self._now()
        above = [n - base for n, base in zip(now, self._base, strict=True)]
        self._most = (max(self._most[0], above[0]), max(self._most[1], above[1]))

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self._look()
