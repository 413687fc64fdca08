"""A run of supervised training, as the fields of a config describe it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import pathlib
from typing import Any, ClassVar

import ml_collections
import numpy as np

from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import model_json
from prm_jax.models import model_config as model_config
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
from prm_jax.text import policy_templates
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.training import batches
from prm_jax.training import loop
from prm_jax.training import optimizer
from prm_jax.training import program
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
  data: sources_lib.CorpusConfig | sources_lib.Corpus
  tokenizer: sources_lib.TokenizerConfig
  start: pathlib.Path | None
  name: str

  may_change: ClassVar = train_run.MAY_CHANGE
  may_set: ClassVar = train_run.MAY_SET

  @property
  def reads(self) -> list[pathlib.Path | None]:
    """The files and folders that it reads."""
    if isinstance(self.data, sources_lib.Corpus):
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

    is_stored = isinstance(self.data, sources_lib.CorpusConfig)
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
  ) -> tuple[sources_lib.Corpus, tokenizer_lib.Tokenizer, int | None]:
    """Returns data, tokenizer, and how many ids the model to start from has."""
    tokenizer = vocab_size = None
    if self.start is not None:
      described = model_json.read_description(self.start)
      vocab_size = described.model.vocab_size
      tokenizer = model_json.read_tokenizer(self.start, described)
    data = self.data
    if isinstance(data, sources_lib.CorpusConfig):
      data = sources_lib.load(data)
      if not data.train:
        raise errors.InputError(
          f"{self.name}: data.train: no solution is left to train on"
        )
    if tokenizer is None:
      tokenizer = sources_lib.make_tokenizer(self.tokenizer, data.train)
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
  checks.check_choice("program", name, programs.SUPERVISED)
  kind = programs.KINDS[name].objective
  assert kind is not None
  labels = {}
  if "labels" in {f.name for f in dataclasses.fields(kind)}:
    labels = dict(labels=config_files.form(encoding.LabelPolicy))
  groups = dict(
    program=str,
    model=config_files.form(model_config.ModelConfig, without=["vocab_size"]),
    encoding=config_files.form(encoding.EncodingConfig),
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


def form(given: ml_collections.ConfigDict) -> config_files.Form:
  # What the model's fields default to depends on init_from.
  model = config_files.form(model_config.ModelConfig, without=["vocab_size"])
  whole = run_form(
    given,
    model=dataclasses.replace(model, required=frozenset(), defaults={}),
    data=config_files.form(sources_lib.CorpusConfig),
    tokenizer=config_files.form(sources_lib.TokenizerConfig),
    init_from=str,
  )
  return dataclasses.replace(whole, required=whole.required - {"model"})


def from_config(c: ml_collections.ConfigDict) -> train_config.TrainConfig:
  """Returns the run that a config's fields describe."""
  kind = programs.KINDS[c.program].objective
  assert kind is not None
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
  given = encoding.EncodingConfig(**c.encoding)
  of_policy = given.template == encoding.OF_POLICY
  if not c.get("init_from"):
    return given
  folder = files.local_path(c.init_from)
  described = model_json.read_description(folder)
  saved = encoding.saved_encoding(described.encoding, folder)
  is_policy = isinstance(saved.template, policy_templates.PolicyTemplate)
  if of_policy and not is_policy:
    raise errors.InputError(
      f"encoding.template={encoding.OF_POLICY!r}: {folder} isn't a policy with"
      " a template; import it with `role=policy`"
    )
  if is_policy and programs.KINDS[c.program].writes and not of_policy:
    raise errors.InputError(
      f"init_from={c.init_from}: is a policy with a template of its own; set"
      f" encoding.template={encoding.OF_POLICY!r}, or import it without"
      " `role=policy` to train it in our own form"
    )
  template = saved.template if of_policy else given.template
  if isinstance(template, policy_templates.PolicyTemplate):
    template = _closed(template, programs.KINDS[c.program])
  return dataclasses.replace(given, template=template)


def _closed(
  template: policy_templates.PolicyTemplate, kind: program.Kind
) -> policy_templates.PolicyTemplate:
  """Returns a template whose whole chat programs of outcomes alone read."""
  if kind.heads == ("outcome",):
    return template
  return dataclasses.replace(template, closing=(), one_text=False, refuses=())


def sources_of(c: ml_collections.ConfigDict) -> sources_lib.CorpusConfig:
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
  return sources_lib.CorpusConfig(**plain)


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
  for name, value in defaults.items():
    if name not in config:
      config[name] = value
  config.data = ml_collections.ConfigDict(dict(train=()))
  return config


def names_rl(config: ml_collections.ConfigDict) -> bool:
  kind = programs.KINDS.get(str(config.get("program")))
  return kind is not None and kind.objective is None


def run_of(
  c: ml_collections.ConfigDict,
  name: str,
  records: sources_lib.Corpus | None = None,
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
    tokenizer=sources_lib.TokenizerConfig(**c.tokenizer),
    start=files.local_path(c.init_from) if c.init_from else None,
    name=name,
  )


def records(
  train: Sequence[schema.Solution], evaluation: Sequence[schema.Solution]
) -> sources_lib.Corpus:
  """Returns solutions in memory as data of one source."""
  numbers = (np.zeros(len(part), np.int32) for part in (train, evaluation))
  return sources_lib.Corpus(train, (), evaluation, ("records",), (), *numbers)


def _sources(
  data: sources_lib.Corpus,
  numbers: np.ndarray,
  weights: tuple[float, ...] = (),
) -> batches.Sources | None:
  """Returns the sources of a part of the data, if it has several."""
  if len(weights) > 1 or len(set(numbers.tolist())) > 1:
    return batches.Sources(data.names, numbers, weights)
  return None
