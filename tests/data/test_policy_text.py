"""Of equal texts with other ids, one is continued, whatever the batch."""

import dataclasses
import itertools

import pytest
import recipes

from prm_jax import schema
from prm_jax.data import policy_templates
from prm_jax.data import policy_text
from prm_jax.inference import codecs
from prm_jax.labelling import journal
from prm_jax.labelling import monte_carlo

TOKENIZER = recipes.tokenizer("qwen")
TEMPLATE = dataclasses.replace(policy_templates.qwen2_5(), ends=("<|im_end|>",))
TEXT = "one\n\ntwo\n\nthree"
CODEC = codecs.of(TEMPLATE, TOKENIZER)


def _sampled(name, problem, parts):
  """Returns TEXT, as it is sampled if each of its parts is encoded by itself."""
  encoded = (policy_text.encode_text(p, TEMPLATE, TOKENIZER)[0] for p in parts)
  ids = [*itertools.chain(*encoded)]
  spans = tuple(policy_text.spans(TEXT, TEMPLATE, TOKENIZER))
  sampled = dict(tokenizer=CODEC.bytes.digest, ids=ids)
  return schema.Solution(
    *(name, problem, tuple(TEXT[a:b] for a, b in spans)),
    extra={schema.SAMPLED: sampled},
    raw_text=TEXT,
    spans=spans,
  )


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_equal_prefixes_get_one_label_and_go_on_from_the_first_ones_ids(order):
  """The first in the input: a problem's solutions are in one batch."""
  as_encoded = {"a": [TEXT], "b": TEXT}  # b: each letter by itself
  input_ = [_sampled(n, "p", as_encoded[n]) for n in order]
  input_.insert(1, _sampled("c", "q", [TEXT]))
  continued = []

  def generate(prefixes, num):
    prompts = [CODEC.prompt(prefix).begun.tolist() for prefix in prefixes]
    continued.extend(
      (prefix.problem, ids)
      for prefix, ids in zip(prefixes, prompts, strict=True)
    )
    return [
      [dataclasses.replace(p, extra={"ids": ids})] * num
      for p, ids in zip(prefixes, prompts, strict=True)
    ]

  def verify(solutions):
    # What the continued ids are decides the label.
    return [len(s.extra.get("ids", ())) % 2 == 0 for s in solutions]

  options = monte_carlo.Options(completions=2)
  own = input_[0].extra[schema.SAMPLED]["ids"]
  labels = []
  for batch_size in (1, 9):
    continued.clear()
    batches = journal.batches(input_, batch_size)
    done = [
      s
      for batch in batches
      for s in monte_carlo.label(batch, generate, verify, options)[0]
    ]
    labels.append({s.id: s.labels for s in done})
    of_p = [ids for problem, ids in continued if problem == "p"]
    assert [*map(CODEC.bytes.text, of_p)] == ["one\n\n", "one\n\ntwo\n\n"]
    assert of_p == [own[: len(ids)] for ids in of_p]
  assert labels[0] == labels[1]
  assert labels[0]["a"] == labels[0]["b"]
