"""How functions are compiled (numba): kept on disk where some folder can be written to, else anew in each process."""

from collections.abc import Callable


def compiled(**options: bool) -> Callable[[Callable], Callable]:
    """Return the decorator that compiles a function; ``options`` are numba's.

    Numba keeps what it compiled beside the source, or else in the home folder; where neither can be written to, it refuses.
    """
    from numba import njit

    def of(function: Callable) -> Callable:
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError:  # no place for the cache
            return njit(**options)(function)
    return of
