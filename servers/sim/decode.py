"""The next tokens of a sequence: one from its law, or several by drafting and verifying."""

import functools
from collections import OrderedDict
from typing import NamedTuple

from servers.sim import faults
from servers.sim.model import Model, Rows
from servers.sim.sampling import Law, Laws, Sampling, draw, verified
from servers.sim.sequence import Emission, FinishReason, Sequence
from servers.sim.settings import Settings
from servers.sim.tokenizer import EOS, PIECES

_SETTINGS_KEPT = 8  # tables of laws; each grows to some 26 MB as its rows are visited


class Sampler:
    """A model and the laws that were drawn from so far. Holds nothing of any request: engines share it."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._laws: OrderedDict[tuple[bool, Sampling], Laws] = OrderedDict()

    def law(self, of_draft: bool, sampling: Sampling, row: int) -> Law:
        laws = self._laws.get((of_draft, sampling))
        return (laws or self._make(of_draft, sampling))[row]

    def _make(self, of_draft: bool, sampling: Sampling) -> Laws:
        table: Rows = self.model.draft if of_draft else self.model.target
        laws = self._laws[of_draft, sampling] = Laws(table, sampling)
        if len(self._laws) > _SETTINGS_KEPT:
            self._laws.popitem(last=False)
        return laws


def sampler_of(settings: Settings) -> Sampler:
    """The sampler of the settings' model: made once, however many engines of it a process runs."""
    of_draft = settings.serves == "draft"
    return _sampler(settings.model_seed, settings.rows, settings.mean_reply_tokens, settings.draft_noise, of_draft)


@functools.lru_cache(maxsize=2)
def _sampler(seed: int, rows: int, mean_reply_tokens: float, draft_noise: float, of_draft: bool) -> Sampler:
    return Sampler(
        Model(seed=seed, rows=rows, mean_reply_tokens=mean_reply_tokens, draft_noise=draft_noise, of_draft=of_draft)
    )


class Drawn(NamedTuple):
    tokens: list[int]
    rows: list[int]  # of each token's context
    drafted: int


class Decoder:
    """Draws tokens for sequences. Advances a sequence's reply, its context's hash and its text."""

    def __init__(self, sampler: Sampler, fault: str | None = None) -> None:
        self.model = sampler.model
        self._sampler = sampler
        self._fault, self._change = fault, faults.change(fault)
        self._verified = faults.VERIFIERS.get(fault or "", verified)
        self._changed: dict[tuple[Sampling, int], Law] = {}

    def emit(self, sequence: Sequence, drafts: int, running: int = 1) -> Emission:
        """One step's tokens for a sequence: `drafts` drafted ones verified, or a single draw where that is 0.

        running: sequences in the engine.
        """
        self._running = running
        drawn = self._speculate(sequence, drafts) if drafts else self._draw(sequence)
        kept, reason, stop = 0, None, None
        for token in drawn.tokens:
            kept += 1
            sequence.tokens.append(token)
            sequence.state = self.model.advance(sequence.state, token)
            reason, stop = _ending(sequence, token)
            if reason:
                break
        return Emission(
            sequence=sequence,
            tokens=drawn.tokens[:kept],
            rows=drawn.rows[:kept],
            text=sequence.text.release(ended=reason is not None),
            finish_reason=reason,
            stop_reason=stop,
            drafted=drawn.drafted,
            # What was accepted beyond the reply's end never became part of it.
            accepted=min(len(drawn.tokens) - 1, kept),
        )

    def _draw(self, sequence: Sequence) -> Drawn:
        row = self.model.row(sequence.state)
        return Drawn([draw(self._law(False, sequence, 0, row), sequence.rng)], [row], 0)

    def _speculate(self, sequence: Sequence, drafts: int) -> Drawn:
        state, rows, drafted = sequence.state, [self.model.row(sequence.state)], []
        guesses: list[Law] = []
        for ahead in range(drafts):
            guesses.append(faults.drafting(self._fault, self._law(True, sequence, ahead, rows[ahead])))
            drafted.append(draw(guesses[ahead], sequence.rng))
            state = self.model.advance(state, drafted[ahead])
            rows.append(self.model.row(state))
        truths = [self._law(False, sequence, ahead, row) for ahead, row in enumerate(rows)]
        tokens = self._verified(drafted, truths, guesses, sequence.rng)
        return Drawn(tokens, rows[: len(tokens)], drafts)

    def _law(self, of_draft: bool, sequence: Sequence, ahead: int, row: int) -> Law:
        sampling = sequence.job.sampling
        if len(sequence.tokens) + ahead < sequence.job.min_tokens:
            sampling = sampling.without_eos()
        law = self._sampler.law(of_draft, sampling, row)
        if of_draft or self._change is None or not faults.applies(self._fault, sequence, ahead, self._running):
            return law
        if (sampling, row) not in self._changed:
            self._changed[sampling, row] = faults.changed(law, row, self._change)
        return self._changed[sampling, row]


def _ending(sequence: Sequence, token: int) -> tuple[FinishReason | None, str | None]:
    """Whether the token just appended ends the reply, and by which stop string."""
    job = sequence.job
    stop = sequence.text.push(PIECES[token], armed=len(sequence.tokens) >= job.min_tokens)
    if token == EOS and not job.ignore_eos:
        return "stop", None
    if stop is not None:
        return "stop", stop
    return ("length", None) if sequence.left <= 0 else (None, None)
