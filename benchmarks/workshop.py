"""Work in a process apart: a crash, a hang or a broken device costs one piece of work, not all.

It has no command; gpu.py asks.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from fedrepro.errors import FedReproError, one_line

MARK = "@result "
Case = dict[str, Any]


def serve(work: Callable[[Case], dict[str, Any]]) -> None:
    """The inside: cases come as lines on standard input; each answer is a marked line.

    It ends after an error, for after one nothing on a device can be trusted.
    """
    for line in sys.stdin:
        try:
            answer = work(json.loads(line))
        except FedReproError as error:
            answer = {"error": str(error)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {one_line(error)}"}
        print(MARK + json.dumps(answer), flush=True)
        if "error" in answer:
            return


class Workshop:
    """The outside: a process of `command`, begun again when it ended or was given up.

    variables: of its environment, beside this process's own.
    """

    def __init__(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        self._command, self._variables = list(command), dict(variables)
        self._process: subprocess.Popen[str] | None = None

    def do(self, case: Case, limit: float) -> dict[str, Any]:
        """The answer to a case; an `error` where it fails or takes more than `limit` seconds."""
        if self._process is None:
            self._start()
        try:
            self._inside.write(json.dumps(case) + "\n")
            self._inside.flush()
            line = self._lines.get(timeout=limit)
        except queue.Empty:
            self.close()
            return {"error": f"no answer within {limit:.0f} s"}
        except BrokenPipeError:
            line = None
        if line is None:
            error = {"error": f"the process ended: {self._last_words()}"}
            self.close()
            return error
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            self.close()
        return answer

    def _start(self) -> None:
        descriptor, name = tempfile.mkstemp(suffix=".log")
        self._errors = Path(name)
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=descriptor,
            text=True,
            env={**os.environ, **self._variables},
        )
        os.close(descriptor)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._inside: IO[str] = self._process.stdin
        self._lines: queue.Queue[str | None] = queue.Queue()
        listener = threading.Thread(
            target=_listen, args=(self._process.stdout, self._lines), daemon=True
        )
        listener.start()

    def _last_words(self) -> str:
        lines = self._errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "without a word"

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self._errors.unlink(missing_ok=True)


def _listen(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    with stream:
        for line in stream:
            if line.startswith(MARK):
                lines.put(line[len(MARK) :])
    lines.put(None)
