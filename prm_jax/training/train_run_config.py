"""A run of supervised training, as the fields of a config describe it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import pathlib
from typing import Any, ClassVar

import ml_collections
import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.models import kinds
from prm_jax.models import model_config
from prm_jax.records import chosen_tokenizer
from prm_jax.records import corpus
from prm_jax.records import jsonl
from prm_jax.records import sources as sources_lib
from prm_jax.rows import encoded_cache
from prm_jax.runtime import checks
from prm_jax.runtime import config_files
from prm_jax.runtime import distributed
from prm_jax.runtime import files
from prm_jax.runtime import storage
from prm_jax.runtime import verbs
from prm_jax.text import encoding
from prm_jax.text import encoding_records
from prm_jax.text import policy_text
from prm_jax.text import template as template_lib
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.training import batches
from prm_jax.training import loop
from prm_jax.training import optimizer
from prm_jax.training import programs
from prm_jax.training import train_config
from prm_jax.training import train_run


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
  """A run of a supervised program.

  Args:
    config: What is trained, and how.
    data: Its solutions, or where they are.
    tokenizer: How its tokenizer is made, if it starts from no model.
    start: The folder of the model that it starts from; None starts from none.
    name: What messages call its config.
  """

  config: train_config.TrainConfig
  data: corpus.CorpusConfig | corpus.Corpus
  tokenizer: chosen_tokenizer.TokenizerConfig
  start: pathlib.Path | None
  name: str

  may_change: ClassVar = train_run.MAY_CHANGE
  may_set: ClassVar = train_run.MAY_SET

  @property
  def reads(self) -> list[pathlib.Path | None]:
    """The files and folders that it reads."""
    if isinstance(self.data, corpus.Corpus):
      return [self.start]
    named = (*self.data.train, *self.data.evaluation, *self.data.exclude)
    return [self.start, *sources_lib.paths_of(named)]

  def train(
    self,
    workdir: pathlib.Path,
    *,
    fresh: bool,
    on_start: Callable[[], None],
    bucket: storage.Bucket | None = None,
  ) -> None:
    """Reads the data and trains a checkpoint folder; see training.train_run.train."""
    data, tokenizer, vocab_size = distributed.together(self._inputs)
    params = sampling = None
    if self.start is not None:
      params = train_run.read_init(self.config, self.start)
      sampling = train_run.read_sampling(self.config.kind, self.start)

    def begin():
      on_start()
      if data.held_out:
        # So that `eval` can be run on what the model hasn't seen.
        jsonl.write_solutions(workdir / "held_out.jsonl", data.held_out)

    is_stored = isinstance(self.data, corpus.CorpusConfig)
    train_run.train(
      self.config,
      data.train,
      tokenizer,
      workdir,
      eval_solutions=data.evaluation,
      sources=_sources(data, data.train_sources, data.weights),
      eval_sources=_sources(data, data.evaluation_sources),
      init_from=params,
      donate=True,
      vocab_size=vocab_size,
      sampling=sampling,
      fresh=fresh,
      cache=encoded_cache.opened() if is_stored else None,
      on_start=begin,
      bucket=bucket,
    )

  def _inputs(
    self,
  ) -> tuple[corpus.Corpus, tokenizer_lib.Tokenizer, int | None]:
    """Returns data, tokenizer, and how many ids the model to start from has."""
    tokenizer = vocab_size = None
    if self.start is not None:
      described = model_json.read_description(self.start)
      vocab_size = described.model.vocab_size
      tokenizer = model_json.read_tokenizer(self.start, described)
    data = self.data
    if isinstance(data, corpus.CorpusConfig):
      data = corpus.load(data)
      if not data.train:
        raise errors.InputError(
          f"{self.name}: data.train: no solution is left to train on"
        )
    if tokenizer is None:
      tokenizer = chosen_tokenizer.make_tokenizer(self.tokenizer, data.train)
    return data, tokenizer, vocab_size


def run_form(
  given: ml_collections.ConfigDict, **more: Any
) -> config_files.Form:
  """Returns the form of a run's config, by the program that it names.

  Args:
    given: the config.
    **more: forms of further groups, and types of further fields.
  """
  name = str(given.get("program", ""))
  checks.check_choice("program", name, tuple(programs.TRAINED))
  kind = programs.TRAINED[name].objective
  labels = {}
  if "labels" in {f.name for f in dataclasses.fields(kind)}:
    labels = dict(labels=config_files.form(encoding.LabelPolicy))
  groups = dict(
    program=str,
    model=config_files.form(model_config.ModelConfig, without=["vocab_size"]),
    encoding=_encoding_form(),
    packing=config_files.form(batches.PackingConfig),
    objective=config_files.form(kind, nested=labels),
    optimizer=config_files.form(optimizer.OptimizerConfig),
    fit=config_files.form(loop.FitConfig),
  )
  return config_files.form(
    train_config.TrainConfig,
    complete=True,
    optional=("trainable", "segmenter"),
    nested=groups | more,
  )


def _encoding_form() -> config_files.Form:
  form = config_files.form(encoding.EncodingConfig)
  name = dict(template=str | None)  # A config names it.
  return dataclasses.replace(
    form,
    required=form.required - {"template"},
    defaults={**form.defaults, **name},
    types={**form.types, **name},
  )


def form(given: ml_collections.ConfigDict) -> config_files.Form:
  # What the model's fields default to depends on init_from.
  model = config_files.form(model_config.ModelConfig, without=["vocab_size"])
  whole = run_form(
    given,
    model=dataclasses.replace(model, required=frozenset(), defaults={}),
    data=config_files.form(corpus.CorpusConfig),
    tokenizer=config_files.form(chosen_tokenizer.TokenizerConfig),
    init_from=str,
  )
  return dataclasses.replace(whole, required=whole.required - {"model"})


def from_config(c: ml_collections.ConfigDict) -> train_config.TrainConfig:
  """Returns the run that a config's fields describe."""
  kind = programs.TRAINED[c.program].objective
  objective = dict(c.objective)
  if "labels" in objective:
    objective["labels"] = encoding.LabelPolicy(**objective["labels"])
  return train_config.TrainConfig(
    objective=kind(**objective),
    seed=c.seed,
    model=config_files.plain(c.model),
    encoding=_encoding(c),
    packing=batches.PackingConfig(**c.packing),
    optimizer=optimizer.OptimizerConfig(**c.optimizer),
    fit=loop.FitConfig(**config_files.plain(c.fit)),
    microbatches=c.microbatches,
    eval_rows=c.eval_rows,
    aggregate=c.aggregate,
    mesh=tuple(c.mesh),
    trainable=c.get("trainable", "all"),
    segmenter=c.get("segmenter", ""),
  )


