"""The embedded engine's tokenizer: end of sequence, characters, common words; bytes for all the rest.

Ids 0 … SAMPLED − 1 can be sampled; the byte ids above only make any prompt round-trip.
"""

import re

EOS = 0
_CHARACTERS = "\n\t" + "".join(map(chr, range(0x20, 0x7F)))
_WORDS = """
the of and to in is that it was for on are as with his they at be this have from or one had by not but what all were
when we there can an your which their said if do will each about how up out them then she many some so these would
other into has more her two like him see time could no make than first been its who now people my made over did down
only way find use may water long little very after words called just where most know get through back much before go
good new write our used me man too any day same right look think also around another came come work three must because
does part even place well such here take why things help put years different away again off went old number great tell
men say small every found still between name should home big give air line set own under read last never us left end
along while might next sound below saw something thought both few those always looked show large often together asked
house world going want school important until form food keep children feet land side without boy once animals life
enough took sometimes four head above kind began almost live page got earth need far hand high year mother light parts
country father let night following picture being study second eyes soon times story boys since white days ever paper
hard near sentence better best across during today others however sure means knew try told young miles sun ways thing
whole hear example heard several change answer room sea against top turned learn point city play toward five using
himself usually money seen car morning body upon family later turn move face door cut
""".split()  # noqa: SIM905 - three hundred quoted words would be harder to read

PIECES: tuple[str, ...] = ("", *_CHARACTERS, *(f" {word}" for word in _WORDS))
"""The text of every id that can be sampled; the end of a sequence has none."""

SAMPLED = len(PIECES)
VOCABULARY = SAMPLED + 256

_IDS = {piece: token for token, piece in enumerate(PIECES) if piece}
# Longest first: the alternation of re takes the first that fits. DOTALL so that a lone "\r" falls to the byte ids.
_SCAN = re.compile("|".join(map(re.escape, sorted(_IDS, key=len, reverse=True))) + r"|.", re.DOTALL)


def encode(text: str) -> list[int]:
    """Greedy longest match; decode(encode(text)) == text for every text that UTF-8 can hold."""
    tokens: list[int] = []
    for piece in _SCAN.findall(text):
        token = _IDS.get(piece)
        if token is None:
            tokens += [SAMPLED + byte for byte in piece.encode()]
        else:
            tokens.append(token)
    return tokens


def decode(tokens: list[int]) -> str:
    """The text of ids below VOCABULARY; bytes that are no UTF-8 become U+FFFD."""
    return b"".join(map(as_bytes, tokens)).decode(errors="replace")


def as_bytes(token: int) -> bytes:
    return PIECES[token].encode() if token < SAMPLED else bytes([token - SAMPLED])


def as_text(token: int) -> str:
    """One token alone, as answers name it: a byte of a longer character shows as U+FFFD."""
    return PIECES[token] if token < SAMPLED else decode([token])
