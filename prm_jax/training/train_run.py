"""Trains a checkpoint folder, given a config and solutions.

Only this module joins a program, its data and `fit`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
import hashlib
import itertools
import json
import logging
import pathlib
import tempfile
from typing import Any

from flax.core import meta
import jax

from prm_jax import batch as batch_lib
from prm_jax import errors
from prm_jax import schema
from prm_jax.checkpoints import integrity
from prm_jax.checkpoints import model_json
from prm_jax.checkpoints import parameters
from prm_jax.checkpoints import saves
from prm_jax.models import kinds
from prm_jax.models import lora
from prm_jax.models import model_config
from prm_jax.models import sharding
from prm_jax.records import array_record
from prm_jax.records import jsonl
from prm_jax.rows import encoded_cache
from prm_jax.rows import loader
from prm_jax.runtime import distributed
from prm_jax.runtime import files
from prm_jax.runtime import progress
from prm_jax.runtime import storage
from prm_jax.text import encoding
from prm_jax.text import encoding_records
from prm_jax.text import segmenters
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.training import batches
from prm_jax.training import implicit_prm
from prm_jax.training import loop
from prm_jax.training import program as program_lib
from prm_jax.training import train_config
from prm_jax.training import trainable
from prm_jax.training import warm_start

_logger = logging.getLogger(__name__)

# In the workdir: what a run learns from, which one that resumes compares.
DATA = "data.json"
# How a run is computed may change on the way: losses differ by rounding.
MAY_CHANGE = (
  *("mesh", "microbatches", "model.remat", "model.scan", "model.attention"),
  *loop.MAY_CHANGE,
)
# How texts are cut changes no loss, so a run may get it late, but not change it.
MAY_SET = ("segmenter",)


def check_init(
  config: train_config.TrainConfig,
  start: train_config.TrainConfig,
  vocab_size: int,
) -> None:
  """Refuses a run that can't begin with the parameters of another model."""
  abstract, programs = [], []
  for c in (config, start):
    model = model_config.ModelConfig(vocab_size=vocab_size, **c.model)
    programs.append(train_config.make_program(c, model))
    state = jax.eval_shape(programs[-1].init, jax.random.key(0))
    abstract.append(meta.unbox(state.params))
  warm_start.common(*abstract)
  warm_start.check_frozen(programs[0], *abstract)


def read_init(config: train_config.TrainConfig, folder: pathlib.Path) -> Any:
  """Returns a checkpoint's parameters, for a run to begin with.

  Its adapters are merged into the kernels if the run's model has none.

  Raises:
    InputError: The folder can't be read, or the run would scale its adapters
      otherwise.
  """
  description = model_json.read_description(folder)
  params = parameters.load_params(folder, description)
  old = description.model
  new = model_config.ModelConfig(vocab_size=old.vocab_size, **config.model)
  if old.lora_rank and not new.lora_rank:
    _logger.info(
      f"init_from={folder}: its adapters are merged into the kernels"
    )
    return lora.merge(old, params)[1]
  if old.lora_rank and old.lora_alpha != new.lora_alpha:
    raise errors.InputError(
      f"init_from={folder}: its adapters have model.lora_alpha="
      f"{old.lora_alpha}, this config {new.lora_alpha}; give both the same"
    )
  return params


def read_sampling(
  kind: kinds.Kind, folder: pathlib.Path
) -> Mapping[str, float]:
  """Returns the default temperature, top_p, top_k and min_p of a run's policy.

  They are those in model.json of the policy that it starts from. Without such a
  policy, or if the run trains none, there are none.

  Args:
    kind: The kind of the run's program.
    folder: The checkpoint folder that the run starts from.
  """
  description = model_json.read_description(folder)
  is_policy = kinds.KINDS[description.program].writes
  return description.sampling if is_policy and kind.writes else {}


