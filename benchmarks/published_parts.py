"""What the processes of published_weights.py do: published_parts.py PART WORD...

Each part is a function here. It prints a JSON object last, unless what is
measured is the process itself: its CPU seconds and the peak of its memory.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import random
import sys
import tempfile
import time
from typing import Any

ROWS, TOKENS = 4, 512


def encoding(num: str, num_whole: str, config: str, workdir: str) -> None:
  """Trains up to its data, and encodes the first of it, in two ways.

  The first `num` solutions in parts that are encoded once, and the first
  `num_whole` as whole texts.
  """
  from prm_jax import trainer
  from prm_jax.text import text_cuts
  from prm_jax.training import batches

  encode_rows = batches.encode_rows

  def timed(*args: Any, **kwargs: Any) -> None:
    *before, solutions, tokenizer, seed, _ = args

    def rate(num: int) -> float:
      begun = time.process_time()
      encode_rows(*before, solutions[:num], tokenizer, seed)
      return num / (time.process_time() - begun)

    parts = rate(int(num))
    text_cuts.parts = lambda text: [text]
    _end(parts=parts, whole=rate(int(num_whole)))

  batches.encode_rows = timed
  trainer.Train(config, workdir).run()


def start(config: str, workdir: str) -> None:
  """Trains up to the moment when its first update would be compiled."""
  from prm_jax import trainer
  from prm_jax.runtime import progress

  showing = progress.showing

  def ending(what: str, *args: Any, **kwargs: Any) -> Any:
    if what.endswith("first update"):
      _end()
    return showing(what, *args, **kwargs)

  progress.showing = ending
  trainer.Train(config, workdir).run()


def _end(**values: float) -> None:
  """Prints values and ends the process, whatever it would do now."""
  print(json.dumps(values), flush=True)
  os._exit(0)


def layers(folder: str, form: str, dtype: str) -> None:
  """Compiles and runs a model's layers, held as a stack or as own arrays."""
  import jax
  import numpy as np

  from prm_jax import batch as batch_lib
  from prm_jax.checkpoints import held
  from prm_jax.checkpoints import model_json
  from prm_jax.models import transformer
  from prm_jax.training import programs

  place = pathlib.Path(folder)
  description = model_json.read_description(place)
  params = programs.load_params(
    place, description, dtype="float32" if dtype == "float32" else None
  )
  if form == "own":
    params = held.own_arrays(params)
  model = dataclasses.replace(description.model, compute_dtype=dtype)
  index = np.broadcast_to(np.arange(TOKENS, dtype=np.int32), (ROWS, TOKENS))
  batch = batch_lib.empty(ROWS, TOKENS).replace(
    tokens=np.ones((ROWS, TOKENS), np.int32),
    positions=index,
    visible_until=np.full((ROWS, TOKENS), TOKENS, np.int32),
    parent=index - 1,
  )
  hidden = functools.partial(transformer.apply, model, method="hidden")
  begun = time.process_time()
  compiled = jax.jit(hidden).lower(params, batch).compile()
  compile_cpu_s = time.process_time() - begun
  jax.block_until_ready(compiled(params, batch))
  begun = time.process_time()
  jax.block_until_ready(compiled(params, batch))
  print(
    json.dumps(
      dict(
        compile_cpu_s=compile_cpu_s,
        run_cpu_s=time.process_time() - begun,
        temporary_mb=compiled.memory_analysis().temp_size_in_bytes / 1e6,
      )
    )
  )


def train_ours(base: str, workdir: str, steps: str, rows: str) -> None:
  """Trains all parameters of a PRM, and saves half way and at the end."""
  import prm_jax

  draw = random.Random(0)
  solutions = [
    prm_jax.Solution(
      id=str(n),
      problem=f"What is {draw.random()} + {draw.random()}?",
      steps=tuple(
        " ".join(str(draw.random()) for _ in range(3)) for _ in range(6)
      ),
      labels=tuple(float(draw.random() < 0.8) for _ in range(6)),
    )
    for n in range(ROWS * 16)
  ]
  config = dict(
    program="prm",
    init_from=base,
    model=dict(compute_dtype="bfloat16", remat="none"),
    encoding=dict(template="token_classification", max_tokens=TOKENS),
    packing=dict(
      batch_size=int(rows), sequence_length=TOKENS, share_prefixes=False
    ),
    optimizer=dict(peak_lr=1e-5),
    fit=dict(
      steps=int(steps),
      log_every=1,
      checkpoint_every=max(int(steps) // 2, 1),
      tensorboard=False,
    ),
  )
  prm_jax.train(config, solutions, workdir)


def train_torch(folder: str, steps: str) -> None:
  """Does the same with PyTorch's autocast and AdamW."""
  import torch
  import transformers

  torch.set_num_threads(1)
  model = transformers.AutoModelForTokenClassification.from_pretrained(
    folder, num_labels=2, dtype=torch.float32
  ).train()
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
  generator = torch.Generator().manual_seed(0)
  with tempfile.TemporaryDirectory() as place:
    for step in range(1, int(steps) + 1):
      shape = (ROWS, TOKENS)
      ids = torch.randint(0, 40_000, shape, generator=generator)
      labels = torch.full(shape, -100)
      labels[:, ::40] = torch.randint(
        0, 2, labels[:, ::40].shape, generator=generator
      )
      with torch.autocast("cpu", torch.bfloat16):
        loss = model(input_ids=ids, labels=labels).loss
      loss.backward()
      torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
      optimizer.step()
      optimizer.zero_grad()
      if step % max(int(steps) // 2, 1) == 0:
        state = (model.state_dict(), optimizer.state_dict())
        torch.save(state, pathlib.Path(place) / str(step))


PARTS = dict(
  encoding=encoding,
  start=start,
  layers=layers,
  train_ours=train_ours,
  train_torch=train_torch,
)

if __name__ == "__main__":
  PARTS[sys.argv[1]](*sys.argv[2:])
