"""What a model would see, as text: the same as what it sees."""

import dataclasses
import itertools
import re

import pytest

from prm_jax import schema
from prm_jax.datasets import decontamination
from prm_jax.datasets import preview
from prm_jax.datasets import validation
from prm_jax.records import sources
from prm_jax.text import encoding
from prm_jax.text import messages
from prm_jax.text import segmenters
from prm_jax.text import tokenizer as tokenizer_lib
from prm_jax.text import turn_cuts

TOKENIZER = tokenizer_lib.Bytes()
SOLUTION = schema.Solution(
  id="s",
  problem="1 + 1\nis?",
  steps=("two", "", "<extra_0> ки", "five"),
  labels=(1.0, 0.75, 0.0, 1.0),
  outcome=False,
)


def _id_rows(text):
  """Returns the lines of ids: the prompt's, then each step's."""
  return [line for line in text.splitlines() if line.startswith("      ")]


def _shown(solution=SOLUTION, policy=None, **encoding_config):
  return preview.show(
    solution,
    TOKENIZER,
    encoding.EncodingConfig(**encoding_config),
    policy or encoding.LabelPolicy(),
  )


@pytest.mark.parametrize("place", encoding.SCORE_POSITIONS)
def test_it_prints_the_ids_and_places_of_the_ledger(place):
  found = encoding.encode(
    SOLUTION.problem,
    SOLUTION.steps,
    TOKENIZER,
    encoding.EncodingConfig(score_position=place),
  )
  text = _shown(score_position=place)
  read = [int(x) for x in re.findall(r"read at (\d+)", text)]
  assert read == found.step_end.tolist()
  spans = re.findall(r"(\d+)\.\.(\d+)  step", text)
  # Step by step, without a gap, up to the last id.
  assert int(spans[0][0]) == found.prompt_tokens
  assert [int(a) for a, _ in spans[1:]] == [int(b) + 1 for _, b in spans[:-1]]
  assert int(spans[-1][1]) == len(found.tokens) - 1
  prompt, *rows = _id_rows(text)
  ids = [int(x) for x in prompt.split()]
  assert ids == found.tokens[: found.prompt_tokens].tolist()
  for row, (first, last), end in zip(rows, spans, read, strict=True):
    ids = row.split()
    assert len(ids) == int(last) - int(first) + 1
    marked = [k for k, x in enumerate(ids) if x.startswith("[")]
    assert marked == [end - int(first)]
    expected = found.tokens[int(first) : int(last) + 1].tolist()
    assert [int(x.strip("[]")) for x in ids] == expected


@pytest.mark.parametrize("place", encoding.SCORE_POSITIONS)
def test_a_long_step_shows_where_it_is_read_and_counts_what_it_leaves_out(
  place,
):
  long = schema.Solution("s", "p" * 150, ("x" * 118 + "yz", "z" * 300, "one"))
  found = encoding.encode(
    long.problem,
    long.steps,
    TOKENIZER,
    encoding.EncodingConfig(score_position=place),
  )
  text = _shown(long, score_position=place)
  prompt, *rows = _id_rows(text)
  bounds = [0, found.prompt_tokens]
  bounds += [bounds[-1] + 121, bounds[-1] + 121 + 301, len(found.tokens)]
  spans = itertools.pairwise(bounds)
  for row, (first, last) in zip([prompt, *rows], spans, strict=True):
    shown, gap, rest = re.fullmatch(
      r" +(.+?)(?: \.\.\. (\d+) more \.\.\. (.+))?", row
    ).groups()
    head, tail = shown.split(), (rest or "").split()
    assert len(head) + len(tail) + int(gap or 0) == last - first
    assert (gap is None) == (last - first == 4)
    ids = [int(x.strip("[]")) for x in head + tail]
    span = found.tokens[first:last].tolist()
    assert ids == span[: len(head)] + span[last - first - len(tail) :]
    assert len(row) < 220
  for row, end in zip(rows, found.step_end, strict=True):
    (marked,) = re.findall(r"\[(\d+)\]", row)
    assert int(marked) == found.tokens[end]


