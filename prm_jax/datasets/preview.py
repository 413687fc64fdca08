"""What a model would see: tokens, score positions and targets, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
import itertools

import numpy as np

from prm_jax import schema
from prm_jax.records import identity
from prm_jax.runtime import progress
from prm_jax.runtime import terminal
from prm_jax.text import encoding
from prm_jax.text import messages
from prm_jax.text import own_form
from prm_jax.text import tokenizer as tokenizer_lib


def show(
  solution: schema.Solution,
  tokenizer: tokenizer_lib.Tokenizer,
  encoding_config: encoding.EncodingConfig,
  policy: encoding.LabelPolicy,
) -> str:
  """Returns two lines for the prompt and for each step: positions, text, ids.

  A step's line says where its score is read, the text of the token there, and
  its target. Among its ids that token is in brackets. A trajectory has a line
  for each message, which says whether it is context or a turn, and a turn's
  target; of a turn that is cut, a line for each step. With a model that reads
  conversations, a turn's line says where its score is read.
  """
  name = terminal.visible(solution.id, one_line=True)
  lines = [f"# {name}  outcome {solution.outcome}"]
  if solution.messages is not None:
    reads: Iterator[str] = itertools.repeat("")
    if encoding_config.template.of_policy:
      encoded = encoding.encode_solution(solution, tokenizer, encoding_config)
      reads = _reads(encoded, tokenizer)
    return "\n".join([*lines, *_message_lines(solution, policy, reads)])
  encoded = encoding.encode_solution(solution, tokenizer, encoding_config)
  if encoded is None:
    n = encoding_config.max_tokens
    return "\n".join([*lines, f"  too long: more than {n} tokens: left out"])
  start = encoded.prompt_tokens
  if start:
    lines.append(f"  0..{start - 1}  problem  {_clip(solution.problem)}")
    lines.append(f"      {_ids(encoded.tokens[:start])}")
  labels = encoding.step_labels(solution, policy)
  for i, end in enumerate(encoded.step_end):
    if encoding_config.template == own_form.OWN:
      length = len(tokenizer.encode(solution.steps[i])) + 1
    else:
      length = int(end) + 1 - start
    ids = encoded.tokens[start : start + length]
    token = int(encoded.tokens[end])
    text = repr(tokenizer.decode([token]))
    if token == tokenizer.separator or text == "''":
      text = "separator"
    lines.append(
      f"  {start}..{start + length - 1}  step {i}  read at {end} {text}"
      f"  target {_target(labels[i])}  {_clip(solution.steps[i])}"
    )
    lines.append(f"      {_ids(ids, int(end) - start)}")
    start += length
  dropped = len(solution.steps) - len(encoded.step_end)
  if dropped:
    lines.append(f"  {dropped} trailing steps dropped: too long")
  return "\n".join(lines)


def _reads(
  encoded: encoding.EncodedSolution | None, tokenizer: tokenizer_lib.Tokenizer
) -> Iterator[str]:
  """Yields where each step is read, and the token there."""
  if encoded is not None:
    for end in encoded.step_end:
      text = tokenizer.decode([int(encoded.tokens[end])])
      yield f"  read at {end} {repr(text) if text else 'its end token'}"
  yield from itertools.repeat("  too long: left out")


def _message_lines(
  solution: schema.Solution,
  policy: encoding.LabelPolicy,
  reads: Iterator[str],
) -> Iterator[str]:
  """Yields a line for the tools, and one for each message or step of a turn."""
  if solution.tools:
    functions = (x.get("function", x) for x in solution.tools)
    names = (str(dict(x).get("name")) for x in functions)
    yield f"  {'tools':<9}  context  {_clip(', '.join(names))}"
  steps = zip(
    schema.turns_of(solution),
    solution.steps,
    encoding.step_labels(solution, policy),
    strict=True,
  )
  of_turns = {
    turn: [*of_turn] for turn, of_turn in itertools.groupby(steps, _first)
  }
  turns = itertools.count()
  for message in solution.messages or ():
    if message.role != "assistant":
      yield f"  {message.role:<9}  context  {_clip(message.text)}"
      continue
    turn = next(turns)
    if message.thinking is not None:
      yield f"  {'thinking':<9}  context  {_clip(message.thinking)}"
    for _, step, label in of_turns[turn]:
      yield (
        f"  {message.role:<9}  turn {turn}{next(reads)}  target {_target(label)}"
        f"  {_clip(step)}"
      )


def _first(row: tuple[int, str, float | None]) -> int:
  return row[0]


def _target(label: float | None) -> str:
  return "none" if label is None else f"{label:g}"


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
  problems = identity.problems_text(
    len({identity.problem_key(text) for text in texts}), len(texts)
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
  # Without a template there is no form in which a model reads a conversation.
  encoded = [
    encoding.encode_solution(s, tokenizer, encoding_config)
    for s in progress.through("encode", solutions, len(solutions))
    if s.messages is None or encoding_config.template != own_form.OWN
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
    *_trajectory_lines(solutions, labels),
    f"steps a solution: {_spread(steps)}",
    f"tokens a solution: {_spread(lengths)}",
  ]
  if encoding_config.max_tokens is not None:
    too_long = encoded.count(None)
    lines.append(
      f"longer than {encoding_config.max_tokens} tokens: {too_long:,}"
    )
  return "\n".join(lines)


def _trajectory_lines(
  solutions: Sequence[schema.Solution],
  labels: Sequence[Sequence[float | None]],
) -> Iterator[str]:
  """Yields a line that counts turns, calls and context, if there are any."""
  found: Counter[str] = Counter()
  labelled = 0
  for solution, of_steps in zip(solutions, labels, strict=True):
    if solution.messages is not None:
      found.update(messages.counts(solution))
      turns = zip(schema.turns_of(solution), of_steps, strict=True)
      labelled += len({turn for turn, label in turns if label is not None})
  if found:
    yield messages.counts_text(found)
    yield f"turns with a target: {labelled:,}"


def _spread(values: Sequence[int]) -> str:
  if not values:
    return "none"
  low, median, high = np.quantile(values, [0.05, 0.5, 0.95])
  return (
    f"mean {np.mean(values):.1f}, median {median:.0f},"
    f" 90 % between {low:.0f} and {high:.0f}, max {max(values)}"
  )
