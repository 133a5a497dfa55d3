"""One request → one record. Whatever a server does is data; only a broken set-up raises."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import httpx
import orjson

from loadgen import failures, flags
from loadgen.endpoint import Target
from loadgen.profile import Limits
from loadgen.record import Asked, FailureKind, Phase, Probe, Record
from loadgen.reply import Clock, Reply, Truncated
from loadgen.request import Request
from loadgen.slack import Slack
from loadgen.transcript import Transcript
from loadgen.transport import SocketTransport, TlsError, encode

Keep = Callable[[Record], None]

_SLICE = 16  # reads parsed in one turn of the loop, about 30 µs
_PIECE_S = 0.5  # how often a growing answer is read and its bytes let go: with log-probabilities they are gigabytes


class OverTime(httpx.ReadTimeout):
    """The request took longer than its profile allows, though the server kept sending."""


# The first that fits. What is not here (an unknown scheme, a broken header) is a broken set-up and is raised.
_KINDS: tuple[tuple[type[httpx.TransportError], FailureKind], ...] = (
    (TlsError, "tls"),
    (httpx.ConnectTimeout, "connect"),
    (httpx.ConnectError, "connect"),
    (OverTime, "timeout"),
    (httpx.ReadTimeout, "stalled"),
    (httpx.ReadError, "connection_reset"),
    (Truncated, "truncated"),
    (httpx.RemoteProtocolError, "malformed"),
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a run a request belongs."""

    endpoint: str
    profile: str
    pass_no: int
    phase: Phase
    probe: Probe | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request whose bytes are ready, made before the clock starts."""

    id: str
    request: Request
    http: httpx.Request
    asked: Asked  # what is really sent of what was asked
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Ended:
    """A request that has ended and has yet to become a record."""

    prepared: Prepared
    place: Place
    due_ns: int | None
    reply: Reply
    transcript: Transcript
    broke: failures.Broke | None
    keep: Keep

    @property
    def is_stream(self) -> bool:
        return self.reply.status == 200 and failures.is_stream(self.reply)


class Client:
    """Sends requests of one endpoint over the transport of `http`, below httpx's own layer.

    new_id gives 32 random hex digits a request; they go out as X-Request-Id.
    """

    def __init__(
        self, http: httpx.AsyncClient, target: Target, limits: Limits, clock: Clock, new_id: Callable[[], str]
    ) -> None:
        # httpx has no public name for it, and its client layer (auth, redirects, cookies: none of them wanted here)
        # costs more than the whole rest of a request.
        self._transport = http._transport
        self._http, self._target, self._limits, self._clock, self._new_id = http, target, limits, clock, new_id
        self._in_flight = 0
        self._slack = Slack()
        self._ended: deque[_Ended] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._urls = {"completions": target.method_url("completions"), "chat": target.method_url("chat")}

    async def open(self, connections: int) -> None:
        """Has so many connections ready, so that no request of the pass pays for one.

        Where the server takes none, that is not told here: each request will find out, and be a record of it.
        """
        if isinstance(self._transport, SocketTransport):
            with contextlib.suppress(httpx.ConnectError, httpx.ConnectTimeout):
                await self._transport.open(self._target.base, connections, self._limits.connect_s)

    def sync(self) -> int:
        """Takes the distance between the kernel's clock and ours anew; returns by how many nanoseconds it moved."""
        return self._transport.sync() if isinstance(self._transport, SocketTransport) else 0

    def prepare(self, request: Request) -> Prepared:
        """Raises DialectError where the dialect cannot say what is asked."""
        target = self._target
        body = target.dialect.body(request, target.model)
        notes = [f"sampling_field_not_sent:{name}" for name in request.asked if name not in body]
        notes += [f"overridden_by_extra_body:{name}" for name in target.extra_body if name in body]
        request_id = self._new_id()
        http = self._http.build_request(
            "POST",
            self._urls[request.kind],
            content=orjson.dumps(body | dict(target.extra_body)),
            headers={
                "Accept": "text/event-stream",
                "Accept-Encoding": "identity",
                "Content-Type": "application/json",
                **target.headers,
                "X-Request-Id": request_id,
            },
            timeout=httpx.Timeout(None, connect=self._limits.connect_s),
        )
        http.extensions["wire"] = encode(http)
        asked = {name: body[name] for name in [*request.asked, "top_logprobs"] if name in body}
        return Prepared(request_id, request, http, asked | dict(target.extra_body), tuple(notes))

    async def perform(self, prepared: Prepared, place: Place, due_ns: int | None, keep: Keep) -> None:
        """Sends it, returns when its answer has ended, and has its record kept in slack: a lane's next request goes
        out first. When no request is in flight any more, every record is kept. Cancelled: so is what had come by then.
        """
        reply = prepared.http.extensions["reply"] = Reply()
        echo = prepared.request.prompt.text if prepared.asked.get("echo") else None
        transcript = Transcript(self._target.dialect, echo)
        watch = _Watch(self._limits, self._clock, self._slack, reply, transcript)
        broke: failures.Broke | None = None
        try:
            await self._sent(prepared.http, reply, watch)
        except httpx.TransportError as error:
            broke = _kind(error), str(error) or type(error).__name__
        except asyncio.CancelledError:
            broke = "cancelled", "cut off by the client"
            self._later(_Ended(prepared, place, due_ns, reply, transcript, broke, keep))
            raise
        self._later(_Ended(prepared, place, due_ns, reply, transcript, broke, keep))

    async def _sent(self, request: httpx.Request, reply: Reply, watch: "_Watch") -> None:
        self._in_flight += 1
        try:
            await self._transport.handle_async_request(request)
        finally:
            watch.stop()
            self._in_flight -= 1
            # It has ended already, but where the transport failed before there was anything to end, or was cancelled.
            reply.end(self._clock(), httpx.ReadError("cut off"))

    def _later(self, ended: "_Ended") -> None:
        self._ended.append(ended)
        if self._in_flight == 0:
            while self._ended:
                self._write(self._ended.popleft())
        elif self._writer is None or self._writer.done():
            if self._writer is not None:
                self._writer.result()  # where keeping a record failed, the run must not go on
            self._writer = asyncio.get_running_loop().create_task(self._write_in_slack())

    async def _write_in_slack(self) -> None:
        """A slice of one reply a turn of the loop, so that no arrival waits for more than that."""
        while self._ended:
            ended = self._ended[0]
            if not ended.is_stream or not ended.transcript.follow(ended.reply, _SLICE):
                self._write(self._ended.popleft())
            await asyncio.sleep(0)

    def _write(self, ended: "_Ended") -> None:
        if ended.is_stream:
            ended.transcript.finish(ended.reply)
        ended.keep(self._record(ended))
        ended.prepared.http.extensions.pop("reply", None)  # a pass's requests outlive their answers' bytes

    def _record(self, ended: "_Ended") -> Record:
        prepared, place, reply, transcript = ended.prepared, ended.place, ended.reply, ended.transcript
        # A connection left open behind the last word is the server's manners, not the reply's length.
        late_end = not reply.whole and transcript.complete
        return Record(
            id=prepared.id,
            endpoint=place.endpoint,
            profile=place.profile,
            pass_no=place.pass_no,
            lane=prepared.request.lane,
            phase=place.phase,
            probe=place.probe,
            prompt_id=prepared.request.prompt_id,
            asked=prepared.asked,
            due_ns=ended.due_ns,
            connect_ns=reply.connect_ns,
            sent_ns=reply.sent_ns,
            first_byte_ns=reply.first_byte_ns,
            end_ns=transcript.done_ns if late_end else reply.end_ns,
            chunk_ns=transcript.chunk_ns,
            chunk_tokens=transcript.chunk_tokens,
            chunk_ambiguous=_ambiguous(transcript.chunk_read),
            status=reply.status,
            prompt_token_ids=transcript.prompt_token_ids,
            token_ids=transcript.token_ids,
            text=transcript.text if transcript.last_event_ns is not None else None,
            reasoning=transcript.reasoning or None,
            tool_calls=transcript.tool_calls,
            logprobs=transcript.logprobs,
            finish_reason=transcript.finish_reason,
            usage=transcript.usage,
            speculation=transcript.speculation,
            flags=[*prepared.flags, *flags.of(prepared.asked, reply, transcript)],
            failure=failures.of(reply, transcript, ended.broke, self._target),
        )


