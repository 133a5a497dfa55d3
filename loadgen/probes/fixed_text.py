"""Texts that are always the same, for the server's own log-probabilities of them: no token is sampled.

They are asked for as a reference is asked to score, so there are no requests of a pass. A record of one holds the
text's first token as its prompt and the others as its reply.
"""

import uuid
from collections.abc import Sequence

from loadgen.dialects import Scored
from loadgen.record import Failure, Logprob, Record

TEXTS = (
    "The harbour had frozen over before the first week of December was out, and the pilot boats lay in a row along the "
    "quay with their engines drained. Nobody could remember a winter that had begun so early. In the café by the "
    "custom house the skippers played cards for matches, argued about the price of diesel, and waited for the wind to "
    "turn south.",
    "To convert a temperature from degrees Fahrenheit to degrees Celsius, subtract 32 and multiply the result by 5/9. "
    "For example, 98.6 °F is (98.6 − 32) × 5/9 = 37 °C. The two scales agree at exactly one point: −40 °F equals "
    "−40 °C. Below absolute zero, which is −273.15 °C, no temperature exists.",
    "def merge(left, right):\n    merged = []\n    i = j = 0\n    while i < len(left) and j < len(right):\n"
    "        if left[i] <= right[j]:\n            merged.append(left[i])\n            i += 1\n        else:\n"
    "            merged.append(right[j])\n            j += 1\n    return merged + left[i:] + right[j:]\n",
    "Dear Ms. Okafor,\n\nThank you for your letter of 3 March concerning invoice 20418. We have checked our records "
    "and found that the delivery of twelve cartons was charged twice. A credit note for the second charge is enclosed; "
    "please deduct it from your next payment. We apologise for the inconvenience.\n\nYours sincerely,\nH. Lindqvist",
)


Told = list[Scored | None] | str
"""What a server says of the tokens of a text, or why it says nothing."""


def record(endpoint: str, profile: str, number: int, ids: Sequence[int], told: Told, at_ns: tuple[int, int]) -> Record:
    """at_ns: when it was asked, and answered."""
    return Record(
        id=uuid.uuid4().hex,
        endpoint=endpoint,
        profile=profile,
        pass_no=0,
        lane=0,
        phase="probe",
        probe="fixed_text",
        prompt_id=f"text-{number}",
        asked={},
        sent_ns=at_ns[0],
        end_ns=at_ns[1],
        prompt_token_ids=list(ids[:1]),
        token_ids=list(ids[1:]),
        logprobs=None if isinstance(told, str) else [_told(one) for one in told[1:]],
        failure=Failure(kind="error_body", detail=told) if isinstance(told, str) else None,
    )


def _told(score: Scored | None) -> Logprob:
    if score is None:
        return Logprob(token_id=None, token=None, logprob=None, top=[])
    return Logprob(
        token_id=score.token_id,
        token=None,
        logprob=score.logprob if score.logprob > float("-inf") else None,
        top=[],
    )
