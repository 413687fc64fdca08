"""A rubric is data; its grades are read to the letter, or not at all."""

import dataclasses
import itertools
import json
import pathlib

from hypothesis import given
from hypothesis import strategies as st
import pytest

from prm_jax import errors
from prm_jax import schema
from prm_jax.labelling import judge_prompts
from prm_jax.labelling import llm_judge
from prm_jax.labelling import rubrics

SUMS = rubrics.Principle(
  "sums", "All sums are right.", "A wrong {sum}.", 3, True
)
STYLE = rubrics.Principle("style", "It is clear.")
RUBRIC = rubrics.Rubric((SUMS, STYLE))
TEMPLATE = rubrics.template(RUBRIC)


def _block(number, sums, style, overall=1):
  return (
    f"<analysis_{number}>\nsums | {sums} | It adds.\n"
    f"style | {style} | So | so.\noverall | {overall} | Fine.\n"
    f"</analysis_{number}>\n"
  )


def _solution(num_steps=2, **fields):
  return schema.Solution("a", "1 + 1?", ("x",) * num_steps, **fields)


def _says(*texts):
  return lambda prefixes, n: [
    [schema.Solution(f"{p.id}/{i}", p.problem, (texts[i],)) for i in range(n)]
    for p in prefixes
  ]


# --- The rule ---------------------------------------------------------------

SCORES = st.lists(st.tuples(*[st.floats(0, 1)] * 2), min_size=1, max_size=6)


@given(scores=SCORES)
def test_a_label_is_the_weighted_mean_and_0_after_a_fatal_error(scores):
  sums, style = zip(*scores)
  labels = RUBRIC.labels(dict(sums=sums, style=style))
  is_wrong = False
  for (a, b), label in zip(scores, labels, strict=True):
    is_wrong = is_wrong or a < 0.5
    assert label == (0 if is_wrong else pytest.approx((3 * a + b) / 4))


def test_weights_of_0_count_for_nothing_but_errors():
  rubric = rubrics.Rubric((dataclasses.replace(SUMS, weight=0), STYLE))
  scores = dict(sums=(0.6, 0.4), style=(0.25, 1.0))
  assert rubric.labels(scores) == (0.25, 0)


@pytest.mark.parametrize("scores", [*itertools.permutations((0.7, 0.6, 0.2))])
def test_scores_whose_mean_is_a_half_are_no_error_in_any_order(scores):
  rubric = rubrics.Rubric(
    tuple(rubrics.Principle(f"p{i}", "x", weight=0.1) for i in range(3))
  )
  assert rubric.labels({f"p{i}": (x,) for i, x in enumerate(scores)}) == (0.5,)
  style = rubrics.template(rubrics.Rubric((STYLE,)))
  texts = [
    f"<analysis_1>\nstyle | {x} | a\noverall | {x} | b\n</analysis_1>"
    for x in scores
  ]
  (found,), _ = llm_judge.label([_solution(1)], _says(*texts), style, votes=3)
  assert found.labels == (0.5,)
  assert rubrics.of_principle(found, "overall").labels == (0.5,)


def test_the_smallest_weight_is_a_weight():
  rubric = rubrics.Rubric((dataclasses.replace(STYLE, weight=5e-324),))
  assert rubric.labels(dict(style=(0.25,))) == (0.25,)


# --- The prompt -------------------------------------------------------------


def test_the_judge_is_asked_about_every_principle():
  solution = schema.Solution("a", "1 + 1?", ("2 </paragraph_1>", "3"))
  prompt = judge_prompts.ask(TEMPLATE, solution)
  for text in (
    "- sums: All sums are right. An error: A wrong {sum}.\n- style: It is",
    "sums | SCORE | CRITIQUE\nstyle | SCORE | CRITIQUE\noverall | SCORE",
    "<problem>\n1 + 1?\n</problem>",
    "for all 2",
    "<analysis_1>\nsums | SCORE | CRITIQUE\n",
    "if it doesn't apply",
  ):
    assert text in prompt
  assert prompt.count("</paragraph_1>") == 1