def _encoding(c: ml_collections.ConfigDict) -> encoding.EncodingConfig:
  """Returns a run's encoding, in the template of init_from if it says so.

  Raises:
    InputError: init_from has no template of its own, or a policy that has one
      would be trained in another form.
  """
  fields = dict(c.encoding)
  name = fields.pop("template", None)
  if c.get("init_from"):
    template = _of_start(c, name)
  else:
    template = encoding_records.named(name)
  return encoding.EncodingConfig(**fields, template=template)


def _of_start(c: ml_collections.ConfigDict, name: Any) -> template_lib.Template:
  """Returns the template of a run that starts from init_from's model."""
  of_policy = name == encoding_records.OF_POLICY
  folder = files.local_path(c.init_from)
  described = model_json.read_description(folder)
  saved = encoding_records.from_record(described.encoding, folder).template
  kind = kinds.KINDS[c.program]
  is_policy = isinstance(saved, policy_text.PolicyTemplate)
  errors.raise_first(
    _template_faults(c, folder, is_policy=is_policy, of_policy=of_policy)
  )
  if not of_policy:
    return encoding_records.named(name)
  assert isinstance(saved, policy_text.PolicyTemplate)
  if kind.heads == ("outcome",):  # It alone reads the whole chat.
    return saved
  return dataclasses.replace(saved, closing=(), one_text=False, refuses=())


def _template_faults(c, folder, *, is_policy, of_policy) -> Iterator[str]:
  """Yields how init_from's template and the config's don't go together."""
  if of_policy and not is_policy:
    yield (
      f"encoding.template={encoding_records.OF_POLICY!r}: {folder} isn't a"
      " policy with a template; import it with `role=policy`"
    )
  if is_policy and kinds.KINDS[c.program].writes and not of_policy:
    yield (
      f"init_from={c.init_from}: is a policy with a template of its own; set"
      f" encoding.template={encoding_records.OF_POLICY!r}, or import it without"
      " `role=policy` to train it in our own form"
    )