def train(
  config: train_config.TrainConfig,
  solutions: Sequence[schema.Solution],
  tokenizer: tokenizer_lib.Tokenizer,
  workdir: pathlib.Path,
  *,
  eval_solutions: Sequence[schema.Solution] = (),
  sources: batches.Sources | None = None,
  eval_sources: batches.Sources | None = None,
  init_from: Any = None,
  donate: bool = False,
  vocab_size: int | None = None,
  sampling: Mapping[str, float] | None = None,
  fresh: bool = False,
  cache: encoded_cache.Cache | None = None,
  on_start: Callable[[], None] = lambda: None,
  bucket: storage.Bucket | None = None,
) -> tuple[model_config.ModelConfig, Any]:
  """Trains a checkpoint folder or resumes its training; returns the model.

  Args:
    config: The whole run.
    solutions: The solutions to train on.
    tokenizer: The tokenizer.
    workdir: The folder of checkpoints and metrics.
    eval_solutions: The solutions to evaluate on.
    sources: The source of each solution, if there are several; each source is
      also measured alone.
    eval_sources: The same for eval_solutions, with the same names.
    init_from: Initial parameters.
    donate: See loop.Hooks.
    vocab_size: The number of rows of the embedding; None is the tokenizer's
      size.
    sampling: The defaults of read_sampling, which model.json keeps.
    fresh: See loop.Hooks. The data are encoded again, too.
    cache: Where encoded data are kept; None keeps none.
    on_start: See loop.Hooks.
    bucket: See loop.Hooks.

  Returns:
    The shape of the model, and its parameters.

  Raises:
    InputError: The folder holds a run of another model or a damaged one, or the
      config doesn't fit the data or the devices.
  """
  name = workdir.name
  errors.raise_first(_faults(config, sources, init_from))
  measured = sources or eval_sources
  stages = stages_of(
    config,
    tokenizer,
    vocab_size or tokenizer.vocab_size,
    measured.names if measured else (),
  )
  described = dataclasses.replace(stages.description, sampling=sampling or {})
  program, mesh = stages.program, stages.mesh
  data = dict(_told(solutions), evaluation=_told(eval_solutions))
  distributed.check_same(dict(data=data))
  if bucket is None:
    distributed.check_same_folder(workdir)
  else:
    distributed.check_same(dict(workdir=str(bucket.there)))
  encode = functools.partial(stages.encode, cache=cache, fresh=fresh)
  rows, counts = encode(
    *(solutions, tokenizer, stages.seed, sources), digest=data["sha256"]
  )
  _logger.info(f"{name}: {batches.describe_counts(counts, rows)}")
  if sources is not None and sources.weights:
    pairs = zip(rows.shares.tolist(), sources.names)
    parts = ", ".join(f"{n:,} of {source}" for n, source in pairs)
    _logger.info(f"{name}: rows of an epoch: {parts}")
  eval_batches = []
  if eval_solutions:
    held_out, counts = encode(
      *(eval_solutions, tokenizer, 0, eval_sources),
      digest=data["evaluation"]["sha256"],
    )
    _logger.info(f"{name} eval: {batches.describe_counts(counts, held_out)}")
    if stages.eval_rows < held_out.rows_per_epoch:
      _logger.info(
        f"{name} eval: takes {stages.eval_rows} of {held_out.rows_per_epoch}"
        " rows; eval_rows takes more",
      )
    eval_batches = batches.each_once(held_out, stages.eval_rows, mesh)
  path = workdir / DATA
  saved = saves.saved_steps(storage.of_saves(workdir, bucket))
  if saved and not fresh:
    # First: a tokenizer that is made of the data differs with them.
    others = _other_model(described, tokenizer, workdir)
    errors.raise_first(itertools.chain(_other_data(path, data), others))
  if kinds.KINDS[described.program].has_reference:
    init_from = implicit_prm.begin_from(init_from)

  def describe():
    on_start()
    files.write_json(path, integrity.sealed(data))
    saved = dataclasses.replace(described, tokenizer=tokenizer.save(workdir))
    model_json.write_description(workdir, saved)

  trained = _describe_trained(program)
  if trained:
    _logger.info(f"{name}: {trained}")
  state = loop.fit(
    program,
    loop.stored(batches.by_step(rows, mesh), stages.fit.steps),
    stages.fit,
    loop.Hooks(
      workdir=workdir,
      key=jax.random.key(stages.seed),
      mesh=mesh,
      init_from=init_from,
      donate=donate,
      eval_batches=eval_batches,
      fresh=fresh,
      on_start=describe,
      bucket=bucket,
      name=name,
    ),
  )
  return described.model, meta.unbox(state.params)


@dataclasses.dataclass(frozen=True, eq=False)
class Stages:
  """What a run's config says, to each stage its own.

  Args:
    encode: batches.encode_rows, of the run's objective, packing and encoding.
    seed: The seed of the initial parameters and of the order of the data.
    eval_rows: The most held-out rows that are evaluated.
    program: What is computed.
    mesh: Where.
    fit: How long.
    description: What model.json says, but for the tokenizer and its sampling.
  """

  encode: Callable[..., tuple[loader.PackedDataset, Counter[str]]]
  seed: int
  eval_rows: int
  program: program_lib.Program[batch_lib.Batch]
  mesh: jax.sharding.Mesh
  fit: loop.FitConfig
  description: model_json.Description


def stages_of(
  config: train_config.TrainConfig,
  tokenizer: tokenizer_lib.Tokenizer,
  vocab_size: int,
  sources: Sequence[str] = (),
) -> Stages:
  """Returns the stages of a run.

  Args:
    config: The whole run.
    tokenizer: The tokenizer.
    vocab_size: The number of rows of the embedding.
    sources: The names of the data's sources; see programs.make.

  Raises:
    InputError: The config doesn't fit the tokenizer or the devices.
  """
  train_config.warn(config)
  model = model_config.ModelConfig(vocab_size=vocab_size, **config.model)
  return Stages(
    encode=functools.partial(
      batches.encode_rows, config.objective, config.packing, config.encoding
    ),
    seed=config.seed,
    eval_rows=config.eval_rows,
    program=train_config.make_program(config, model, sources),
    fit=config.fit,
    mesh=sharding.mesh_for(config.mesh, config.packing.batch_size),
    description=model_json.Description(
      program=config.program,
      model=model,
      encoding=_encoding_record(config.encoding, tokenizer, vocab_size),
      tokenizer={},
      aggregate=config.aggregate,
      scoring=config.objective.scoring,
      judged=config.objective.judged,
      segmenter=_segmenter(config),
    ),
  )


