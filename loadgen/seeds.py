"""One seed a dimension: everything random draws from a seed of its own, derived from the run's."""

import hashlib


def derived(seed: int, *path: str | int, bits: int = 64) -> int:
    """A seed of `bits` bits for what the path names, the same on every machine and in every version of Python."""
    key = "\x1f".join(str(part) for part in (seed, *path)).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=16).digest()) >> (128 - bits)
