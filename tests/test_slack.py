"""Work that can wait takes turns with the loop."""

import asyncio
from collections.abc import Callable

import pytest

from loadgen.slack import Slack


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def noting(done: list[str], name: str) -> Callable[[], None]:
    return lambda: done.append(name)


async def test_one_thing_is_done_a_turn() -> None:
    """None at once; then one after each turn of the loop, in the order given."""
    slack, done = Slack(), list[str]()
    for name in "abc":
        slack.do(noting(done, name))
    seen = [list(done)]
    for _ in range(3):
        await turns(1)
        seen.append(list(done))

    assert seen == [[], ["a"], ["a", "b"], ["a", "b", "c"]]


async def test_what_is_given_while_something_is_done_comes_after_it() -> None:
    """And a queue that ran empty starts again."""
    slack, done = Slack(), list[str]()
    slack.do(lambda: (done.append("a"), slack.do(noting(done, "b"))))  # type: ignore[func-returns-value, arg-type, return-value]
    await turns(3)
    slack.do(noting(done, "c"))
    await turns(1)

    assert done == ["a", "b", "c"]


async def test_a_thing_that_breaks_does_not_stop_the_others() -> None:
    """The loop tells of it, and goes on."""
    slack, done, told = Slack(), list[str](), list[BaseException]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))

    def broken() -> None:
        raise ValueError("broken")

    slack.do(broken)
    slack.do(noting(done, "a"))
    await turns(3)

    assert done == ["a"]
    assert [type(error) for error in told] == [ValueError]


@pytest.mark.parametrize("things", [1, 1000])
async def test_a_lane_may_wait_for_a_turn_behind_all_of_it(things: int) -> None:
    """However much is queued, what becomes ready meanwhile waits for one thing, not for all."""
    slack, done = Slack(), list[str]()
    for _ in range(things):
        slack.do(noting(done, "thing"))
    await turns(1)

    assert len(done) == 1