def test_the_token_at_which_a_step_is_read_is_shown_as_text():
  def tokens(**encoding_config):
    return re.findall(r"read at \d+ (\S+)  target", _shown(**encoding_config))

  # The last one is the second half of a letter; a blank step has no text.
  assert tokens() == ["'o'", "separator", "'\ufffd'", "'e'"]
  assert tokens(score_position="separator") == ["separator"] * 4
  words = tokenizer_lib.train_sentencepiece(
    ["so three"] * 9, 32, model_type="word"
  )
  text = preview.show(
    schema.Solution("s", "so", ("so three",)),
    words,
    encoding.EncodingConfig(),
    encoding.LabelPolicy(),
  )
  assert "read at 4 'three'  target none  so three" in text


def test_targets_are_those_of_the_label_policy():
  def targets(**policy):
    text = _shown(policy=encoding.LabelPolicy(**policy))
    return re.findall(r"target (\S+)", text)

  assert targets() == ["1", "0.75", "0", "none"]
  assert targets(after_first_error="bad") == ["1", "0.75", "0", "0"]
  assert targets(after_first_error="keep", harden_above=0.8) == list("1001")


def test_what_is_too_long_is_said():
  prompt = len(encoding.prompt(SOLUTION.problem, TOKENIZER))
  text = _shown(max_tokens=prompt + 5, truncation="truncate")
  assert text.count("read at") == 2
  assert text.endswith("  2 trailing steps dropped: too long")
  text = _shown(max_tokens=5, truncation="drop")
  assert text.endswith("  too long: more than 5 tokens: left out")


def test_a_text_stays_on_its_line_and_is_clipped():
  long = schema.Solution("s", "a\nb" * 50, ("x" * 500,))
  lines = _shown(long).splitlines()
  assert len(lines) == 5
  assert "a\\nb" in lines[1]
  assert all(len(line) < 220 for line in lines)
  assert all(line.endswith("...") for line in lines[1::2])


def _stats(solutions, **encoding_config):
  return preview.stats(
    solutions,
    TOKENIZER,
    encoding.EncodingConfig(**encoding_config),
    encoding.LabelPolicy(),
  ).splitlines()


def test_stats_count_what_there_is():
  solutions = [
    SOLUTION,
    schema.Solution("t", SOLUTION.problem, ("a", "b"), outcome=True),
    schema.Solution("u", "other", (), labels=()),
  ]
  lengths = [
    len(encoding.prompt(s.problem, TOKENIZER))
    + sum(len(x.encode()) + 1 for x in s.steps)
    for s in solutions
  ]
  assert _stats(solutions) == [
    "3 solutions of 2 problems, 6 steps",
    "outcomes: 1 right, 1 wrong, 1 unknown",
    "targets: 2 right, 1 wrong, 3 none",
    "first error: 1 have one",
    "steps a solution: mean 2.0, median 2, 90 % between 0 and 4, max 4",
    f"tokens a solution: mean {sum(lengths) / 3:.1f}, median"
    f" {sorted(lengths)[1]}, 90 % between"
    f" {min(lengths) + 0.1 * (sorted(lengths)[1] - min(lengths)):.0f} and"
    f" {max(lengths) - 0.1 * (max(lengths) - sorted(lengths)[1]):.0f},"
    f" max {max(lengths)}",
    "longer than 2048 tokens: 0",
  ]
  short = _stats(solutions, max_tokens=sorted(lengths)[1])
  assert short[-1] == f"longer than {sorted(lengths)[1]} tokens: 1"


def test_stats_without_a_limit_of_tokens_name_none():
  lines = _stats([SOLUTION], max_tokens=None)
  assert lines[-1].startswith("tokens a solution: mean")


def test_stats_of_nothing_are_nothing():
  lines = _stats([])
  assert lines[0] == "0 solutions of 0 problems, 0 steps"
  assert lines[4] == "steps a solution: none"


