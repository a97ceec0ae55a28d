"""Runs `framework_probe/probe.py` on another Python and reads its answer, which is bounded in size and time."""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from typing import IO, Any

from converter.conformance.answers import AnswerError
from converter.environment import pinned
from converter.errors import UsageError, VerificationError
from converter.own_process import HOME
from converter.words import printable, shorten

PROBE = os.path.join(HOME, "converter", "framework_probe", "probe.py")

MAX_ANSWER = 256 << 20
"""Bytes of an answer. That of all published sizes in both layouts has 4 MiB."""

TIMEOUT = 1800.0
"""Seconds. To import AXLearn takes longest."""

MAX_MESSAGES = 8
"""Lines of the framework's own messages that an error shows."""


def ask(option: str, python: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Asks the framework in a Python's environment.

    Args:
      option: the option that named the Python, for messages.
      python: an interpreter: a path, or a name on the path.
      request: see `framework_probe.probe`.

    Returns:
      The answer, not validated beyond being a JSON object.

    Raises:
      UsageError: the interpreter cannot be started, or has no such framework.
      VerificationError: the framework ends the process, takes too long, or answers something else.
    """
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as messages:
        try:
            process = subprocess.Popen(
                [python, PROBE], stdin=subprocess.PIPE, stdout=answer, stderr=messages, env=_variables()
            )
        except OSError as error:
            raise UsageError(
                f"{option} {python}: cannot be started: {error.strerror}; give the Python of an environment with the "
                "framework in it, such as venv/bin/python"
            ) from None
        try:
            process.communicate(json.dumps(request).encode(), timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            raise VerificationError(f"{option} {python}: no answer within {TIMEOUT:.0f} s", _tail(messages)) from None
        except BrokenPipeError:
            pass  # it ended before it read the request; its exit code says so
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if process.returncode:
            raise VerificationError(
                f"{option} {python}: the framework ended the process with exit code {process.returncode}",
                _tail(messages),
            )
        return _parsed(option, python, answer)


def _variables() -> dict[str, str]:
    """The user's environment: the framework may be found by it. Only the accelerator is left alone."""
    return pinned(os.environ)


def _parsed(option: str, python: str, file: IO[bytes]) -> dict[str, Any]:
    file.seek(0)
    data = file.read(MAX_ANSWER + 1)
    if len(data) > MAX_ANSWER:
        raise VerificationError(f"{option} {python}: the answer is larger than {MAX_ANSWER >> 20} MiB")
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        raise VerificationError(f"{option} {python}: the answer is not JSON: {data[:100]!r}") from None
    if not isinstance(answer, dict):
        raise VerificationError(f"{option} {python}: the answer is not a JSON object: {data[:100]!r}")
    if isinstance(answer.get("error"), str):
        raise UsageError(f"{option} {python}: {printable(answer['error'])[:2000]}")
    return answer


def invalid(option: str, python: str, error: AnswerError) -> VerificationError:
    """The error for an answer of another form."""
    return VerificationError(f"{option} {python}: the answer is not valid: {printable(str(error))}")


def _tail(messages: IO[bytes]) -> list[str]:
    """The last lines that the framework printed."""
    messages.seek(max(messages.seek(0, os.SEEK_END) - 65536, 0))
    lines = [line for line in messages.read().decode(errors="replace").splitlines() if line.strip()]
    return shorten([line[:300] for line in lines[-MAX_MESSAGES:]])
