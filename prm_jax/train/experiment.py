"""From a config and solutions to a trained checkpoint folder.

The only place where a program, its data and `fit` meet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
import dataclasses
import functools
import pathlib
import tempfile
from typing import Any

from flax.core import meta
import jax
import ml_collections
import numpy as np

from prm_jax import batch as batch_lib
from prm_jax import checkpoint
from prm_jax import optimizers
from prm_jax import ranges
from prm_jax import schema
from prm_jax import sharding
from prm_jax import tokenizer as tokenizer_lib
from prm_jax import voting
from prm_jax.data import dialects
from prm_jax.data import encode
from prm_jax.data import packing
from prm_jax.data import pieces as pieces_lib
from prm_jax.data import pipeline
from prm_jax.data import store
from prm_jax.models import config as config_lib
from prm_jax.models import lora
from prm_jax.train import freezing
from prm_jax.train import implicit
from prm_jax.train import loop
from prm_jax.train import objectives
from prm_jax.train import orm
from prm_jax.train import prm
from prm_jax.train import program as program_lib
from prm_jax.train import sft

PROGRAMS = ("sft", "prm", "orm", "implicit")
# Fields that a config may leave out: those of single objectives.
OPTIONAL = (
  *(f.name for f in dataclasses.fields(objectives.Options)),
  "trainable",
)


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """A whole training run but for its data.

  model: the fields of ModelConfig without vocab_size, which the tokenizer
  knows. rows, row_tokens: the shape of a batch. forest: solutions of one
  problem share their prefixes. loss, error_weight, labels: see train.prm.
  margin, pairs, beta, step_score: see train.objectives.
  outcome_target: see encode.orm_examples. aggregate: how scores of the
  trained model become one per solution. trainable: see
  freezing.chosen.
  """

  program: str
  seed: int
  model: dict[str, Any]
  reading: encode.Reading
  rows: int
  row_tokens: int
  optimizer: optimizers.OptimizerConfig
  fit: loop.FitConfig
  forest: bool = False
  labels: encode.LabelPolicy = dataclasses.field(
    default_factory=encode.LabelPolicy
  )
  loss: str = "bce"
  error_weight: float = 1.0
  margin: float | None = None
  pairs: str | None = None
  beta: float | None = None
  step_score: str | None = None
  outcome_target: str = "every_token"
  microbatches: int = 1
  eval_rows: int = 256
  aggregate: str = "product"
  mesh: tuple[int, ...] = (-1, 1, 1)
  trainable: str = "all"

  def __post_init__(self):
    if self.program not in PROGRAMS:
      raise schema.InputError(
        f"program={self.program!r}: expected one of {', '.join(PROGRAMS)}"
      )
    if self.reading.max_tokens > self.row_tokens:
      raise schema.InputError(
        f"reading.max_tokens={self.reading.max_tokens} is more than"
        f" row_tokens={self.row_tokens}; a solution must fit a row"
      )
    if self.seed < 0:
      raise schema.InputError(f"seed={self.seed}: give 0, 1, 2, ...")
    counts = ("rows", "row_tokens", "microbatches", "eval_rows")
    ranges.check_counts(self, counts)
    if self.rows % self.microbatches:
      raise schema.InputError(
        f"rows={self.rows} isn't a multiple of microbatches={self.microbatches}"
      )
    for name, allowed in (
      ("aggregate", voting.AGGREGATES),
      ("outcome_target", encode.OUTCOME_TARGETS),
    ):
      value = getattr(self, name)
      if value not in allowed:
        raise schema.InputError(
          f"{name}={value!r}: expected one of {', '.join(allowed)}"
        )
    self._check_loss()
    # It refuses what no model can be; the vocabulary isn't known yet.
    unknown = 1 << 30
    make_program(self, config_lib.ModelConfig(unknown, **self.model))

  def _check_loss(self) -> None:
    ranges.check_positive(self, ("error_weight",))
    if self.error_weight != 1 and (self.program, self.loss) != ("prm", "bce"):
      raise schema.InputError(
        f"error_weight={self.error_weight}: only a prm with loss='bce' weighs"
        " errors; set it to 1"
      )
    objectives.check(self.program, self.loss, self.options)
    objectives.check_data(
      self.program,
      self.loss,
      self.options,
      forest=self.forest,
      outcome_target=self.outcome_target,
      neutral=self.labels.neutral,
    )

  @property
  def options(self) -> objectives.Options:
    """The objective's own options."""
    return objectives.Options(
      self.margin, self.pairs, self.beta, self.step_score
    )


