"""What a model would see: tokens, score positions and targets, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from prm_jax import schema
from prm_jax.data import encoding
from prm_jax.data import sources
from prm_jax.data import tokenizer as tokenizer_lib
from prm_jax.runtime import progress
from prm_jax.runtime import terminal


def show(
  solution: schema.Solution,
  tokenizer: tokenizer_lib.Tokenizer,
  encoding_config: encoding.EncodingConfig,
  policy: encoding.LabelPolicy,
) -> str:
  """Returns two lines for the prompt and for each step: positions, text, ids.

  A step's line says where its score is read, the text of the token there, and
  its target. Among its ids that token is in brackets.
  """
  name = terminal.visible(solution.id, one_line=True)
  lines = [f"# {name}  outcome {solution.outcome}"]
  encoded = encoding.encode_solution(solution, tokenizer, encoding_config)
  if encoded is None:
    n = encoding_config.max_tokens
    return "\n".join([*lines, f"  too long: more than {n} tokens: left out"])
  start = encoded.prompt_tokens
  lines.append(f"  0..{start - 1}  problem  {_clip(solution.problem)}")
  lines.append(f"      {_ids(encoded.tokens[:start])}")
  labels = encoding.step_labels(solution, policy)
  for i, end in enumerate(encoded.step_end):
    if encoding_config.template is None:
      length = len(tokenizer.encode(solution.steps[i])) + 1
    else:
      length = int(end) + 1 - start
    ids = encoded.tokens[start : start + length]
    token = int(encoded.tokens[end])
    text = repr(tokenizer.decode([token]))
    if token == tokenizer.separator or text == "''":
      text = "separator"
    target = "none" if labels[i] is None else f"{labels[i]:g}"
    lines.append(
      f"  {start}..{start + length - 1}  step {i}  read at {end} {text}"
      f"  target {target}  {_clip(solution.steps[i])}"
    )
    lines.append(f"      {_ids(ids, int(end) - start)}")
    start += length
  dropped = len(solution.steps) - len(encoded.step_end)
  if dropped:
    lines.append(f"  {dropped} trailing steps dropped: too long")
  return "\n".join(lines)


def _clip(text: str, width: int = 70) -> str:
  text = text.replace("\n", "\\n")
  return text if len(text) <= width else text[: width - 3] + "..."


def _ids(ids: np.ndarray, marked: int | None = None, ends: int = 12) -> str:
  """Returns the ids; of a long list, `ends` at each end and the number between.

  The id with index `marked` gets brackets. A step is read at one of its last
  two tokens, so this id is never among the omitted ones.
  """
  shown = [f"[{x}]" if k == marked else str(x) for k, x in enumerate(ids)]
  if len(shown) > 2 * ends:
    shown[ends:-ends] = [f"... {len(shown) - 2 * ends} more ..."]
  return " ".join(shown)


def stats(
  solutions: Sequence[schema.Solution],
  tokenizer: tokenizer_lib.Tokenizer,
  encoding_config: encoding.EncodingConfig,
  policy: encoding.LabelPolicy,
) -> str:
  """Returns counts of solutions, steps, targets and lengths, as text."""
  texts = {s.problem for s in solutions}
  problems = sources.problems_text(
    len({sources.problem_key(text) for text in texts}), len(texts)
  )
  steps = [len(s.steps) for s in solutions]
  outcomes = Counter(s.outcome for s in solutions)
  labels = [encoding.step_labels(s, policy) for s in solutions]
  targets = Counter(
    "none" if x is None else "wrong" if x < 0.5 else "right"
    for row in labels
    for x in row
  )
  have_error = sum(schema.first_error(row) >= 0 for row in labels)
  encoded = [
    encoding.encode_solution(s, tokenizer, encoding_config)
    for s in progress.through("encode", solutions, len(solutions))
  ]
  lengths = [len(x.tokens) for x in encoded if x is not None]
  lines = [
    f"{len(solutions):,} solutions of {problems}, {sum(steps):,} steps",
    "outcomes: "
    + ", ".join(
      f"{outcomes[key]:,} {name}"
      for key, name in ((True, "right"), (False, "wrong"), (None, "unknown"))
    ),
    f"targets: {targets['right']:,} right, {targets['wrong']:,} wrong,"
    f" {targets['none']:,} none",
    f"first error: {have_error:,} have one",
    f"steps a solution: {_spread(steps)}",
    f"tokens a solution: {_spread(lengths)}",
  ]
  if encoding_config.max_tokens is not None:
    too_long = encoded.count(None)
    lines.append(
      f"longer than {encoding_config.max_tokens} tokens: {too_long:,}"
    )
  return "\n".join(lines)


def _spread(values: Sequence[int]) -> str:
  if not values:
    return "none"
  low, median, high = np.quantile(values, [0.05, 0.5, 0.95])
  return (
    f"mean {np.mean(values):.1f}, median {median:.0f},"
    f" 90 % between {low:.0f} and {high:.0f}, max {max(values)}"
  )