def sources_of(c: ml_collections.ConfigDict) -> corpus.CorpusConfig:
  """Returns the sources that a config's `data` names."""
  plain = dict(c)
  for name in ("train", "evaluation", "exclude"):
    sources = plain.get(name, ())
    # A text is a sequence too: of letters.
    if not isinstance(sources, list | tuple) or not all(
      isinstance(source, str) for source in sources
    ):
      raise errors.InputError(
        f"data.{name}={sources!r}: expected a tuple of sources, as in"
        ' ("jsonl:solutions.jsonl",)'
      )
    plain[name] = tuple(sources)
  plain["weights"] = tuple(plain.get("weights", ()))
  return corpus.CorpusConfig(**plain)


def prepare(config: ml_collections.ConfigDict, path: files.PathLike) -> None:
  """Sets the model's fields that are left out to those of init_from's model.

  Raises:
    InputError: init_from can't be read; or there is none, and a field that
      every model needs is missing.
  """
  form = config_files.form(model_config.ModelConfig, without=["vocab_size"])
  if "model" not in config:
    config.model = ml_collections.ConfigDict()
  if config.init_from:
    start = model_json.read_description(files.local_path(config.init_from))
    known = dataclasses.asdict(start.model).items()
    defaults = {
      k: form.types[k] if v is None else v
      for k, v in known
      if k != "vocab_size"
    }
    form = dataclasses.replace(form, defaults=defaults)
  else:
    missing = sorted(form.required - set(config.model))
    if missing:
      raise errors.InputError(
        f"{path}: missing field model.{missing[0]}; add it, or add"
        " init_from to start from a model that has it"
      )
  config_files.complete(config.model, form)


def supervised(config: verbs.Config) -> ml_collections.ConfigDict:
  """Returns the config of a run on stored data, complete and overridden."""
  return config.filled(form, prepare)


def of_records(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Returns a config whose data are given, with defaults for a file's fields.

  Args:
    config: The config, in which all fields but program, model, packing,
      optimizer and fit may be missing.
  """
  defaults: dict[str, Any] = dict(seed=0, init_from="", microbatches=1)
  defaults |= dict(eval_rows=256, aggregate="product", mesh=(-1, 1, 1))
  for name in ("tokenizer", "encoding", "objective"):
    defaults[name] = ml_collections.ConfigDict()
  kind = kinds.KINDS.get(str(config.get("program")))
  target = config.get("objective", {}).get("outcome_target")
  if (kind and kind.judged == "last") or target == "last_step":
    defaults["aggregate"] = "last"
  for name, value in defaults.items():
    if name not in config:
      config[name] = value
  config.data = ml_collections.ConfigDict(dict(train=()))
  return config


def names_rl(config: ml_collections.ConfigDict) -> bool:
  # The kind that rl/ trains, in a program of its own.
  name = str(config.get("program"))
  return name in kinds.KINDS and name not in programs.TRAINED


def run_of(
  c: ml_collections.ConfigDict,
  name: str,
  records: corpus.Corpus | None = None,
) -> Run:
  """Returns the run that a config's fields describe.

  Args:
    c: The config, complete.
    name: What messages call it.
    records: The solutions; None reads those that the config names.
  """
  return Run(
    config=from_config(c),
    data=sources_of(c.data) if records is None else records,
    tokenizer=chosen_tokenizer.TokenizerConfig(**c.tokenizer),
    start=files.local_path(c.init_from) if c.init_from else None,
    name=name,
  )


def records(
  train: Sequence[schema.Solution], evaluation: Sequence[schema.Solution]
) -> corpus.Corpus:
  """Returns solutions in memory as data of one source."""
  numbers = (np.zeros(len(part), np.int32) for part in (train, evaluation))
  return corpus.Corpus(train, (), evaluation, ("records",), (), *numbers)


def _sources(
  data: corpus.Corpus,
  numbers: np.ndarray,
  weights: tuple[float, ...] = (),
) -> batches.Sources | None:
  """Returns the sources of a part of the data, if it has several."""
  if len(weights) > 1 or len(set(numbers.tolist())) > 1:
    return batches.Sources(data.names, numbers, weights)
  return None
