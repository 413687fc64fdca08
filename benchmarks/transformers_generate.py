"""transformers' `generate` on our weights, each row stopped at its own length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import os
import pathlib
from typing import Any

import numpy as np

from prm_jax.runtime import files


def load(folder: files.PathLike) -> Any:
  """Returns the model of a Hugging Face folder, on as many threads as cores."""
  import torch
  import transformers

  torch.set_num_threads(os.cpu_count() or 1)
  peer = transformers.AutoModelForCausalLM.from_pretrained(
    pathlib.Path(folder), dtype="float32"
  )
  return peer.eval()


def sampling(
  peer: Any,
  prompts: Sequence[np.ndarray],
  lengths: np.ndarray,
  batches: Sequence[Sequence[int]],
  seed: int,
) -> Callable[[], int]:
  """Returns a function that samples and returns how many tokens it drew.

  Args:
    peer: The model, of load.
    prompts: The ids of each prompt.
    lengths: The number of tokens to draw after each.
    batches: The prompts of each call of `generate`, padded on the left. A batch
      ends with its longest row.
    seed: The seed of the samples.
  """
  import torch
  import transformers

  class EachAtItsLength(transformers.StoppingCriteria):
    def __init__(self, ends):
      self.ends = torch.as_tensor(ends)

    def __call__(self, input_ids, scores, **kwargs):
      del scores, kwargs
      return self.ends <= input_ids.shape[1]

  def run() -> int:
    drawn = 0
    for batch in batches:
      width = max(len(prompts[i]) for i in batch)
      tokens = np.zeros((2, len(batch), width), np.int64)
      for row, i in enumerate(batch):
        tokens[0, row, width - len(prompts[i]) :] = prompts[i]
        tokens[1, row, width - len(prompts[i]) :] = 1
      ids, mask = map(torch.as_tensor, tokens)
      chosen = lengths[list(batch)]
      torch.manual_seed(seed)
      with torch.no_grad():
        out = peer.generate(
          ids,
          attention_mask=mask,
          do_sample=True,
          top_k=0,
          max_new_tokens=int(chosen.max()),
          eos_token_id=None,
          pad_token_id=0,
          stopping_criteria=[EachAtItsLength(width + chosen)],
        )
      assert out.shape[1] == width + chosen.max()
      drawn += int(chosen.sum())
    return drawn

  return run