def _kind(error: httpx.TransportError) -> FailureKind:
    for kind, word in _KINDS:
        if isinstance(error, kind):
            return word
    raise error


def _ambiguous(reads: list[int]) -> list[bool]:
    """True where a neighbour came in the same read: the time between the two is unknown."""
    joined = [a == b for a, b in pairwise(reads)]
    return [before or after for before, after in zip([False, *joined], [*joined, False], strict=True)][: len(reads)]


class _Watch:
    """Ends a reply that is beyond its profile's limits. Looks only when a limit may have been reached."""

    def __init__(self, limits: Limits, clock: Clock, slack: Slack, reply: Reply, transcript: Transcript) -> None:
        self._limits, self._clock, self._slack = limits, clock, slack
        self._reply, self._transcript = reply, transcript
        self._stopped = False
        self._began_ns = clock()
        self._loop = asyncio.get_running_loop()
        self._timer = self._look_in(limits.first_token_s)

    def _look_in(self, wait_s: float) -> asyncio.TimerHandle:
        # What comes right after this look may be the last thing that comes.
        return self._loop.call_later(min(wait_s, _PIECE_S, self._limits.idle_s), self._slack.do, self._look)

    def _look(self) -> None:
        if self._stopped:
            return
        now_ns = self._clock()
        if self._reply.status == 200 and failures.is_stream(self._reply):
            self._transcript.follow(self._reply, release=True)
        whole_left_s = self._limits.request_s - (now_ns - self._began_ns) / 1e9
        quiet_left_s = self._quiet_left_s(now_ns)
        if whole_left_s <= 0:
            self._reply.end(now_ns, OverTime(f"No whole answer within {self._limits.request_s:g} s."))
        elif quiet_left_s <= 0:
            self._reply.end(now_ns, httpx.ReadTimeout(self._quiet()))
        else:
            self._timer = self._look_in(min(whole_left_s, quiet_left_s))

    def _quiet_left_s(self, now_ns: int) -> float:
        """A queued request is not a stalled one: until the first token another limit holds, from the sending on."""
        if self._transcript.chunk_ns and self._transcript.last_event_ns is not None:
            return self._limits.idle_s - (now_ns - self._transcript.last_event_ns) / 1e9
        return self._limits.first_token_s - (now_ns - (self._reply.sent_ns or self._began_ns)) / 1e9

    def _quiet(self) -> str:
        if self._transcript.chunk_ns:
            return f"Nothing but comments for {self._limits.idle_s:g} s after the last event."
        return f"No token within {self._limits.first_token_s:g} s."

    def stop(self) -> None:
        self._stopped = True
        self._timer.cancel()
