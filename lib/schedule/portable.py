"""Exponential and logarithm with the same bits on every machine, and how functions are compiled.

NumPy's and the C library's functions differ in the last digit between processors (AVX2, AVX-512, FMA), and a search that starts
from such numbers ends elsewhere. Here only additions, multiplications and divisions are used, which IEEE 754 defines to the
last bit. Results are within 2 ulp of the true value.
"""

from collections.abc import Callable
from math import factorial, floor, frexp, inf, ldexp

import numpy as np

_SQRT_HALF = 0.7071067811865476
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10  # whole multiples of the first are exact
_PER_LN2 = 1.4426950408889634
_LEAST, _MOST = -745.0, 709.78  # beyond: 0 and infinity
_EXP_TERMS = [1 / factorial(number) for number in range(13, -1, -1)]


def compiled(function: Callable) -> Callable:
    """Compile a function with numba (a decorator); the result is cached on disk if some folder is writable."""
    from numba import njit

    try:
        return njit(cache=True)(function)
    except RuntimeError:  # neither the source's folder nor the home folder can hold the cache
        return njit()(function)


def log_of_ratio(ratio, exponent):
    """Return log(m x 2^exponent) = 2 atanh(ratio) + exponent log 2, m within [sqrt(1/2), sqrt(2)], ratio = (m - 1) / (m + 1).

    Computed as a series, for floats and arrays; ``local_search`` compiles it.
    """
    square, total = ratio * ratio, 0.0
    for odd in range(23, 1, -2):
        total = total * square + 1.0 / odd
    return exponent * _LN2_HIGH + (2.0 * ratio + (2.0 * ratio * (square * total) + exponent * _LN2_LOW))


def _exp_of_rest(rest):
    total = 0.0
    for term in _EXP_TERMS:
        total = total * rest + term
    return total


def log(values: np.ndarray | float) -> np.ndarray:
    """Return the logarithm of an array; -inf of 0, inf of inf, NaN of negative numbers."""
    values = np.asarray(values, float)
    inside = (values > 0) & (values < inf)
    mantissa, exponent = np.frexp(np.where(inside, values, 1.0))
    low = mantissa < _SQRT_HALF
    mantissa = np.where(low, 2.0 * mantissa, mantissa)
    result = log_of_ratio((mantissa - 1.0) / (mantissa + 1.0), (exponent - low).astype(float))
    return np.select([inside, values == 0, values == inf], [result, -inf, inf], np.nan)


def exp(values: np.ndarray | float) -> np.ndarray:
    """Return the exponential of an array."""
    values = np.asarray(values, float)
    inside = (values > _LEAST) & (values < _MOST)
    bounded = np.where(inside, values, 0.0)
    twos = np.floor(bounded * _PER_LN2 + 0.5)
    result = np.ldexp(_exp_of_rest((bounded - twos * _LN2_HIGH) - twos * _LN2_LOW), twos.astype(int))
    return np.select([inside, values <= _LEAST, values >= _MOST], [result, 0.0, inf], np.nan)


def log_one(value: float) -> float:
    """Return ``log`` of one positive finite number, with the same bits."""
    mantissa, exponent = frexp(value)
    if mantissa < _SQRT_HALF:
        mantissa, exponent = 2.0 * mantissa, exponent - 1
    return log_of_ratio((mantissa - 1.0) / (mantissa + 1.0), float(exponent))


def exp_one(value: float) -> float:
    """Return ``exp`` of one number, with the same bits."""
    if not _LEAST < value < _MOST:
        return 0.0 if value <= _LEAST else inf
    twos = floor(value * _PER_LN2 + 0.5)
    return ldexp(_exp_of_rest((value - twos * _LN2_HIGH) - twos * _LN2_LOW), twos)
