"""`prm-jax train`, and the config of a training run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import dataclasses
import pathlib
from typing import Any

import ml_collections

from prm_jax import errors
from prm_jax.checkpoints import model_json
from prm_jax.cli import config_files
from prm_jax.cli import environment
from prm_jax.cli import rl
from prm_jax.data import encoding
from prm_jax.data import sources as sources_lib
from prm_jax.data import tokenizer as tokenizer_lib
from prm_jax.data.formats import jsonl
from prm_jax.huggingface import import_model as import_model_lib
from prm_jax.models import config as model_config
from prm_jax.runtime import checks
from prm_jax.runtime import distributed
from prm_jax.runtime import files
from prm_jax.runtime import storage
from prm_jax.training import batches
from prm_jax.training import config as training_config
from prm_jax.training import loop
from prm_jax.training import optimizer
from prm_jax.training import programs
from prm_jax.training import run as training_run


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
    training_config.TrainConfig,
    complete=True,
    optional=("trainable",),
    nested=groups | more,
  )


def _train_form(given: ml_collections.ConfigDict) -> config_files.Form:
  # What the model's fields default to depends on init_from.
  model = config_files.form(model_config.ModelConfig, without=["vocab_size"])
  return run_form(
    given,
    model=dataclasses.replace(model, required=frozenset(), defaults={}),
    data=config_files.form(sources_lib.CorpusConfig),
    tokenizer=config_files.form(sources_lib.TokenizerConfig),
    init_from=str,
  )


def from_config(c: ml_collections.ConfigDict) -> training_config.TrainConfig:
  """Returns the run that a config's fields describe."""
  kind = programs.KINDS[c.program].objective
  assert kind is not None
  objective = dict(c.objective)
  if "labels" in objective:
    objective["labels"] = encoding.LabelPolicy(**objective["labels"])
  return training_config.TrainConfig(
    objective=kind(**objective),
    seed=c.seed,
    model=config_files.plain(c.model),
    encoding=encoding.EncodingConfig(**c.encoding),
    packing=batches.PackingConfig(**c.packing),
    optimizer=optimizer.OptimizerConfig(**c.optimizer),
    fit=loop.FitConfig(**c.fit),
    microbatches=c.microbatches,
    eval_rows=c.eval_rows,
    aggregate=c.aggregate,
    mesh=tuple(c.mesh),
    trainable=c.get("trainable", "all"),
  )


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


def filled(
  read: ml_collections.ConfigDict,
  path: files.PathLike,
  overrides: Sequence[str],
) -> ml_collections.ConfigDict:
  """Returns a run's config, complete and overridden."""
  if names_rl(read):
    return config_files.filled(read, path, overrides, rl.form(), rl.prepare)
  return supervised(read, path, overrides)


def _complete_model(
  config: ml_collections.ConfigDict, path: pathlib.Path
) -> None:
  """Sets the model's fields that are left out to those of init_from's model.

  Raises:
    InputError: init_from can't be read; or there is none, and a field that
      every model needs is missing.
  """
  form = config_files.form(model_config.ModelConfig, without=["vocab_size"])
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
        f"{path}: missing field model.{missing[0]}; add it, or init_from,"
        " whose model it then is"
      )
  config_files.complete(config.model, form)


def supervised(
  read: ml_collections.ConfigDict,
  path: files.PathLike,
  overrides: Sequence[str],
) -> ml_collections.ConfigDict:
  """Returns the config of a run on stored data, complete and overridden."""
  return config_files.filled(
    read, path, overrides, _train_form, _complete_model
  )


def names_rl(config: ml_collections.ConfigDict) -> bool:
  kind = programs.KINDS.get(str(config.get("program")))
  return kind is not None and kind.objective is None


def train(args: argparse.Namespace) -> None:
  with distributed.joined():
    read = distributed.together(lambda: config_files.read(args.config))
    if not names_rl(read):
      _train_on_data(args, read)
      return
    if distributed.number() > 1:
      raise errors.InputError(
        f"{args.config}: reinforcement learning runs in one process; start one"
      )
    args.workdir = files.local_path(str(args.workdir))
    rl.train(args, read)


def _train_on_data(
  args: argparse.Namespace, read: ml_collections.ConfigDict
) -> None:
  def check():
    config = supervised(read, args.config, args.overrides)
    tokenizer_config = sources_lib.TokenizerConfig(**config.tokenizer)
    sources = sources_of(config.data)
    return config, from_config(config), sources, tokenizer_config

  config, run, sources, tokenizer_config = distributed.together(check)
  details = environment.describe(config)
  # The revision asks git, which not every host may have.
  versions = {k: v for k, v in details["versions"].items() if k != "revision"}
  distributed.check_same(dict(details["config"], versions=versions))
  fresh = args.fresh

  def claim():
    folder = storage.of_saves(workdir, bucket)
    environment.check_resume(folder, resume=args.resume, fresh=fresh)
    environment.check_workdir(
      workdir,
      details["config"],
      fresh=fresh,
      may_change=training_run.MAY_CHANGE,
    )

  with (
    storage.opened(args.workdir) as (workdir, bucket),
    environment.remove_if_refused(workdir),
  ):
    distributed.on_first(claim)
    start = files.local_path(config.init_from) if config.init_from else None
    data, tokenizer, vocab_size = distributed.together(
      lambda: _read_inputs(args.config, sources, tokenizer_config, start)
    )
    parts, eval_parts = _sources(data)
    params = None if start is None else training_run.read_init(run, start)

    def on_start():
      files.write_json(workdir / "config.json", details["config"])
      files.write_json(workdir / "environment.json", details)
      if data.held_out:
        # So that `eval` can be run on what the model hasn't seen.
        path = workdir / "held_out.jsonl"
        jsonl.write_solutions(path, data.held_out)
      if start is not None:
        import_model_lib.pass_origin_on(start, workdir)

    training_run.train(
      run,
      data.train,
      tokenizer,
      workdir,
      eval_solutions=data.evaluation,
      sources=parts,
      eval_sources=eval_parts,
      init_from=params,
      vocab_size=vocab_size,
      fresh=fresh,
      on_start=on_start,
      bucket=bucket,
    )
  print(f"checkpoint: {args.workdir}")


def _read_inputs(
  path: files.PathLike,
  sources: sources_lib.CorpusConfig,
  tokenizer_config: sources_lib.TokenizerConfig,
  start: pathlib.Path | None,
) -> tuple[sources_lib.Corpus, tokenizer_lib.Tokenizer, int | None]:
  """Returns data, tokenizer, and how many ids the model to start from has."""
  tokenizer = vocab_size = None
  if start is not None:
    described = model_json.read_description(start)
    vocab_size = described.model.vocab_size
    tokenizer = model_json.read_tokenizer(start, described)
  data = sources_lib.load(sources)
  if not data.train:
    raise errors.InputError(
      f"{path}: data.train: no solution is left to train on"
    )
  return (
    data,
    tokenizer or sources_lib.make_tokenizer(tokenizer_config, data.train),
    vocab_size,
  )


def _sources(
  data: sources_lib.Corpus,
) -> tuple[batches.Sources | None, batches.Sources | None]:
  """Returns the sources of training and of evaluation, where it has several."""
  train, evaluation = (
    batches.Sources(data.names, numbers, weights)
    if len(weights) > 1 or len(set(numbers.tolist())) > 1
    else None
    for numbers, weights in (
      (data.train_sources, data.weights),
      (data.evaluation_sources, ()),
    )
  )
  return train, evaluation