def test_stats_and_doctor_count_the_same_problems():
  """Texts that a split takes for one problem are one problem."""
  texts = ("What is 2 + 2?", "What is $2+2$ ?", "what is 2 + 2", "What is 3?")
  solutions = [
    schema.Solution(str(i), text, ("4",), labels=(1.0,))
    for i, text in enumerate((*texts, texts[0]))
  ]
  _assert_counts(solutions, "5 solutions of 2 problems (4 texts;")
  assert len({sources.share(x) for x in texts}) == 2
  assert len(decontamination.index(solutions).ids) == 2
  # Nothing is added if all is as written.
  _assert_counts(solutions[2:4], "2 solutions of 2 problems, 2 steps")


@pytest.mark.real_data
def test_stats_and_doctor_count_the_same_problems_of_prmbench(public_data):
  path = public_data("formats", "samples_prmbench.jsonl")
  solutions, _ = sources.read("prmbench", path)
  assert len({s.problem for s in solutions}) == 14
  _assert_counts(solutions, "27 solutions of 12 problems (14 texts;")


def _assert_counts(solutions, text):
  policy = encoding.LabelPolicy()
  config = encoding.EncodingConfig()
  table = validation.table(validation.examine(solutions, policy))
  stats = preview.stats(solutions, TOKENIZER, config, policy)
  assert table.startswith(text) and stats.startswith(text)


# --- Trajectories ------------------------------------------------------------

TRAJECTORY = messages.trajectory(
  [
    dict(role="system", content="Be\nbrief."),
    dict(role="user", content="How many?"),
    dict(
      role="assistant",
      content="I look.",
      thinking="Hm.",
      tool_calls=[dict(function=dict(name="sql", arguments=dict(q="x")))],
    ),
    dict(role="tool", content="1"),
    dict(role="assistant", content="One.\n\nIt is."),
  ],
  id="t",
  tools=[dict(name="sql"), dict(function=dict(name="close"))],
  ratings=(-1, 1),
)


def test_a_trajectory_shows_what_is_context_and_what_is_a_scored_turn():
  keep = encoding.LabelPolicy(after_first_error="keep")
  lines = _shown(TRAJECTORY, keep).splitlines()
  assert [" ".join(x.split()) for x in lines[1:]] == [
    "tools context sql, close",
    "system context Be\\nbrief.",
    "user context How many?",
    "thinking context Hm.",
    'assistant turn 0 target 0 I look.\\nsql({"q": "x"})',
    "tool context 1",
    "assistant turn 1 target 1 One.\\n\\nIt is.",
  ]
  assert "turn 1  target none" in _shown(TRAJECTORY)


def test_a_turn_that_is_cut_shows_a_line_for_each_step():
  plain = dataclasses.replace(TRAJECTORY, ratings=None)
  text = _shown(turn_cuts.cut(plain, segmenters.PARAGRAPH))
  turns = re.findall(r"turn (\d)  target none  (.*)", text)
  assert turns == [
    ("0", 'I look.\\nsql({"q": "x"})'),
    *(("1", "One."), ("1", "It is.")),
  ]


def test_the_counts_of_trajectories_are_of_turns_calls_and_context():
  cut = turn_cuts.cut(
    dataclasses.replace(TRAJECTORY, ratings=None), segmenters.PARAGRAPH
  )
  cut = dataclasses.replace(cut, labels=(None, 1.0, 0.0))
  config = encoding.EncodingConfig(max_tokens=None)
  rest = (TOKENIZER, config, encoding.LabelPolicy(after_first_error="keep"))
  found = preview.stats([TRAJECTORY, cut, SOLUTION], *rest)
  assert (
    "\n2 trajectories: 4 turns with 2 calls; context: 2 results, 2 messages of"
    " users, 2 of the system\nturns with a target: 3\n"
  ) in found
  assert "3 solutions of 2 problems, 9 steps" in found
  assert "trajectories" not in preview.stats([SOLUTION], *rest)