def _encoding_record(
  encoding_config: encoding.EncodingConfig,
  tokenizer: tokenizer_lib.Tokenizer,
  vocab_size: int,
) -> dict[str, Any]:
  """Returns how a run reads texts; refuses ids that its model doesn't have."""
  needed = encoding_config.template.num_ids(tokenizer)
  if needed > vocab_size:
    raise errors.InputError(
      f"the model has {vocab_size} token ids and this reading takes {needed};"
      f" set encoding.template to one of {', '.join(encoding_records.NAMES)}"
    )
  fitted = encoding_records.with_template(encoding_config, tokenizer)
  return encoding_records.record_of(fitted)


def _faults(config, sources, init_from) -> Iterator[str]:
  """Yields why a run can't begin."""
  if config.objective.compares and sources is not None and sources.weights:
    yield (
      "data.weights: an objective that compares takes every pair once; leave"
      " the weights out"
    )
  if config.kind.has_reference and init_from is None:
    yield (
      "init_from: an implicit PRM is measured against the model that it begins"
      " with; give the folder of an sft"
    )


def _describe_trained(program: program_lib.Program) -> str:
  """Returns which part of the parameters is trained, "" of all of them."""
  state = jax.eval_shape(program.init, jax.random.key(0))
  trained, _ = trainable.split(meta.unbox(state.params), program.trains)
  some, all_ = (
    sum(x.size for x in jax.tree.leaves(tree))
    for tree in (trained, state.params)
  )
  if some == all_:
    return ""
  return f"trains {some:,} of {all_:,} parameters ({some / all_:.2%})"


def _segmenter(
  config: train_config.TrainConfig,
) -> segmenters.Segmenter | None:
  """Returns how the model's texts are cut, if that is known."""
  if config.segmenter:
    return segmenters.parse(config.segmenter)
  return config.encoding.template.segmenter


def _told(solutions: Sequence[schema.Solution]) -> dict[str, Any]:
  """Returns data that shows whether a run resumes with the same solutions."""
  if isinstance(solutions, array_record.Chosen):
    return dict(solutions=len(solutions), sha256=solutions.fingerprint)
  whole = hashlib.sha256()
  encode = json.JSONEncoder(sort_keys=True, default=str).encode
  for s in progress.through("digest", solutions, len(solutions)):
    record = jsonl.record_from_solution(s)
    whole.update(encode(record).encode())
  return dict(solutions=len(solutions), sha256=whole.hexdigest())


def _other_data(path: pathlib.Path, data: Mapping[str, Any]) -> Iterator[str]:
  """Yields how the solutions of the run to be resumed were others.

  Its steps would read other rows than before, and its evaluations, of which the
  best may be kept, couldn't be compared.
  """
  saved = integrity.unsealed(files.read_json(path)) if path.exists() else {}
  if saved is None or not isinstance(saved.get("evaluation", {}), dict | None):
    yield (
      f"{path}: damaged: it isn't what was written; put the original back, or"
      " remove it to continue without comparing the data"
    )
    return
  for what, old, new in (
    ("learns from", saved, data),
    ("is evaluated on", saved.get("evaluation"), data["evaluation"]),
  ):
    # A run may have had no data to evaluate.
    if not old or old.get("sha256") == new["sha256"]:
      continue
    counts = [x.get("solutions") for x in (old, new)]
    difference = (
      f"{counts[0]} solutions, now {counts[1]}"
      if counts[0] != counts[1]
      else f"as many solutions, {counts[0]}, but not the same or in another"
      " order"
    )
    yield (
      f"{path.parent}: its run {what} other data: {difference}; give the same,"
      f" `fresh=True` to start again from step 0, or remove {path.name} to continue on these"
    )


def _other_model(
  described: model_json.Description,
  tokenizer: tokenizer_lib.Tokenizer,
  workdir: pathlib.Path,
) -> Iterator[str]:
  """Yields how the workdir's checkpoints are of another model."""
  with tempfile.TemporaryDirectory() as folder:
    saved = tokenizer.save(pathlib.Path(folder))
  now = dataclasses.replace(described, tokenizer=saved)
  old, new = (
    dict[str, Any](
      program=x.program,
      tokenizer=x.tokenizer,
      scoring=x.scoring,
      encoding=encoding_records.from_record(x.encoding, workdir),
      # How it's computed may change on the way: to fit the memory, say.
      model=dataclasses.replace(
        x.model,
        remat="none",
        scan=True,
        compute_dtype="float32",
        attention="auto",
      ),
    )
    for x in (model_json.read_description(workdir), now)
  )
  differ = [name for name in old if old[name] != new[name]]
  if differ:
    yield (
      f"{workdir}: holds a run with another {', another '.join(differ)};"
      " take its config, another `workdir`, or `fresh=True` to replace it"
    )