# --- The reader -------------------------------------------------------------


def test_grades_are_read_by_principle_with_their_critiques():
  text = f"<think>hm\n{_block(1, 0, 0)}</think>\n{_block(1, 1, 0.5)}" + (
    "<analysis_2>\n**Sums** | .25 | It adds\nwrongly.\n"
    "| style | 1. | Good. |\n- `overall`|0|Bad\n</analysis_2>"
  )
  found = TEMPLATE.read(text, 2)
  assert found.first_error == 1
  assert found.labels == (0.875, 0)
  sums, style, overall = (
    found.principles[x] for x in ("sums", "style", "overall")
  )
  assert sums.scores == (1, 0.25) and sums.labels == (1, 0)
  assert style.scores == style.labels == (0.5, 1)
  assert overall.labels == (1, 0)
  assert sums.critiques == ("It adds.", "It adds\nwrongly.")
  assert style.critiques == ("So | so.", "Good.")


def test_a_table_in_a_fence_is_read_without_its_rules():
  text = (
    "```\n<analysis_1>\n```text\n| by | score | why |\n|---|:---:|---|\n"
    "| sums | 1 | Right. |\n| style | 0 | Not\n\nclear.\n|---|---|---|\n"
    "| overall | 1 | Fine. |\n```\n</analysis_1>\n```\n"
  )
  found = TEMPLATE.read(text, 1).principles
  critiques = [found[x].critiques for x in ("sums", "style", "overall")]
  assert critiques == [("Right.",), ("Not\nclear.",), ("Fine.",)]


UNREADABLE = [
  ("all is fine", "no_verdict"),
  (_block(1, 1, 1), "fewer_verdicts_than_steps"),
  (_block(1, 1, 1) + _block(2, 1, 1) + _block(3, 1, 1), "out_of_range"),
  (_block(2, 1, 1) + _block(1, 1, 1), "out_of_order"),
  (_block(1, 1, 1) + _block(1, 1, 1), "out_of_order"),
  (_block(1, 1, 1) + "<analysis_2>", "out_of_order"),
  (_block(1, 1, 1) + _block(2, 1.01, 1), "score_out_of_range"),
  (_block(1, 1, 1) + _block(2, -1, 1), "score_out_of_range"),
  (_block(1, "nan", 1) + _block(2, 1, 1), "not_a_score"),
  (_block(1, "4/5", 1) + _block(2, 1, 1), "not_a_score"),
  (_block(1, "9" * 9, 1) + _block(2, 1, 1), "not_a_score"),
  (_block(1, "\u0661", 1) + _block(2, 1, 1), "not_a_score"),
  (_block(1, "N/A", 1) + _block(2, 1, 1), "not_a_score"),
  (_block(1, "", 1) + _block(2, 1, 1), "not_a_score"),
  (
    _block(1, "1 | x\nsums | 0", 1) + _block(2, 1, 1),
    "contradicting_verdicts",
  ),
  (
    _block(1, 1, 1) + _block(2, 1, 1).replace("style", "other"),
    "missing_principle",
  ),
  (
    _block(1, 1, 1) + _block(2, 1, 1).replace("overall", "x"),
    "missing_principle",
  ),
]


@pytest.mark.parametrize(("text", "reason"), UNREADABLE)
def test_a_text_without_a_score_for_all_has_a_reason(text, reason):
  assert TEMPLATE.read(text, 2) == reason
  assert reason in judge_prompts.REASONS


