"""All requests of a pass with their lanes and due times, made before the clock starts. Nothing here waits."""

import math
import random
from collections.abc import Sequence

from loadgen.profile import Arrivals, Profile
from loadgen.prompts import Prompt, PromptsError
from loadgen.request import Kind, Request
from loadgen.seeds import derived


def schedule(
    profile: Profile, pass_key: str, prompts: Sequence[Prompt], lanes: int | None, seed: int, endpoint: str
) -> list[Request]:
    """One request a prompt, in the prompts' order; lane i of L has the requests i, i + L, i + 2L, …

    The same seed and pass key give every endpoint the same due times; only request seeds depend on the endpoint's
    label. Open loop: lanes is None and a request's lane is its own index, since every arrival is a client of its own.
    Raises PromptsError where a prompt does not fit the profile's endpoint.
    """
    due = due_times(profile, len(prompts), lanes, derived(seed, "arrivals", pass_key))
    return [
        Request(
            prompt_id=f"{pass_key}-{index}",
            prompt=_fitting(prompt, profile.endpoint, f"{pass_key}-{index}"),
            kind=profile.endpoint,
            asked=_asked(profile, prompt, derived(seed, "request", endpoint, pass_key, index, bits=31)),
            lane=index % lanes if lanes else index,
            due_s=due[index],
        )
        for index, prompt in enumerate(prompts)
    ]


def due_times(profile: Profile, count: int, lanes: int | None, seed: int) -> list[float | None]:
    """Seconds from the pass's start: absolute, so that a late request delays no other. None: when the lane is free."""
    if lanes is None:
        assert profile.arrivals is not None
        return list(arrivals(profile.arrivals, count, seed))
    step_s = profile.start_spread_ms / 1000
    return [index * step_s if index < lanes else None for index in range(count)]


def arrivals(arrivals: Arrivals, count: int, seed: int) -> list[float]:
    """Constant: i / rate. Poisson: sums of exponential gaps −ln(1 − u) / rate, the first arrival after a gap too."""
    if arrivals.kind == "constant":
        return [index / arrivals.rate_per_s for index in range(count)]
    rng = random.Random(seed)
    now_s, due = 0.0, []
    for _ in range(count):
        now_s -= math.log1p(-rng.random()) / arrivals.rate_per_s
        due.append(now_s)
    return due


def by_lane(requests: Sequence[Request]) -> dict[int, list[Request]]:
    """Each lane's requests in the order in which it sends them."""
    lanes: dict[int, list[Request]] = {}
    for request in requests:
        lanes.setdefault(request.lane, []).append(request)
    return lanes


def _asked(profile: Profile, prompt: Prompt, request_seed: int) -> dict[str, object]:
    asked = profile.asked()
    if prompt.max_tokens is not None:
        asked["max_tokens"] = prompt.max_tokens
    if profile.sampling.request_seeds:
        asked["seed"] = request_seed
    return asked


def _fitting(prompt: Prompt, kind: Kind, prompt_id: str) -> Prompt:
    """The prompt in the one form that its endpoint takes."""
    if kind == "chat" and prompt.messages is not None:
        return Prompt(messages=prompt.messages, max_tokens=prompt.max_tokens)
    if kind == "chat" and prompt.text is not None:
        return Prompt(messages=[{"role": "user", "content": prompt.text}], max_tokens=prompt.max_tokens)
    if kind == "completions" and prompt.token_ids is not None:
        return Prompt(token_ids=prompt.token_ids, max_tokens=prompt.max_tokens)
    if kind == "completions" and prompt.text is not None:
        return Prompt(text=prompt.text, max_tokens=prompt.max_tokens)
    has, takes = ("token ids", "completions") if kind == "chat" else ("messages", "chat")
    raise PromptsError(
        f'Prompt {prompt_id} is given as {has}, which endpoint = "{kind}" does not take. '
        f'Set endpoint = "{takes}" in the profile, or give the prompts as text.'
    )
