"""What `launch` raises."""

import signal
from multiprocessing import ProcessError
from typing import Any, Callable, Dict, Optional, Tuple

_Reduced = Tuple[Callable[..., Any], Tuple[Any, ...]]


class LaunchError(ProcessError):
    """The job could not be started, or ended in a way that is no single rank's doing (a timeout, a full disk).

    Attributes:
        exitcode: the exit code of rankrun, as its documentation lists them, or `-n` if signal `n` ended it.
        report: the report of the job (docs/report.md), or `None` if there is none.
    """

    def __init__(self, msg: str, *, exitcode: int, report: Optional[Dict[str, Any]] = None) -> None:
        super().__init__(msg)
        self.exitcode = exitcode
        self.report = report

    def __reduce__(self) -> _Reduced:
        return _restore, (LaunchError, self.args, {"exitcode": self.exitcode, "report": self.report})


class StartMethodError(ProcessError, AssertionError, ValueError):
    """`set_start_method` was asked for a method that does not exist, or that this platform does not have.

    It is a `ValueError`, as `multiprocessing` would raise it, and an `AssertionError`, as the launchers raised it that
    `rankrun.launch` replaces: an `except` clause for either works.
    """


class RemoteTraceback(Exception):
    """The traceback of an exception in another process, as text. It is the cause of a `WorkerError`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class WorkerError(ProcessError):
    """A rank failed.

    If it failed by an exception, then `__cause__` is the `RemoteTraceback`, and `exception` the exception itself.

    Attributes:
        exitcode: the rank's exit code, or `-n` if signal `n` ended it.
        worker_id: the rank.
        exception: the exception that the rank raised, or `None` if it did not raise one, or one that cannot be pickled.
        report: the report of the job (docs/report.md), or `None` if there is none.
    """

    def __init__(
        self,
        *,
        msg: str,
        exitcode: int,
        worker_id: int,
        exception: Optional[BaseException] = None,
        report: Optional[Dict[str, Any]] = None,
    ) -> None:
        super().__init__(msg)
        self._exitcode = exitcode
        self._worker_id = worker_id
        self.exception = exception
        self.report = report

    def __str__(self) -> str:
        return f"worker[{self._worker_id}] failed with exitcode={self._exitcode}"

    def __reduce__(self) -> _Reduced:
        fields = {"exitcode": self._exitcode, "worker_id": self._worker_id, "report": self.report}
        return _restore, (WorkerError, (), dict(fields, msg=self.args[0]))

    @property
    def exitcode(self) -> int:
        """The rank's exit code, or `-n` if signal `n` ended it."""
        return self._exitcode

    @property
    def worker_id(self) -> int:
        """The rank."""
        return self._worker_id


class MainProcessError(ProcessError):
    """A signal to this process ended the job. When this is raised, no process of the job is left.

    Attributes:
        signal_no: the number of the signal.
    """

    def __init__(self, *, signal_no: int) -> None:
        try:
            name = signal.Signals(signal_no).name
        except ValueError:
            # Real-time signals have no names of their own.
            name = f"signal {signal_no}"
        super().__init__(f"{name} received, exiting due to {signal.strsignal(signal_no)}.")
        self._signal_no = signal_no

    def __reduce__(self) -> _Reduced:
        return _restore, (MainProcessError, (), {"signal_no": self._signal_no})

    @property
    def signal_no(self) -> int:
        """The number of the signal."""
        return self._signal_no


def _restore(kind: Callable[..., ProcessError], args: Tuple[Any, ...], fields: Dict[str, Any]) -> ProcessError:
    return kind(*args, **fields)