def from_config(c: ml_collections.ConfigDict) -> TrainConfig:
  """Returns the run that a config's fields describe."""
  return TrainConfig(
    program=c.program,
    seed=c.seed,
    model={
      k: tuple(v) if isinstance(v, list) else v
      for k, v in c.model.to_dict().items()
    },
    reading=encode.Reading(**c.reading),
    rows=c.rows,
    row_tokens=c.row_tokens,
    forest=c.forest,
    optimizer=optimizers.OptimizerConfig(**c.optimizer),
    fit=loop.FitConfig(**c.fit),
    labels=encode.LabelPolicy(**c.labels),
    loss=c.loss,
    error_weight=c.error_weight,
    **{name: c[name] for name in OPTIONAL if name in c},
    outcome_target=c.outcome_target,
    microbatches=c.microbatches,
    eval_rows=c.eval_rows,
    aggregate=c.aggregate,
    mesh=tuple(c.mesh),
  )


def check_devices(config: TrainConfig) -> jax.sharding.Mesh:
  """Returns the mesh; refuses one that the devices or rows don't fit."""
  mesh = sharding.make_mesh(config.mesh)
  sharding.check_rows(config.rows, mesh)
  return mesh


def check_start(
  config: TrainConfig, start: TrainConfig, vocab_size: int
) -> None:
  """Refuses a run that can't begin with the parameters of another."""
  abstract, programs = [], []
  for c in (config, start):
    model = config_lib.ModelConfig(vocab_size=vocab_size, **c.model)
    programs.append(make_program(c, model))
    state = jax.eval_shape(programs[-1].init, jax.random.key(0))
    abstract.append(meta.unbox(state.params))
  loop.common(*abstract)
  loop.check_frozen(programs[0], *abstract)


def read_start(config: TrainConfig, folder: pathlib.Path) -> Any:
  """Returns a checkpoint's parameters, for a run to begin with.

  Its adapters are merged into the kernels where the run's model has none.

  Raises:
    InputError: it can't be read, or the run would scale its adapters anew.
  """
  description = checkpoint.read_description(folder)
  params = checkpoint.load_params(folder, description)
  old = description.model
  new = config_lib.ModelConfig(vocab_size=old.vocab_size, **config.model)
  if old.lora_rank and not new.lora_rank:
    print(f"start_from={folder}: its adapters are merged into the kernels")
    return lora.merge(old, params)[1]
  if old.lora_rank and old.lora_alpha != new.lora_alpha:
    raise schema.InputError(
      f"start_from={folder}: its adapters have model.lora_alpha="
      f"{old.lora_alpha}, this config {new.lora_alpha}; give both the same"
    )
  return params


@dataclasses.dataclass(frozen=True, eq=False)
class Sources:
  """Which source each solution is of, where there are several.

  names: no two alike. numbers: int32, of each solution, its source's place in
  names. weights: see pipeline.Rows; by source, or none.
  """

  names: tuple[str, ...]
  numbers: np.ndarray
  weights: tuple[float, ...] = ()


def encode_rows(
  config: TrainConfig,
  solutions: Sequence[schema.Solution],
  tokenizer: tokenizer_lib.Tokenizer,
  seed: int,
  sources: Sources | None = None,
) -> tuple[pipeline.Rows, Counter[str]]:
  """Returns the program's rows and the counts of what is in them.

  Solutions that stay in their files are read when a batch needs them; the
  batches are the same. With several sources a tree is of one of them. Where
  the objective compares, all are read, and sources aren't told apart.
  """
  encoded = functools.partial(_examples, config, tokenizer)
  kind = objectives.compares(config.program, config.loss, config.options)
  if kind:
    if sources is not None and sources.weights:
      raise schema.InputError(
        f"data.weights: loss={config.loss!r} takes every pair once; leave the"
        " weights out"
      )
    examples, counts = encoded(list(solutions))
    pieces, compared = objectives.paired(
      examples, kind, forest=config.forest, row_tokens=config.row_tokens
    )
    rows = pipeline.Rows(pieces, config.rows, config.row_tokens, seed)
    return rows, counts + compared
  numbers = np.zeros(len(solutions), np.int32)
  if sources is not None:
    numbers = sources.numbers
  tree_tokens = config.row_tokens if config.forest else None
  found: Sequence[packing.Piece]
  if isinstance(solutions, store.Chosen):
    table = pieces_lib.kept_index(
      solutions, encoded, numbers, tree_tokens, _encoding(config, tokenizer)
    )
    found = pieces_lib.Pieces(solutions, encoded, table, config.forest)
    of, counts = table.sources, table.counts
  else:
    found, of, counts = pieces_lib.made(
      solutions, encoded, numbers, tree_tokens
    )
  rows = pipeline.Rows(found, config.rows, config.row_tokens, seed)
  if sources is not None:
    rows = dataclasses.replace(rows, sources=of, weights=sources.weights)
  return rows, counts


