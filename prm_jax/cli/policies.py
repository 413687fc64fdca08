"""The model that --policy of `prm-jax label`, `sample` and `search` names.

A checkpoint folder runs in the rollout engine; an http address is asked for
completions. Only this module joins labellers and models.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import pathlib
import sys
from typing import Any

import jax

from prm_jax import errors
from prm_jax import schema
from prm_jax.cli import arguments
from prm_jax.cli import model_arguments
from prm_jax.cli import models
from prm_jax.cli import policy_arguments
from prm_jax.data import policy_templates
from prm_jax.data import segmenters
from prm_jax.inference import engine as engine_lib
from prm_jax.inference import remote
from prm_jax.inference import sampler
from prm_jax.labelling import omega_tree
from prm_jax.runtime import checks
from prm_jax.runtime import files
from prm_jax.search import chunks
from prm_jax.search import models as search_models

# Further options of a server that its completions depend on.
_FURTHER = (
  *("system", "separator", "segmenter", "stop", "stop_in_text"),
  "request_option",
)
# Is told how many completions a call has drawn so far, and if that is known of
# all how many tokens.
Tell = Callable[..., None]
# A schema.Generate that tells how far it is.
Complete = Callable[
  [Sequence[schema.Solution], int, Tell], list[list[schema.Solution]]
]


@dataclasses.dataclass(frozen=True)
class Policy:
  """A model that writes, and what its completions depend on.

  Args:
    complete: Completes prefixes, and reports how far it is.
    depends_on: What the completions depend on, as plain data.
    log_likelihoods: How likely it finds texts; None if that isn't known.
    count_tokens: How many tokens some steps have; None if that isn't known.
    compute_dtype: The type that it computes in; None if that isn't known.
  """

  complete: Complete
  depends_on: dict[str, Any]
  log_likelihoods: schema.LogLikelihood | None = None
  count_tokens: omega_tree.CountTokens | None = None
  compute_dtype: str | None = None

  def bind(self, tell: Tell) -> schema.Generate:
    """Returns the model as a Generate.

    Args:
      tell: Is told what a call has drawn so far.
    """
    return lambda prefixes, n: self.complete(prefixes, n, tell)


def replies_path(output: pathlib.Path) -> pathlib.Path | None:
  """Returns the journal of a server's replies, beside the output.

  The standard output has none.
  """
  if str(output) == files.STDOUT:
    return None
  return output.with_name(f"{output.name}.replies")


def endpoint(
  args: argparse.Namespace,
) -> tuple[remote.Endpoint, remote.Template]:
  """Returns the endpoint that --policy names, and its template.

  Args:
    args: The parsed arguments of policy_arguments.add.

  Raises:
    InputError: An option is wrong.
  """
  options = args.request_option or []
  names = Counter(name for name, _ in options)
  if twice := [name for name, times in names.items() if times > 1]:
    raise errors.InputError(f"--request_option: {twice[0]} is given twice")
  found = remote.Endpoint(
    args.policy,
    options=dict(options),
    log_probs=not args.no_log_probs,
    **policy_arguments.given(args, policy_arguments.ENDPOINT),
  )
  fields = policy_arguments.given(args, policy_arguments.TEMPLATE)
  if "stop" in fields:
    fields["stop"] = tuple(fields["stop"])
  if args.segmenter is not None:
    fields["segmenter"] = segmenters.parse(args.segmenter)
  if "system" in fields and not found.chat:
    raise errors.InputError(
      f"--system={args.system}: only a chat has one; give --chat, or write it"
      " into --prompt"
    )
  return found, remote.Template(**fields)


def sampling_of(
  policy: sampler.Sampler, args: argparse.Namespace
) -> sampler.Sampling:
  """Returns how a checkpoint's policy is sampled, by the options and itself.

  Warns if the checkpoint alone asks for greedy samples, which are all equal,
  and if nobody says at which temperature a chat model is sampled.
  """
  sampling = sampler.sampling_of(policy.defaults, **arguments.sampling(args))
  if not sampling.temperature and args.temperature is None:
    print(
      f"{args.policy}: is sampled at temperature 0, as its generation_config.json"
      " says, so all samples of a prompt are equal; give --temperature",
      file=sys.stderr,
    )
  elif args.temperature is None and policy_templates.lacks_temperature(
    policy.template, policy.defaults
  ):
    print(
      f"{args.policy}: is sampled at temperature {sampling.temperature:g}, since"
      " its generation_config.json is missing or names none; give --temperature",
      file=sys.stderr,
    )
  return sampling


def asked(args: argparse.Namespace, name: str) -> dict[str, Any]:
  """Returns what is known of `depends_on` before a policy is loaded.

  Args:
    args: The parsed arguments.
    name: The policy's folder; of what is none nothing is known.
  """
  known = models.asked(name, model_arguments.of(args))
  if known:
    options = arguments.sampling(args)
    given = {k: value for k, value in options.items() if value is not None}
    record = sampler.sampling_of({}, **given).record()
    known |= {k: record.get(k) for k in given}
  return known


@contextlib.contextmanager
def policy(args: argparse.Namespace, counts: Counter[str]) -> Iterator[Policy]:
  """Yields the checkpoint, or the model of an endpoint, that --policy names.

  Args:
    args: The parsed arguments.
    counts: The counts to which its work is added.
  """
  policy_arguments.check(args)
  given = arguments.sampling(args)
  if policy_arguments.is_server(args.policy):
    sampling = sampler.sampling_of({}, **given)
    with _served(args, sampling, counts) as served:
      model = served.depends_on | sampling.record() | dict(seed=args.seed)
      yield dataclasses.replace(served, depends_on=model)
    return
  loaded, sampling, depends_on = _loaded(args)
  engine = engine_lib.of(loaded, slots=slots(args))
  key = jax.random.key(args.seed)

  def complete(prefixes, n, tell):
    rows, work = engine.generate(prefixes, n, sampling, key, tell)
    counts["prefilled_tokens"] += work.prefilled
    counts["slot_steps"] += work.slot_steps
    counts["prefixes_encoded_anew"] += work.encoded_anew
    return rows

  def count_tokens(steps: Sequence[str]) -> int:
    return sum(len(loaded.tokenizer.encode(step)) + 1 for step in steps)

  yield Policy(
    complete,
    depends_on,
    loaded.log_likelihoods,
    count_tokens,
    loaded.config.compute_dtype,
  )


@contextlib.contextmanager
def _served(
  args: argparse.Namespace, sampling: sampler.Sampling, counts: Counter[str]
) -> Iterator[Policy]:
  """Yields the model at a URL; a journal saves its replies one by one."""
  with _client(args) as (client, depends_on):

    def complete(prefixes, n, tell):
      with _counting(client, counts):
        return client.generate(prefixes, n, sampling, args.seed, progress=tell)

    log_likelihoods = None if client.endpoint.chat else client.log_likelihoods
    yield Policy(complete, depends_on, log_likelihoods)


@contextlib.contextmanager
def _client(
  args: argparse.Namespace,
) -> Iterator[tuple[remote.Client, dict[str, Any]]]:
  """Yields a server's client, and what its completions depend on."""
  asked, template = endpoint(args)
  # Beyond these three an option counts if it is given, so that a journal from
  # before it was there can be resumed.
  depends_on = dict(
    model=asked.model, chat=asked.chat, prompt=template.prompt
  ) | policy_arguments.given(args, _FURTHER)
  with remote.Client(asked, template, replies_path(args.output)) as client:
    yield client, depends_on