@given(
  text=st.lists(
    st.sampled_from(
      [
        *("<analysis_1>", "</analysis_1>", "<analysis_2>", "</analysis_2>"),
        *("\n", "sums", "style", "overall", "|", "1", "0.5", "-", ".", "²"),
        *("\nsums | 1 | x\n", "style | 0", "</think>", "\u2028", "\x00"),
      ]
    )
    | st.text(max_size=3),
    max_size=30,
  ).map("".join)
)
def test_no_text_breaks_the_reader_of_grades(text):
  found = TEMPLATE.read(text, 1)
  if isinstance(found, str):
    assert found in judge_prompts.REASONS
  else:
    assert all(0 <= x <= 1 for g in found.principles.values() for x in g.scores)


# --- Votes ------------------------------------------------------------------


def test_votes_are_averaged_and_kept_by_principle():
  texts = (
    _block(1, 1, 1) + _block(2, 1, 0.5),
    _block(1, 1, 1) + _block(2, 0, 1, 0),
    "no grades",
  )
  stale = {judge_prompts.GRADED: "of another judge", "mine": 1}
  (found,), work = llm_judge.label(
    [_solution(extra=stale)], _says(*texts), TEMPLATE, votes=3
  )
  assert found.labels == (1, (0.875 + 0) / 2)
  graded = found.extra[judge_prompts.GRADED]
  assert graded["rubric"] == RUBRIC.digest and found.extra["mine"] == 1
  assert graded["principles"]["sums"] == dict(
    labels=[1, 0.5], scores=[1, 0.5], critiques=[["It adds."] * 2] * 2
  )
  assert graded["principles"]["style"]["scores"] == [1, 0.75]
  assert work["unparsable_no_verdict"] == work["unparsable"] == 1
  json.dumps(dict(found.extra))
  assert rubrics.of_principle(found, "style").labels == (1, 0.75)


def test_a_majority_is_of_the_first_errors_by_the_rubric():
  right, wrong = (_block(1, 1, 1) + _block(2, x, 1) for x in (1, 0))
  (found,), _ = llm_judge.label(
    [_solution()],
    _says(wrong, right, wrong),
    TEMPLATE,
    votes=3,
    vote="majority",
  )
  assert found.labels == (1, 0)


def test_without_enough_readable_votes_nothing_is_graded():
  stale = {judge_prompts.GRADED: "of another judge"}
  (found,), work = llm_judge.label(
    [_solution(extra=stale)], _says("none"), TEMPLATE
  )
  assert found.labels == (None, None)
  assert judge_prompts.GRADED not in found.extra
  assert work["too_few_votes"] == 1
  assert rubrics.of_principle(found, "sums") is None


def test_weighing_words_needs_a_template_with_words():
  with pytest.raises(errors.InputError, match="no word per step"):
    llm_judge.check(TEMPLATE, 1, 1, "log_likelihood", True)


# --- The file ---------------------------------------------------------------

JSON = dict(
  principles=[
    dict(
      name="sums",
      means="All sums are right.",
      error="A wrong {sum}.",
      weight=3,
      fatal=True,
    ),
    dict(name="style", means="It is clear."),
  ]
)
TOML = """
[[principles]]
name = "sums"
means = "All sums are right."
error = "A wrong {sum}."
weight = 3.0
fatal = true

[[principles]]
name = "style"
means = "It is clear."
"""


def test_a_rubric_in_toml_is_the_one_in_json(tmp_path):
  (tmp_path / "a.json").write_text(json.dumps(JSON))
  (tmp_path / "b.toml").write_text(f"\ufeff{TOML}")  # as some editors save it
  a, b = rubrics.read(tmp_path / "a.json"), rubrics.read(tmp_path / "b.toml")
  assert a == b == RUBRIC
  assert a.digest == b.digest == RUBRIC.digest
  others = (
    dataclasses.replace(SUMS, **{name: value})
    for name, value in dict(
      name="x", means="x", error="", weight=2, fatal=False
    ).items()
  )
  digests = {rubrics.Rubric((x, STYLE)).digest for x in others}
  assert len(digests | {a.digest}) == 6


STYLE_RECORD = dict(name="style", means="It is clear.")