def _examples(
  config: TrainConfig,
  tokenizer: tokenizer_lib.Tokenizer,
  solutions: Sequence[schema.Solution],
) -> tuple[list[encode.Example], Counter[str]]:
  """Returns the program's examples and the counts of what is in them."""
  reading = encode.with_dialect(config.reading, tokenizer)
  kind = objectives.compares(config.program, config.loss, config.options)
  if config.program == "prm" and kind != "solutions":
    return encode.prm_examples(solutions, tokenizer, reading, config.labels)
  if config.program in ("prm", "orm"):
    target = "last_step" if kind else config.outcome_target
    return encode.orm_examples(solutions, tokenizer, reading, target)
  if config.program == "implicit":
    return encode.implicit_examples(solutions, tokenizer, reading)
  return encode.sft_examples(solutions, tokenizer, reading)


# What no example depends on.
_NOT_ENCODING = frozenset(
  ("seed", "rows", "optimizer", "fit", "model", "mesh", "microbatches")
) | {"eval_rows", "aggregate", "row_tokens"}


def _encoding(
  config: TrainConfig, tokenizer: tokenizer_lib.Tokenizer
) -> dict[str, Any]:
  """Returns what decides the examples of a solution, as plain data."""
  fields = dataclasses.asdict(config)
  with tempfile.TemporaryDirectory() as folder:
    words = tokenizer.save(pathlib.Path(folder))
  kept = {k: v for k, v in fields.items() if k not in _NOT_ENCODING}
  return kept | dict(tokenizer=words)


def make_program(
  config: TrainConfig,
  model: config_lib.ModelConfig,
  sources: Sequence[str] = (),
) -> program_lib.Program:
  """Returns the program that the config names; sources: see prm.make."""
  optimizer = optimizers.make(config.optimizer, config.fit.steps)
  if config.program == "prm":
    return prm.make(
      model,
      optimizer,
      loss=config.loss,
      error_weight=config.error_weight,
      margin=config.margin,
      microbatches=config.microbatches,
      trainable=config.trainable,
      sources=sources,
    )
  if config.program == "orm":
    return orm.make(
      model,
      optimizer,
      loss=config.loss,
      margin=config.margin,
      microbatches=config.microbatches,
      trainable=config.trainable,
      sources=sources,
    )
  if config.program == "implicit":
    return implicit.make(
      model,
      optimizer,
      loss=config.loss,
      beta=float(objectives.scoring(config.options)["beta"]),
      microbatches=config.microbatches,
      trainable=config.trainable,
      sources=sources,
    )
  return sft.make(
    model,
    optimizer,
    microbatches=config.microbatches,
    trainable=config.trainable,
    sources=sources,
  )


def describe_counts(counts: Counter[str], rows: pipeline.Rows) -> str:
  """Returns one line on the data: what is in it and what was left out."""
  said = ", ".join(f"{n:,} {what}" for what, n in counts.items() if n)
  return (
    f"{said}; {len(rows.pieces):,} pieces, {int(rows.lengths.sum()):,} tokens,"
    f" {rows.rows_per_epoch:,} rows an epoch, fill {rows.fill:.1%}"
  )