@contextlib.contextmanager
def _counting(client: remote.Client, counts: Counter[str]) -> Iterator[None]:
  """Adds what a client does inside to the counts, if it succeeds."""
  before = client.counts
  yield
  done = client.counts - before
  counts.update({f"endpoint_{name}": n for name, n in done.items()})


def _loaded(
  args: argparse.Namespace,
) -> tuple[sampler.Sampler, sampler.Sampling, dict[str, Any]]:
  """Returns a folder's policy, how it samples, and what that depends on."""
  how = model_arguments.of(args)
  loaded = models.policy(args.policy, how)
  sampling = sampling_of(loaded, args)
  depends_on = models.depends_on("policy", args.policy, how, loaded)
  return loaded, sampling, depends_on | sampling.record() | dict(seed=args.seed)


def slots(args: argparse.Namespace) -> int:
  """Returns the number of completions that are sampled at the same time.

  Args:
    args: The parsed arguments.
  """
  return model_arguments.of(args).slots or engine_lib.Engine.slots


@contextlib.contextmanager
def searched(
  args: argparse.Namespace, counts: Counter[str]
) -> Iterator[tuple[search_models.Policy, dict[str, Any]]]:
  """Yields --policy as a search has it, and what its steps depend on.

  Args:
    args: The parsed arguments, with max_step_tokens.
    counts: The counts to which what the machine did is added.
  """
  policy_arguments.check(args, loads_scorer=models.is_checkpoint(args.scorer))
  if policy_arguments.is_server(args.policy):
    with _served_search(args, counts) as found:
      yield found
    return
  loaded, sampling, depends_on = _loaded(args)

  def watch(work: engine_lib.Work) -> None:
    counts.update(
      {f"engine_{name}": n for name, n in dataclasses.asdict(work).items()}
    )

  options: dict[str, Any] = dict(seed=args.seed, slots=slots(args), watch=watch)
  if vars(args).get("chunk_tokens") is None:
    options["max_step_tokens"] = args.max_step_tokens
    yield search_models.of_sampler(loaded, sampling, **options), depends_on
    return
  checks.check_counts(args, ("chunk_tokens",), "--")
  options["chunk_tokens"] = args.chunk_tokens
  yield chunks.of_sampler(loaded, sampling, **options), depends_on


@contextlib.contextmanager
def _served_search(
  args: argparse.Namespace, counts: Counter[str]
) -> Iterator[tuple[search_models.Policy, dict[str, Any]]]:
  """Yields the model at a URL as a search has it."""
  sampling = sampler.sampling_of({}, **arguments.sampling(args))
  most = min(args.max_step_tokens or sampling.max_tokens, sampling.max_tokens)
  of_step = dataclasses.replace(sampling, max_tokens=most)
  greedy = sampler.Sampling(most, temperature=0.0)
  if vars(args).get("chunk_tokens") is not None:
    raise errors.InputError(
      f"--policy={args.policy}: chunk_guidance needs a policy's token ids; give a"
      " checkpoint folder"
    )
  with _client(args) as (client, depends_on):

    def generate(how: sampler.Sampling, by_step: bool) -> schema.Generate:
      def call(prefixes, num):
        with _counting(client, counts):
          return client.generate(
            *(prefixes, num, how, args.seed),
            stop_at_step=by_step,
            count_prompts=True,
          )

      return call

    yield (
      search_models.Policy(
        generate(of_step, True),
        generate(sampling, False),
        generate(greedy, True),
      ),
      depends_on | sampling.record() | dict(seed=args.seed),
    )