@pytest.mark.parametrize(
  ("record", "words"),
  [
    ({}, "principles must be a list"),
    (dict(principles=[], more=1), "unknown field 'more'"),
    (dict(principles=[]), "0 principles; give 1 to 32"),
    (dict(principles=["x"]), "principles[0]: expected an object of name,"),
    (dict(principles=[dict(means="x")]), "principles[0]: name is missing"),
    (dict(principles=[dict(name="x")]), "principles[0]: means is missing"),
    (dict(principles=[STYLE_RECORD | dict(wieght=1)]), "field 'wieght'"),
    (
      dict(principles=[STYLE_RECORD | dict(weight="1")]),
      "weight must be float",
    ),
    (dict(principles=[STYLE_RECORD | dict(weight=True)]), "weight must be"),
    (dict(principles=[STYLE_RECORD | dict(weight=-1)]), "weight=-1"),
    (dict(principles=[STYLE_RECORD | dict(weight=1e308)]), "weight=1e+308"),
    (dict(principles=[STYLE_RECORD | dict(weight=0)]), "no principle has a"),
    (dict(principles=[STYLE_RECORD | dict(fatal=1)]), "fatal must be bool"),
    (dict(principles=[STYLE_RECORD | dict(name="A b")]), "name='A b'"),
    (dict(principles=[STYLE_RECORD | dict(name="overall")]), "not overall"),
    (dict(principles=[STYLE_RECORD | dict(means=" ")]), "means is empty"),
    (dict(principles=[STYLE_RECORD | dict(error="x" * 2001)]), "shorten it"),
    (dict(principles=[STYLE_RECORD] * 2), "principles[1]: the name style"),
    (dict(principles=[STYLE_RECORD] * 33), "33 principles"),
  ],
)
def test_a_file_that_holds_no_rubric_is_refused_in_one_line(
  tmp_path, record, words
):
  path = tmp_path / "r.json"
  path.write_text(json.dumps(record))
  with pytest.raises(errors.InputError) as e:
    rubrics.read(path)
  assert str(e.value).startswith(f"{path}: ") and words in str(e.value)
  assert "\n" not in str(e.value)


@pytest.mark.parametrize(
  ("name", "text", "words"),
  [
    ("r.toml", "principles = ", "not TOML"),
    ("r.toml", "a = " + "[" * 5_000, "flatten it"),
    ("r.toml", TOML + "weight = nan", "weight=nan"),
    ("r.toml", TOML + "weight = inf", "weight=inf"),
    ("r.toml", TOML + "weight = " + "1" * 4_000, "weight=1111"),
    ("r.toml", "a = " + "1" * 5_000, "not TOML"),
    ("r.json", "[]", "expected a JSON object"),
    ("r.yaml", "", "ends in .json or .toml"),
  ],
)
def test_a_file_of_another_form_is_refused_in_one_line(
  tmp_path, name, text, words
):
  path = pathlib.Path(tmp_path, name)
  path.write_text(text)
  with pytest.raises(errors.InputError) as e:
    rubrics.read(path)
  assert str(path) in str(e.value) and words in str(e.value)
  assert "\n" not in str(e.value)


# --- Labels of one principle ------------------------------------------------


@pytest.mark.parametrize(
  ("graded", "words"),
  [
    ("x", "holds no principles"),
    (dict(principles=3), "holds no principles"),
    (dict(principles=dict(style={})), "no principle 'sums'; there are style"),
    (dict(principles=dict(sums=3)), "sums hasn't a label for each of 2"),
    (dict(principles=dict(sums=dict(labels=[1]))), "hasn't a label for each"),
    (dict(principles=dict(sums=dict(labels=[1, 2]))), "labels[1] is 2"),
  ],
)
def test_grades_that_arent_one_for_each_step_are_refused(graded, words):
  with pytest.raises(errors.InputError) as e:
    rubrics.of_principle(
      _solution(extra={judge_prompts.GRADED: graded}), "sums"
    )
  assert "solution 'a'" in str(e.value) and words in str(e.value)
