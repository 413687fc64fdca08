"""A policy, as the options of a command name it: a folder, or a server's model.

A checkpoint folder runs in the rollout engine; an http address is asked for
completions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import pathlib
from typing import Annotated, Any, TYPE_CHECKING

from prm_jax import errors
from prm_jax import schema
from prm_jax.policy import sampling as sampling_lib
from prm_jax.runtime import files
from prm_jax.runtime import json_text
from prm_jax.runtime import progress
from prm_jax.runtime import verbs

if TYPE_CHECKING:
  from prm_jax.policy import sampler

# What runs in the engine at the same time, if nothing else is asked for.
SLOTS = 64
# Is called with the number of completions that a call has drawn so far, and with
# the number of their tokens if each of them is known.
Tell = Callable[..., None]
# A schema.Generate that tells how far it is.
Complete = Callable[
  [Sequence[schema.Solution], int, Tell], list[list[schema.Solution]]
]


def _request_option(text: str) -> tuple[str, Any]:
  """Returns a field of a request, NAME=JSON."""
  name, equals, value = text.partition("=")
  try:
    if name and equals:
      return name, json_text.parse(value)
  except json_text.JSONTextError:
    pass
  raise ValueError(
    f"{text[:60]!r} isn't NAME=JSON, such as top_k=20 or name='\"a text\"'"
  )


RequestOption = Annotated[tuple[str, Any], _request_option]


@dataclasses.dataclass(frozen=True)
class Server(verbs.Value):
  """For a model at a server.

  Args:
    model: The name of the model at the server; required with a server.
    chat: Send requests to the server's chat interface (servers only).
    continues: With --chat, say that the server continues a message that has
      begun, as vLLM, SGLang and llama.cpp do; else a chat completes no solution
      that has steps (servers only).
    stop_in_text: Say that the server leaves stop strings in the text, as
      transformers serve does (servers only).
    no_log_probs: Don't ask for log-probabilities, for a server that refuses
      them (servers only).
    request_option: A further field of each request, such as top_k=20 or
      chat_template_kwargs='{"enable_thinking": false}'; repeat the option for
      each field (servers only).
    key_variable: The name of the environment variable that holds the server's
      API key (servers only; default: no key is sent).
    insecure_key: Send the API key even if the server is another machine and its
      address begins with http://, so that everyone on the way can read it.
    prompt: The text that is sent to the server; {problem}, exactly once, stands
      for the problem, or for a judge for the prompt that its template makes;
      the steps follow (servers only; default: {problem}).
    system: The system message, with --chat (servers only; default: none).
    separator: The text that is sent after the prompt and after each step of a
      solution whose whole text isn't known; new text is cut into steps there
      (servers only; default: a blank line).
    segmenter: How new text is cut into steps, instead of at --separator:
      paragraph, line, sentence, numbered or markers (docs/segmenters.md;
      servers only; default: paragraph if --separator is a blank line).
    stop: A text that ends a solution, such as the opening of the next problem
      if --prompt has examples; repeat the option for each (servers only).
    replica: The address of a further server of the same model; each request
      goes to the one with the fewest under way; repeat the option for each
      (servers only).
    concurrency: The number of requests that are sent to each server at the same
      time (servers only; default: 16).
    tries: The number of tries of a request at each server (servers only;
      default: 8).
    connect_s: The limit for connecting to the server, in seconds (servers only;
      default: 10).
    read_s: The limit of a try, from connecting to the end of the reply, in
      seconds (servers only; default: 600).
    backoff_s: The first pause between tries, in seconds; it doubles each time
      (servers only; default: 1).
    max_wait_s: The longest pause that a server may ask for, in seconds; a
      longer one ends the run (servers only; default: 120).
  """

  first_is_whole = False

  model: str | None = None
  chat: bool = False
  continues: bool = False
  stop_in_text: bool = False
  no_log_probs: bool = False
  request_option: tuple[RequestOption, ...] = dataclasses.field(
    default=(), metadata=dict(metavar="NAME=JSON")
  )
  key_variable: str | None = None
  insecure_key: bool = False
  prompt: str | None = None
  system: str | None = None
  separator: str | None = None
  segmenter: str | None = None
  stop: tuple[str, ...] = ()
  replica: tuple[str, ...] = ()
  concurrency: int | None = None
  tries: int | None = None
  connect_s: float | None = None
  read_s: float | None = None
  backoff_s: float | None = None
  max_wait_s: float | None = None

  def given(self, names: Sequence[str] = ()) -> dict[str, Any]:
    """Returns what was given of some options, of all if none is named.

    Args:
      names: The names of the options.
    """
    return _given(self, names or [f.name for f in dataclasses.fields(self)])


@dataclasses.dataclass(frozen=True)
class Policy(verbs.Value):
  """A model that writes.

  Args:
    source: A checkpoint folder, or the address of a server such as
      http://HOST:PORT/v1 (docs/remote.md).
    step: The update whose saved parameters are used; best is the saved one with
      the best fit.best_metric of its run (default: the latest one that was
      saved).
    dtype: The type that each checkpoint folder's model computes in: float32,
      bfloat16 or float16; with float32 its weights are held so, too (default:
      what the folder's model.json names, which import takes from the weights).
    slots: The number of completions that are sampled at the same time, which
      bounds the memory of the device (checkpoint folders only; default: 64).
    server: Where source is an address, how it is asked.
  """

  source: Annotated[str, verbs.named]
  step: verbs.Step = None
  dtype: str | None = None
  slots: verbs.Count | None = None
  server: Server = dataclasses.field(default_factory=Server)

  @property
  def is_server(self) -> bool:
    """Whether it is the address of a server."""
    return self.source.startswith(("http://", "https://"))

  def check(self, *, loads_scorer: bool = False) -> None:
    """Refuses options that don't fit: a server's, or a folder's.

    Args:
      loads_scorer: Whether what scores is a checkpoint folder, so that dtype is
        for this one if the policy is at a server.

    Raises:
      InputError: There is one.
    """
    if not self.is_server:
      why = "is for a server, and `policy` is a folder"
      _refuse(self.server.given(), why)
      return
    names = [
      x
      for x in ("step", "dtype", "slots")
      if not (loads_scorer and x == "dtype")
    ]
    why = "is for a checkpoint folder, and `policy` is a server"
    _refuse(_given(self, names), why)
    if self.server.model is None:
      raise errors.InputError(
        f"`policy={self.source}`: give `model`, the name it is served by"
      )

  def load(self) -> sampler.Sampler:
    """Returns the folder's policy, loaded when it is first asked for."""
    return self._loaded

  @functools.cached_property
  def _loaded(self) -> sampler.Sampler:
    from prm_jax.policy import sampler as sampler_lib

    folder = files.local_path(self.source)
    return sampler_lib.load(folder, self.step, compute_dtype=self.dtype)

  def sampling_of(
    self, loaded: sampler.Sampler, sampling: sampling_lib.Sampling
  ) -> sampler.Sampling:
    """Returns how a folder's policy is sampled, by the options and itself.

    Warns if the folder, and not the user, asks for greedy samples: they are all
    equal. Warns of a chat model for which neither names a temperature.

    Args:
      loaded: The policy.
      sampling: The options.
    """
    from prm_jax.text import policy_templates

    found = sampling.with_defaults(loaded.defaults)
    if sampling.temperature is not None:
      return found
    if not found.temperature:
      progress.log(
        f"{self.source}: is sampled at temperature 0, as its"
        " generation_config.json says, so all samples of a prompt are equal;"
        " give `temperature`"
      )
    elif policy_templates.lacks_temperature(loaded.template, loaded.defaults):
      progress.log(
        f"{self.source}: is sampled at temperature {found.temperature:g}, since"
        " its generation_config.json is missing or names none; give"
        " `temperature`"
      )
    return found

  def loaded(
    self, sampling: sampling_lib.Sampling, seed: int
  ) -> tuple[sampler.Sampler, sampler.Sampling, dict[str, Any]]:
    """Returns a folder's policy, how it samples, and what that depends on.

    Args:
      sampling: The options of sampling.
      seed: The seed of the samples.
    """
    loaded = self.load()
    found = self.sampling_of(loaded, sampling)
    return loaded, found, self.depends_on(loaded, found, seed)

  def depends_on(
    self, loaded: sampler.Sampler, sampling: sampler.Sampling, seed: int
  ) -> dict[str, Any]:
    """Returns what a folder's samples depend on; reads all weights.

    Args:
      loaded: The folder's policy.
      sampling: How it is sampled.
      seed: The seed of the samples.
    """
    known = depends_on("policy", self.source, self.dtype, loaded)
    return known | sampling.record() | dict(seed=seed)


# Whether a model's vocabulary can write a text.
Spells = Callable[[str], bool]


@dataclasses.dataclass(frozen=True)
class Weigher:
  """A model that tells how likely it finds texts.

  Args:
    weigh: How likely it finds them.
    spells: Returns whether its vocabulary can write a text.
  """

  weigh: schema.Weigh
  spells: Spells = lambda text: True


@dataclasses.dataclass(frozen=True)
class Writer:
  """A model that writes, and what its completions depend on.

  Args:
    complete: Completes prefixes, and reports how far it is.
    depends_on: What the completions depend on, as plain data.
    log_likelihoods: How likely it finds texts; None if that isn't known.
    count_tokens: How many tokens some steps have; None if that isn't known.
    compute_dtype: The type that it computes in; None if that isn't known.
    weigher: How likely it finds texts token by token; None if it doesn't tell.
  """

  complete: Complete
  depends_on: dict[str, Any]
  log_likelihoods: schema.LogLikelihood | None = None
  count_tokens: schema.CountTokens | None = None
  compute_dtype: str | None = None
  weigher: Weigher | None = None

  def bind(self, tell: Tell) -> schema.Generate:
    """Returns the model as a Generate.

    Args:
      tell: Is called with what a call has drawn so far.
    """
    return lambda prefixes, n: self.complete(prefixes, n, tell)


def replies_path(output: files.PathLike) -> pathlib.Path | None:
  """Returns the path of the journal of a server's replies.

  It is in the folder of the output; the standard output has no journal.

  Args:
    output: The output.
  """
  if str(output) == files.STDOUT:
    return None
  output = pathlib.Path(output)
  return output.with_name(f"{output.name}.replies")


# --- What a journal says of a model ---------------------------------------------


def dtype_asked(name: str, dtype: str | None) -> dict[str, Any]:
  """Returns what is known of `depends_on` before a model is loaded.

  The type is recorded only if it isn't the checkpoint's own. So a run that asks
  for its own type resumes one that asks for none.

  Args:
    name: The model's folder; of what is none nothing is known.
    dtype: The type that is asked for; None is its own.
  """
  from prm_jax.checkpoints import model_json

  folder = pathlib.Path(name)
  if not (folder / model_json.DESCRIPTION).is_file():
    return {}
  own = model_json.read_description(folder).model.compute_dtype
  return dict(compute_dtype=None if dtype == own else dtype)


def depends_on(
  role: str, name: str, dtype: str | None, loaded: sampler.Sampler
) -> dict[str, Any]:
  """Returns what a policy's texts and likelihoods depend on, as plain data.

  Args:
    role: What the policy is here.
    name: Its folder.
    dtype: The type that was asked for.
    loaded: The policy.
  """
  from prm_jax.checkpoints import model_json

  known = dtype_asked(name, dtype)
  known = {k: x for k, x in known.items() if x is not None}
  folder = files.local_path(name)
  return {role: model_json.fingerprint(folder, loaded.params)} | known


# --- Options that were given ----------------------------------------------------


def _given(value: Any, names: Sequence[str]) -> dict[str, Any]:
  """Returns those of some options that were given, by name."""
  values = {name: getattr(value, name) for name in names}
  return {
    name: x
    for name, x in values.items()
    if x is not None and x is not False and x != ()
  }


def _refuse(given: Mapping[str, Any], why: str) -> None:
  for name, value in given.items():
    raise errors.InputError(f"`{name}={_shown(value)}`: {why}; take it out")


def _shown(value: Any) -> str:
  first = value[0] if isinstance(value, tuple) else value
  if isinstance(first, float):
    return f"{first:g}"
  return "=".join(map(str, first)) if isinstance(first, tuple) else str(first)
