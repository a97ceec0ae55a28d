"""The CRC-32C of bytes of which only the CRC-32Cs of their parts are known."""

import functools

POLYNOMIAL = 0x82F63B78
"""Castagnoli's, with the bits reversed as the checksum has them (RFC 3720, appendix B.4)."""

ONE, BITS = 1 << 31, 32


def combine(first: int, second: int, second_size: int) -> int:
    """The checksum of two pieces from theirs: the first one's is moved past the second, which is a multiplication.

    Args:
      first: the checksum of the first piece; 0 for none.
      second: the checksum of the second.
      second_size: bytes of the second piece.
    """
    return _multiply(_power(8 * second_size), first) ^ second


def _power(exponent: int) -> int:
    """x to a power, modulo the polynomial."""
    result, square = ONE, ONE >> 1
    while exponent:
        if exponent & 1:
            result = _multiply(square, result)
        exponent >>= 1
        square = _multiply(square, square)
    return result


@functools.lru_cache(maxsize=1 << 10)
def _multiply(left: int, right: int) -> int:
    """The product of two polynomials over GF(2), modulo the polynomial."""
    product = 0
    for bit in range(BITS - 1, -1, -1):
        if left >> bit & 1:
            product ^= right
        right = right >> 1 ^ (POLYNOMIAL if right & 1 else 0)
    return product
