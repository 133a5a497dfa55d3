"""The embedded engine as a discrete-event simulation: no clock, no input or output; every time is an argument.

Continuous batching after vLLM's scheduler: each step decodes every running sequence and computes the whole prompt of
those admitted, first come first served; a full KV cache preempts the newest, which is recomputed later. A step costs

    step + sequence · sequences + token · positions + prefill_token · prompt tokens + draft · positions drafted in turn
"""

from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np

from servers.sim.decode import Decoder, sampler_of
from servers.sim.faults import DROPPED, generator
from servers.sim.sequence import Emission, Job, Sequence, Text
from servers.sim.settings import BLOCK_TOKENS, Settings

_STEPS_KEPT = 20_000
_LATE_NS, _LATE_SHARE = 2_000_000, 0.1  # a step is late by more than both


@dataclass(slots=True)
class StepLog:
    """One step: what it computed, what it was modelled to cost, and how late it was delivered."""

    start_ns: int
    end_ns: int  # modelled
    sequences: int
    tokens: int  # positions decoded or verified; a prompt's are in prefill_tokens
    prefill_tokens: int  # recomputed ones too
    draft_positions: int  # drafted one after another, by the sequence that drafted most
    drafts: int  # sequences that drafted
    draft_tokens: int
    accepted: int = 0  # of the draft tokens; this and emitted leave out replies aborted during the step
    emitted: int = 0
    late_ns: int = 0

    @property
    def late(self) -> bool:
        return self.late_ns > max(_LATE_NS, _LATE_SHARE * (self.end_ns - self.start_ns))


@dataclass(frozen=True, slots=True)
class Step:
    emissions: list[Emission]
    log: StepLog


@dataclass(slots=True)
class Counters:
    """Totals since the start."""

    steps: int = 0
    late_steps: int = 0
    modelled_ns: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_at: Counter[int] = field(default_factory=Counter)  # by position in the draft, from 0
    finished: Counter[str] = field(default_factory=Counter)  # by finish reason


