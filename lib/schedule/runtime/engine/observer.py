"""What may watch the jobs of an engine."""

from typing import Any, Protocol


class Observer(Protocol):
    """What may watch the jobs of an engine, in its thread; an end is in the journal before it is seen here."""

    def started(self, job_id: str, attempt: int, slot: str, at_s: float) -> None:
        """Notice that an attempt starts."""

    def ended(self, job_id: str, attempt: int, status: str, reason: str, result: Any, at_s: float) -> None:
        """Notice the end of a job: done, failed or cancelled; attempt 0 where it never started."""

    def stopped(self, job_id: str, attempt: int, status: str, reason: str, at_s: float) -> None:
        """Notice the end of an attempt that is not the job's: retried, moved or lost."""

    def reported(self, job_id: str, attempt: int, content: dict[str, Any]) -> None:
        """Notice what a task reports while it runs."""


class Unobserved:
    """The observer that does nothing."""

    def started(self, job_id: str, attempt: int, slot: str, at_s: float) -> None:
        """Do nothing."""

    def ended(self, job_id: str, attempt: int, status: str, reason: str, result: Any, at_s: float) -> None:
        """Do nothing."""

    def stopped(self, job_id: str, attempt: int, status: str, reason: str, at_s: float) -> None:
        """Do nothing."""

    def reported(self, job_id: str, attempt: int, content: dict[str, Any]) -> None:
        """Do nothing."""
