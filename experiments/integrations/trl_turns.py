"""TRL's GRPOTrainer with a tool, and a PRM's advantages of turns.

  python experiments/integrations/trl_turns.py --prm=http://HOST:PORT/v1

Logged by TRL: `prm/turn_mean`, `prm/turn_min`, `prm/unjudged` and
`prm/first_error`, next to the reward of the right answer.

Checked against TRL f2cd57710. Run: two updates on a CPU (--cpu) with TRL 1.13.0,
a random policy, which calls no tool, and a function as PRM; not with a trained
policy.
"""

import argparse
import random
import re

import datasets
import transformers
import trl

import prm_jax
from prm_jax.integrations import trainer_chats
from prm_jax.integrations import trl as prm_trl


def multiply(a: int, b: int) -> int:
  """Multiplies two numbers.

  Args:
    a: The first number.
    b: The second number.

  Returns:
    The product.
  """
  return a * b


def is_right(completions, answer, **columns) -> list[float]:
  """Returns 1 where the last number that is said is the answer."""
  del columns
  rewards = []
  for completion, expected in zip(completions, answer, strict=True):
    numbers = re.findall(r"\d+", trainer_chats.text_of(completion[-1]))
    rewards.append(float(numbers[-1:] == [expected]))
  return rewards


def problems(count: int, seed: int) -> datasets.Dataset:
  """Returns products as questions."""
  draw = random.Random(seed)
  rows = []
  for _ in range(count):
    a, b = draw.randrange(100, 1000), draw.randrange(100, 1000)
    asked = f"What is {a} * {b} + {a}?"
    rows.append(
      dict(prompt=[dict(role="user", content=asked)], answer=str(a * b + a))
    )
  return datasets.Dataset.from_list(rows)


def main() -> None:
  """Trains, as the flags say."""
  parser = argparse.ArgumentParser()
  parser.add_argument("--prm", default="http://localhost:8000/v1")
  parser.add_argument("--model", default="Qwen/Qwen3-0.6B")
  parser.add_argument("--output", default="runs/trl_turns")
  parser.add_argument("--steps", type=int, default=100)
  parser.add_argument("--max-tokens", type=int, default=1024)
  parser.add_argument("--group", type=int, default=8)
  parser.add_argument("--cpu", action="store_true")
  flags = parser.parse_args()

  tokenizer = transformers.AutoTokenizer.from_pretrained(flags.model)
  make = prm_trl.with_turn_advantages(
    trl.GRPOTrainer,
    prm_jax.load_score(flags.prm),
    tools=[transformers.utils.get_json_schema(multiply)],
  )
  trainer = make(
    model=transformers.AutoModelForCausalLM.from_pretrained(flags.model),
    reward_funcs=[is_right],
    args=trl.GRPOConfig(
      output_dir=flags.output,
      max_steps=flags.steps,
      per_device_train_batch_size=flags.group,
      num_generations=flags.group,
      max_completion_length=flags.max_tokens,
      logging_steps=1,
      use_cpu=flags.cpu,
    ),
    train_dataset=problems(1_000, seed=0),
    processing_class=tokenizer,
    tools=[multiply],
  )
  trainer.train()


if __name__ == "__main__":
  main()
