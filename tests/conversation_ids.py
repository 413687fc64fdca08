"""Conversations whose ids transformers says, too."""

from prm_jax import errors
from prm_jax.huggingface import conversation_renderings
from prm_jax.huggingface import trial_conversations
from prm_jax.text import encoding
from prm_jax.text import messages


def assert_equal(theirs, tokenizer, template, num, *, tools=True, **options):
  """Compares the ids of trials, and returns how many the template writes.

  Args:
    theirs: The tokenizer of transformers, with its chat template.
    tokenizer: Ours.
    template: The template that was imported.
    num: The number of trials.
    tools: Whether the trials keep their tools.
    **options: Further options of apply_chat_template.
  """
  config = encoding.EncodingConfig(template=template, max_tokens=None)
  end = tokenizer.control(template.ends[0])
  written = 0
  for trial in trial_conversations.trials(num):
    declared = trial.tools if tools else ()
    try:
      trajectory = messages.trajectory(trial.messages, tools=declared)
      encoded = encoding.encode_solution(trajectory, tokenizer, config)
    except errors.InputError:
      continue
    ids = theirs.apply_chat_template(
      [
        conversation_renderings.record_of(x, conversation_renderings.Way())
        for x in trial.messages
      ],
      tools=list(declared) or None,
      tokenize=True,
      return_dict=False,
      **options,
    )
    assert encoded.tokens.tolist() == list(ids), trial
    assert {*encoded.tokens[encoded.step_end].tolist()} <= {end}
    written += 1
  return written