def train(
  config: TrainConfig,
  solutions: Sequence[schema.Solution],
  tokenizer: tokenizer_lib.Tokenizer,
  workdir: pathlib.Path,
  *,
  eval_solutions: Sequence[schema.Solution] = (),
  sources: Sources | None = None,
  eval_sources: Sources | None = None,
  start_from: Any = None,
  vocab_size: int | None = None,
  fresh: bool = False,
  begin: Callable[[], None] = lambda: None,
) -> tuple[config_lib.ModelConfig, Any]:
  """Trains, or goes on training, a checkpoint folder.

  sources, eval_sources: where there are several, each is measured by itself;
  their names are the same. start_from: parameters to begin with. vocab_size:
  rows of their table of tokens, the tokenizer's by default. fresh, begin: see
  loop.fit.
  Returns the model and its parameters.

  Raises:
    InputError: the folder holds a run of another model, or one that's damaged;
      or the config doesn't fit the data or the devices.
  """
  name = workdir.name
  mesh = check_devices(config)
  needed = encode.num_ids(config.reading, tokenizer)
  vocab_size = vocab_size or tokenizer.vocab_size
  if needed > vocab_size:
    raise schema.InputError(
      f"the model has {vocab_size} token ids and this reading takes {needed};"
      f" set reading.dialect to one of {', '.join(dialects.NAMES)}"
    )
  rows, counts = encode_rows(config, solutions, tokenizer, config.seed, sources)
  print(f"{name}: {describe_counts(counts, rows)}", flush=True)
  if sources is not None and sources.weights:
    said = zip(rows.shares.tolist(), sources.names)
    parts = ", ".join(f"{n:,} of {source}" for n, source in said)
    print(f"{name}: rows of an epoch: {parts}", flush=True)
  eval_batches = []
  if eval_solutions:
    held_out, counts = encode_rows(
      config, eval_solutions, tokenizer, 0, eval_sources
    )
    print(f"{name} eval: {describe_counts(counts, held_out)}", flush=True)
    if config.eval_rows < held_out.rows_per_epoch:
      print(
        f"{name} eval: takes {config.eval_rows} of {held_out.rows_per_epoch}"
        " rows; eval_rows takes more",
        flush=True,
      )
    eval_batches = _each_once(held_out, config.eval_rows)
  measured = sources or eval_sources
  model = config_lib.ModelConfig(vocab_size=vocab_size, **config.model)
  if checkpoint.saved_steps(workdir) and not fresh:
    _check_same_model(config, model, tokenizer, workdir)
  if config.program == "implicit":
    if start_from is None:
      raise schema.InputError(
        "start_from: an implicit PRM is measured against the model that it"
        " begins with; give the folder of an sft"
      )
    start_from = implicit.begin_from(start_from)

  def describe():
    begin()
    described = _description(config, model, tokenizer, workdir)
    checkpoint.write_description(workdir, described)

  program = make_program(config, model, measured.names if measured else ())
  if config.trainable != "all":
    print(f"{name}: {_describe_trained(program)}", flush=True)
  state = loop.fit(
    program,
    rows.batch_at,
    config.fit,
    workdir=workdir,
    key=jax.random.key(config.seed),
    mesh=mesh,
    start_from=start_from,
    eval_batches=eval_batches,
    fresh=fresh,
    begin=describe,
    name=name,
  )
  return model, meta.unbox(state.params)


def _describe_trained(program: program_lib.Program) -> str:
  state = jax.eval_shape(program.init, jax.random.key(0))
  trained, _ = freezing.split(meta.unbox(state.params), program.trains)
  some, all_ = (
    sum(x.size for x in jax.tree.leaves(tree))
    for tree in (trained, state.params)
  )
  return f"trains {some:,} of {all_:,} parameters ({some / all_:.2%})"


def _each_once(rows: pipeline.Rows, max_rows: int) -> list[batch_lib.Batch]:
  """Returns batches in which the first rows of an epoch count once each."""
  wanted = min(max_rows, rows.rows_per_epoch)
  batches = pipeline.batches(rows, -(-wanted // rows.rows))
  # The last batch runs over into rows that aren't wanted, or come again.
  extra = len(batches) * rows.rows - wanted
  weights = np.array(batches[-1].weights)
  weights[rows.rows - extra :] = 0
  return [*batches[:-1], dataclasses.replace(batches[-1], weights=weights)]


def _description(
  config: TrainConfig,
  model: config_lib.ModelConfig,
  tokenizer: tokenizer_lib.Tokenizer,
  folder: pathlib.Path,
) -> checkpoint.Description:
  """Returns what the checkpoints need to be used; saves the tokenizer."""
  return checkpoint.Description(
    program=config.program,
    model=model,
    reading=dataclasses.asdict(encode.with_dialect(config.reading, tokenizer)),
    tokenizer=tokenizer.save(folder),
    aggregate=config.aggregate,
    scoring=objectives.scoring(config.options)
    if config.program == "implicit"
    else {},
  )


def _check_same_model(
  config: TrainConfig,
  model: config_lib.ModelConfig,
  tokenizer: tokenizer_lib.Tokenizer,
  workdir: pathlib.Path,
) -> None:
  """Raises InputError if the workdir's checkpoints are of another model."""
  with tempfile.TemporaryDirectory() as folder:
    new = _description(config, model, tokenizer, pathlib.Path(folder))
  old = checkpoint.read_description(workdir)
  differ = [
    name
    for name in ("program", "tokenizer", "scoring")
    if getattr(old, name) != getattr(new, name)
  ]
  readings = [encode.saved_reading(x.reading, workdir) for x in (old, new)]
  if readings[0] != readings[1]:
    differ.append("reading")
  # How it's computed may change on the way: to fit the memory, say.
  models = [
    dataclasses.replace(
      x,
      remat="none",
      scan=True,
      compute_dtype="float32",
      attention="auto",
    )
    for x in (old.model, model)
  ]
  if models[0] != models[1]:
    differ.append("model")
  if differ:
    raise schema.InputError(
      f"{workdir}: holds a run with another {', another '.join(differ)};"
      " take its config, another --workdir, or --fresh to replace it"
    )