class Engine:
    """Sequences in, emissions out. next_start(), begin(that) and finish() drive it, one step after another."""

    def __init__(self, settings: Settings, rng: np.random.Generator) -> None:
        self.settings = settings
        sampler = sampler_of(settings)
        self.model = sampler.model
        self.total_blocks = settings.kv_cache_tokens // BLOCK_TOKENS
        self.free_blocks = self.total_blocks
        self.running: list[Sequence] = []  # oldest first
        self.waiting: deque[Sequence] = deque()
        self.counters = Counters()
        self.steps: deque[StepLog] = deque(maxlen=_STEPS_KEPT)
        self._rng = rng
        self._decoder = Decoder(sampler, settings.fault)
        self._idle_from_ns = 0  # the modelled end of the last step
        if settings.speculative:
            _ = self.model.draft  # made before the first request, not during it

    def drops(self) -> bool:
        """Whether the next request is one that a server with that fault does not serve."""
        return bool(self._rng.random() < DROPPED)

    @property
    def kv_usage(self) -> float:
        return 1 - self.free_blocks / self.total_blocks

    def submit(self, job: Job, now_ns: int) -> Sequence:
        """Queues a request. Raises ValueError for one that could never run: it would hold up the queue for ever."""
        longest = len(job.prompt) + job.max_tokens
        if not job.prompt or longest > self.settings.max_model_len:
            raise ValueError(f"A prompt and reply of {longest} tokens do not fit 1 … {self.settings.max_model_len}.")
        sequence = Sequence(
            job=job,
            arrival_ns=now_ns,
            state=self.model.read(job.prompt),
            rng=generator(self.settings.fault, job.prompt, job.seed, self._rng),
            text=Text(job.stop),
        )
        self.waiting.append(sequence)
        return sequence

    def abort(self, sequence: Sequence) -> None:
        """Takes a request out, frees its memory at once and drops what a step under way made for it."""
        if sequence.finish_reason is not None:
            return
        (self.running if sequence in self.running else self.waiting).remove(sequence)
        self._end(sequence)
        sequence.finish_reason = "abort"
        self.counters.finished["abort"] += 1

    def next_start(self) -> int | None:
        """When the next step begins: at the end of the last, or when a request comes to an idle engine; None: never."""
        if self.running:
            return self._idle_from_ns
        return max(self._idle_from_ns, self.waiting[0].arrival_ns) if self.waiting else None

    def begin(self, start_ns: int) -> Step:
        """Fills a batch with what had come by start_ns, and draws its tokens. They count once the step is finished."""
        decoded, preempted = self._make_room()
        admitted = [] if preempted else self._admit(start_ns)
        drafts = {id(sequence): self._drafts(sequence) for sequence in decoded}
        log = StepLog(
            start_ns=start_ns,
            end_ns=start_ns,
            sequences=len(decoded) + len(admitted),
            tokens=len(decoded) + sum(drafts.values()),
            prefill_tokens=sum(sequence.length for sequence in admitted),
            draft_positions=max(drafts.values(), default=0),
            drafts=sum(count > 0 for count in drafts.values()),
            draft_tokens=sum(drafts.values()),
        )
        log.end_ns += cost_ns(self.settings, log)
        emissions = [self._emit(sequence, drafts[id(sequence)]) for sequence in decoded]
        emissions += [self._emit(sequence, 0) for sequence in admitted]
        return Step(emissions, log)

    def finish(self, step: Step, late_ns: int) -> list[Emission]:
        """Ends a step, delivered late_ns after its modelled end. Returns what is to be delivered."""
        delivered = [emission for emission in step.emissions if emission.sequence.finish_reason is None]
        step.log.late_ns = late_ns
        for emission in delivered:
            self._count(emission, step.log)
            if emission.finish_reason is not None:
                self.running.remove(emission.sequence)
                self._end(emission.sequence)
                emission.sequence.finish_reason = emission.finish_reason
                self.counters.finished[emission.finish_reason] += 1
        self._close(step.log)
        return delivered

    def _make_room(self) -> tuple[list[Sequence], bool]:
        """Memory for every running sequence's next positions, at the cost of the newest; whether any was preempted."""
        before = len(self.running)
        held = 0
        while held < len(self.running):
            sequence = self.running[held]
            if self._reserve(sequence, sequence.length + self._drafts(sequence)):
                held += 1
            else:
                self._preempt(self.running.pop())
        return list(self.running), len(self.running) < before

    def _admit(self, start_ns: int) -> list[Sequence]:
        admitted = []
        while self.waiting and len(self.running) < self.settings.max_num_seqs:
            first = self.waiting[0]
            if first.arrival_ns > start_ns or not self._reserve(first, first.length):
                break
            admitted.append(self.waiting.popleft())
            self.running.append(first)
        return admitted

    def _drafts(self, sequence: Sequence) -> int:
        """As many as can still become part of the reply beside the token that every step gives."""
        return max(0, min(self.settings.speculative, sequence.left - 1))

    def _reserve(self, sequence: Sequence, tokens: int) -> bool:
        more = -(-tokens // BLOCK_TOKENS) - sequence.blocks
        if more > self.free_blocks:
            return False
        # Never fewer: what a rejected draft left behind is written over by the next step.
        self.free_blocks -= max(0, more)
        sequence.blocks += max(0, more)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._end(sequence)
        self.waiting.appendleft(sequence)
        self.counters.preemptions += 1

    def _end(self, sequence: Sequence) -> None:
        self.free_blocks += sequence.blocks
        sequence.blocks = 0

    def _emit(self, sequence: Sequence, drafts: int) -> Emission:
        if sequence.job.max_tokens > 0:
            return self._decoder.emit(sequence, drafts, len(self.running))
        return Emission(
            sequence=sequence,
            tokens=[],
            rows=[],
            text="",
            finish_reason="length",
            stop_reason=None,
            drafted=0,
            accepted=0,
        )

    def _count(self, emission: Emission, log: StepLog) -> None:
        counters, sequence = self.counters, emission.sequence
        if not sequence.prefilled:
            sequence.prefilled = True
            counters.prompt_tokens += len(sequence.job.prompt)
        counters.generation_tokens += len(emission.tokens)
        counters.drafts += emission.drafted > 0
        counters.draft_tokens += emission.drafted
        counters.accepted_tokens += emission.accepted
        counters.accepted_at.update(range(emission.accepted))
        log.emitted += len(emission.tokens)
        log.accepted += emission.accepted

    def _close(self, log: StepLog) -> None:
        self.steps.append(log)
        self._idle_from_ns = log.end_ns
        self.counters.steps += 1
        self.counters.late_steps += log.late
        self.counters.modelled_ns += log.end_ns - log.start_ns


def cost_ns(settings: Settings, log: StepLog) -> int:
    """The cost model at the head of this file, for what the step computes."""
    cost_ms = (
        settings.step_ms
        + settings.sequence_ms * log.sequences
        + settings.token_ms * log.tokens
        + settings.prefill_token_ms * log.prefill_tokens
        + settings.draft_ms * log.draft_positions
    )
    return round(cost_ms * 1e6)
