"""`prm-jax train`, and the config of a training run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import pathlib
import types

import ml_collections

from prm_jax import errors
from prm_jax.checkpoints import model_json
from prm_jax.data import encoded_cache
from prm_jax.data import sources as sources_lib
from prm_jax.data import tokenizer as tokenizer_lib
from prm_jax.data.formats import jsonl
from prm_jax.huggingface import import_model as import_model_lib
from prm_jax.runtime import compilation_cache
from prm_jax.runtime import config_files
from prm_jax.runtime import distributed
from prm_jax.runtime import environment
from prm_jax.runtime import files
from prm_jax.runtime import outputs
from prm_jax.runtime import storage
from prm_jax.training import batches
from prm_jax.training import run as training_run
from prm_jax.training import run_config


def filled(
  read: ml_collections.ConfigDict,
  path: files.PathLike,
  overrides: Sequence[str],
) -> ml_collections.ConfigDict:
  """Returns a run's config, complete and overridden."""
  if run_config.names_rl(read):
    rl = _rl()
    return config_files.filled(read, path, overrides, rl.form(), rl.prepare)
  return run_config.supervised(read, path, overrides)


def train(args: argparse.Namespace) -> None:
  with distributed.joined():
    if distributed.number() == 1:
      # Of several processes jax has the first write alone; while it loads a
      # program the others compile it, and on GPUs wait for its part of that.
      compilation_cache.enable()
    read = distributed.together(lambda: config_files.read(args.config))
    if not run_config.names_rl(read):
      _train_on_data(args, read)
      return
    if distributed.number() > 1:
      raise errors.InputError(
        f"{args.config}: reinforcement learning runs in one process; start one"
      )
    args.workdir = files.local_path(str(args.workdir))
    _rl().train(args, read)


def _rl() -> types.ModuleType:
  """Returns prm_jax.cli.rl, which no other training waits for.

  Its sampler, rewards and endpoints take a tenth of the time of all imports.
  """
  from prm_jax.cli import rl

  return rl


def _train_on_data(
  args: argparse.Namespace, read: ml_collections.ConfigDict
) -> None:
  def check():
    config = run_config.supervised(read, args.config, args.overrides)
    tokenizer_config = sources_lib.TokenizerConfig(**config.tokenizer)
    sources = run_config.sources_of(config.data)
    named = (*sources.train, *sources.evaluation, *sources.exclude)
    paths = sources_lib.paths_of(named)
    outputs.check(
      dict(workdir=args.workdir),
      [args.config, config.init_from, *paths],
      are_folders=True,
    )
    return config, run_config.from_config(config), sources, tokenizer_config

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
      may_set=training_run.MAY_SET,
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
    cache = encoded_cache.opened()
    params = sampling = None
    if start is not None:
      params = training_run.read_init(run, start)
      sampling = training_run.read_sampling(run.kind, start)

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
      donate=True,
      vocab_size=vocab_size,
      sampling=sampling,
      fresh=fresh,
      cache=cache,
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
