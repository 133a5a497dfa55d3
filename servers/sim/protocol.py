"""Requests of the completions, chat and tokenizer routes: checked, and refused as vLLM refuses them."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from servers.sim import tokenizer
from servers.sim.sampling import Sampling
from servers.sim.sequence import Job
from servers.sim.settings import Settings

_GREEDY_BELOW = 1e-5  # vLLM's own bound
_COMPLETION_TOKENS = 16  # vLLM's default for /v1/completions; chat takes what is left of the context


class Refused(Exception):
    """A request that gets an error for an answer, in vLLM's form."""

    def __init__(
        self, message: str, param: str | None = None, status: int = 400, kind: str = "BadRequestError"
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error = {"message": message, "type": kind, "param": param, "code": status}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A checked request. logprobs and prompt_logprobs count alternatives a position; None: not asked for."""

    chat: bool
    job: Job
    stream: bool
    include_usage: bool
    echo: bool
    logprobs: int | None
    prompt_logprobs: int | None
    return_token_ids: bool
    tokens_as_ids: bool


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")  # as vLLM does

    model: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _null_is_default(cls, body: Any) -> Any:
        return {key: value for key, value in body.items() if value is not None} if isinstance(body, dict) else body


class _StreamOptions(_Body):
    include_usage: bool = False


class _Generation(_Body):
    stream: bool = False
    stream_options: _StreamOptions = _StreamOptions()
    n: int = 1
    temperature: float = Field(1.0, ge=0, allow_inf_nan=False)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1)
    min_p: float = Field(0.0, ge=0, le=1)
    seed: int | None = Field(None, ge=0)
    stop: str | list[str] = []
    ignore_eos: bool = False
    min_tokens: int = Field(0, ge=0)
    prompt_logprobs: int | None = Field(None, ge=0)
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False

    def sampling(self) -> Sampling:
        if self.temperature < _GREEDY_BELOW:
            return Sampling(temperature=0)
        return Sampling(self.temperature, self.min_p, max(0, self.top_k), self.top_p)

    def stops(self) -> tuple[str, ...]:
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if "" in stops:
            raise Refused("stop cannot contain an empty string.", "stop")
        return stops


TokenIds = list[Annotated[int, Field(ge=0)]]


class Completion(_Generation):
    prompt: str | TokenIds | list[str] | list[TokenIds] | None = None
    max_tokens: int = Field(_COMPLETION_TOKENS, ge=0)
    echo: bool = False
    logprobs: int | None = Field(None, ge=0)


class _Part(_Body):
    type: Literal["text"]
    text: str


class _Message(_Body):
    role: str
    content: str | list[_Part] = ""

    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class Chat(_Generation):
    messages: list[_Message] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0)


class Tokenize(_Body):
    prompt: str | None = None
    messages: list[_Message] = []


class Detokenize(_Body):
    tokens: TokenIds


B = TypeVar("B", bound=_Body)


def parsed(kind: type[B], raw: bytes, settings: Settings) -> B:
    """The body as `kind`. Raises Refused for what is no JSON, no such request, or another model's."""
    try:
        body = kind.model_validate(orjson.loads(raw))
    except orjson.JSONDecodeError as error:
        raise Refused(f"The body is not JSON: {error}.") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Refused(f"{where or 'body'}: {first['msg']}", where or None) from error
    if body.model not in (None, settings.model):
        message = f"The model `{body.model}` does not exist. Valid aliases: {settings.model}."
        raise Refused(message, "model", 404, "NotFoundError")
    return body


def completion(body: Completion, settings: Settings) -> Asked:
    prompt = _prompt(body)
    if body.max_tokens == 0 and not body.echo:
        raise Refused("max_tokens must be at least 1, got 0.", "max_tokens")
    return _asked(body, prompt, body.max_tokens, body.logprobs, settings)


def chat(body: Chat, settings: Settings) -> Asked:
    if body.top_logprobs and not body.logprobs:
        raise Refused("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
    prompt = tokenizer.encode(template(body.messages))
    limit = body.max_completion_tokens or body.max_tokens or settings.max_model_len
    return _asked(body, prompt, limit, body.top_logprobs if body.logprobs else None, settings)


def tokenize(body: Tokenize) -> list[int]:
    if body.prompt is None and not body.messages:
        raise Refused("Either prompt or messages must be given.", "prompt")
    return tokenizer.encode(body.prompt if body.prompt is not None else template(body.messages))


def template(messages: list[_Message]) -> str:
    """Each turn as "<|role|>", its text and a line end; then the assistant's turn is open."""
    turns = "".join(f"<|{message.role}|>\n{message.text()}\n" for message in messages)
    return f"{turns}<|assistant|>\n"


def known_tokens(tokens: list[int], param: str) -> list[int]:
    if tokens and max(tokens) >= tokenizer.VOCABULARY:
        raise Refused(f"Token id {max(tokens)} is out of vocabulary ({tokenizer.VOCABULARY} ids).", param)
    return tokens


def _prompt(body: Completion) -> list[int]:
    prompt = body.prompt
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise Refused("This engine takes one prompt a request; the list holds more.", "prompt")
        prompt = prompt[0]
    if not prompt or prompt == [[]]:
        raise Refused("The prompt cannot be empty.", "prompt")
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)
    return known_tokens([token for token in prompt if isinstance(token, int)], "prompt")


def _asked(
    body: Completion | Chat, prompt: list[int], max_tokens: int, logprobs: int | None, settings: Settings
) -> Asked:
    if body.n != 1:
        raise Refused(f"This engine samples one reply a request: n must be 1, got {body.n}.", "n")
    _refuse_logprobs("sample logprobs", "logprobs", logprobs, settings)
    _refuse_logprobs("prompt logprobs", "prompt_logprobs", body.prompt_logprobs, settings)
    if body.prompt_logprobs is not None and not settings.prompt_logprobs:
        raise Refused("This engine gives no prompt logprobs.", "prompt_logprobs")
    if body.stream and body.prompt_logprobs:
        raise Refused("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
    room = _room(len(prompt), max_tokens, settings)
    max_tokens = min(max_tokens, room)
    if body.min_tokens > max_tokens:
        message = f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {body.min_tokens}."
        raise Refused(message, "min_tokens")
    job = Job(
        prompt=prompt,
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        ignore_eos=body.ignore_eos,
        stop=body.stops(),
        sampling=body.sampling(),
        seed=body.seed,
    )
    return Asked(
        chat=isinstance(body, Chat),
        job=job,
        stream=body.stream,
        include_usage=body.stream_options.include_usage,
        echo=isinstance(body, Completion) and body.echo,
        logprobs=logprobs,
        prompt_logprobs=body.prompt_logprobs,
        return_token_ids=body.return_token_ids,
        tokens_as_ids=body.return_tokens_as_token_ids,
    )


def _room(prompt: int, max_tokens: int, settings: Settings) -> int:
    """Tokens left for the reply: max_tokens is cut to it in silence, as vLLM does; none at all is an error."""
    room = settings.max_model_len - prompt
    if room < min(1, max_tokens):
        raise Refused(
            f"This model's maximum context length is {settings.max_model_len} tokens. However, your prompt contains "
            f"{prompt} input tokens, which exceeds this limit even without any output tokens. Please reduce the "
            f"length of the input prompt. (parameter=input_tokens, value={prompt})",
            "input_tokens",
        )
    return room


def _refuse_logprobs(what: str, param: str, asked: int | None, settings: Settings) -> None:
    if asked is not None and asked > settings.max_logprobs:
        raise Refused(
            f"Requested {what} of {asked}, which is greater than max allowed: {settings.max_logprobs} "
            f"(parameter={param}, value={asked})",
            param,
        )
