"""A recorded beam search in search-and-learn's way, by transformers.

In each iteration `generate` writes one step for every beam, from prompts that
are encoded and read anew, and the reward model reads the whole text of every
candidate, in padded batches. The ids are the recorded ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import pathlib

import numpy as np
import peer
import recorded
import transformers_generate

from prm_jax import schema
from prm_jax.policy import codecs
from prm_jax.search import tree as tree_lib
from prm_jax.text import encoding
from prm_jax.text import tokenizer as tokenizer_lib

Write = Callable[
  [Sequence[np.ndarray], Sequence[Sequence[int]]], list[list[int]]
]
Score = Callable[[Sequence[schema.Solution]], list[list[float]]]


def searching(
  trees: Sequence[tree_lib.Tree],
  wanted: recorded.Nodes,
  model: peer.Model,
  policy: pathlib.Path,
  args: argparse.Namespace,
  *,
  at_once: int,
) -> Callable[[], recorded.Nodes]:
  """Returns a function that searches all problems.

  Args:
    trees: The recorded trees.
    wanted: What they hold.
    model: The reward model.
    policy: The folder of the policy.
    args: device, seed, temperature, step_budget and batch are read.
    at_once: The number of problems that are searched together.
  """
  torch = peer.torch()
  codec = codecs.SeparatorCodec(model.tokenizer)
  write = _writing(policy, model.tokenizer, args)
  score = _scoring(model, args)

  def run() -> recorded.Nodes:
    torch.manual_seed(args.seed)
    made = recorded.Nodes({}, {})
    for start in range(0, len(trees), at_once):
      group = trees[start : start + at_once]
      _search(group, wanted.ids, codec, write, score, made)
    return made

  return run


def _search(
  trees: Sequence[tree_lib.Tree],
  ids: Mapping[str, list[int]],
  codec: codecs.Codec,
  write: Write,
  score: Score,
  made: recorded.Nodes,
) -> None:
  """Adds what the search of some problems wrote and scored."""
  beams = {(tree.problem.id, 0): tree.problem for tree in trees}
  for number in range(max(len(tree.rounds) for tree in trees)):
    children = [
      (tree, node)
      for tree in trees
      for node in recorded.nodes_of_round(tree, number)
    ]
    if not children:
      break
    parents = [beams[tree.problem.id, node.parent] for tree, node in children]
    names = [recorded.node_id(tree, node) for tree, node in children]
    prompts = [codec.prompt(parent).tokens for parent in parents]
    rows = write(prompts, [ids[name] for name in names])
    texts = [codec.tokenizer.decode(row) for row in rows]
    grown = [
      dataclasses.replace(parent, steps=(*parent.steps, text))
      for parent, text in zip(parents, texts, strict=True)
    ]
    made.ids.update(zip(names, rows, strict=True))
    made.scores.update(zip(names, score(grown), strict=True))
    beams = {
      (tree.problem.id, node.id): solution
      for (tree, node), solution in zip(children, grown, strict=True)
    }


def _device(args: argparse.Namespace) -> str:
  return "cuda" if args.device == "gpu" else "cpu"


def _writing(
  folder: pathlib.Path,
  tokenizer: tokenizer_lib.Tokenizer,
  args: argparse.Namespace,
) -> Write:
  """Returns what writes a step after each prompt, in one batch."""
  torch = peer.torch()
  import transformers

  device = _device(args)
  made = transformers_generate.load(folder).to(device)

  class Follow(transformers.LogitsProcessor):
    """Makes the recorded ids the likeliest, and looks at no other logit."""

    def __init__(self, steps, width):
      self.steps, self.width = steps, width

    def __call__(self, input_ids, scores):
      wanted = self.steps[:, input_ids.shape[1] - self.width, None]
      return scores.scatter_(1, wanted, 1e30)

  def write(
    prompts: Sequence[np.ndarray], wanted: Sequence[Sequence[int]]
  ) -> list[list[int]]:
    width, longest = max(map(len, prompts)), max(map(len, wanted))
    tokens = np.zeros((2, len(prompts), width), np.int64)
    steps = np.full((len(prompts), longest), tokenizer.separator, np.int64)
    for row, (prompt, step) in enumerate(zip(prompts, wanted, strict=True)):
      tokens[0, row, width - len(prompt) :] = prompt
      tokens[1, row, width - len(prompt) :] = 1
      steps[row, : len(step)] = step
    ids, mask = torch.as_tensor(tokens, device=device)
    follow = Follow(torch.as_tensor(steps, device=device), width)
    with torch.inference_mode():
      out = made.generate(
        ids,
        attention_mask=mask,
        do_sample=True,
        temperature=args.temperature,
        top_k=0,
        max_new_tokens=args.step_budget,
        eos_token_id=[tokenizer.separator, tokenizer.eos],
        pad_token_id=0,
        logits_processor=transformers.LogitsProcessorList([follow]),
      )
    rows = out[:, width:].tolist()
    return [row[: row.index(tokenizer.separator) + 1] for row in rows]

  return write


def _scoring(model: peer.Model, args: argparse.Namespace) -> Score:
  """Returns what scores whole solutions, in batches padded to their longest."""
  torch = peer.torch()
  import transformers

  device = _device(args)
  made = transformers.AutoModelForTokenClassification.from_pretrained(
    model.folder
  )
  made = made.to(device).eval()

  def score(solutions: Sequence[schema.Solution]) -> list[list[float]]:
    out: list[list[float]] = []
    for start in range(0, len(solutions), args.batch):
      encoded = [
        encoding.encode(s.problem, s.steps, model.tokenizer, model.encoding)
        for s in solutions[start : start + args.batch]
      ]
      longest = max(len(x.tokens) for x in encoded)
      tokens = np.zeros((2, len(encoded), longest), np.int64)
      for row, x in enumerate(encoded):
        tokens[0, row, : len(x.tokens)] = x.tokens
        tokens[1, row, : len(x.tokens)] = 1
      ids, mask = torch.as_tensor(tokens, device=device)
      with torch.inference_mode():
        logits = made(ids, attention_mask=mask).logits
        scores = logits.softmax(-1)[..., 1].cpu().numpy()
      out += [scores[i, x.step_end].tolist() for i, x in enumerate(encoded)]
    return out

  return score
